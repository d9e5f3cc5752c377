"""What the logits of two recordings come to: python tokens.py RECORDING RECORDING."""

import sys
from typing import Any

import numpy as np

from crosscheck.goldens import open_golden


def logits(folder: str) -> Any:
    golden = open_golden(folder)
    (case,) = golden.cases
    return golden.array(case, "outputs.result").astype(np.float64)


def log_probabilities(logits: Any) -> Any:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


rollout, trainer = map(logits, sys.argv[1:])
tokens = rollout.argmax(axis=1)
differ = np.flatnonzero(tokens != trainer.argmax(axis=1))
rows = np.arange(len(tokens))
ratios = np.exp(log_probabilities(trainer)[rows, tokens] - log_probabilities(rollout)[rows, tokens])
print(f"greedy tokens: {len(differ)} of {len(tokens)} differ" + (f", first in row {differ[0]}" if len(differ) else ""))
print(f"probability of the rollout's token, trainer / rollout: from {ratios.min():.6f} to {ratios.max():.6f}")
