"""A model of two tables with random values, and some token ids: python make_model.py FOLDER."""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

VOCAB, WIDTH, TOKENS = 8192, 512, 256

folder = Path(sys.argv[1])
rng = np.random.default_rng(0)
embed = rng.standard_normal((VOCAB, WIDTH), np.float32)
head = rng.standard_normal((VOCAB, WIDTH), np.float32) * np.float32(0.05)
tables = {"embed": embed.astype(ml_dtypes.bfloat16), "head": head.astype(ml_dtypes.bfloat16)}
save_file(tables, folder / "model.safetensors")
np.save(folder / "ids.npy", rng.integers(0, VOCAB, TOKENS))
