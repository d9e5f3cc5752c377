"""The importance ratios that two recordings of log-probabilities come to: python ratio.py ROLLOUT TRAINER."""

import sys
from typing import Any

import numpy as np

from crosscheck.goldens import open_golden

COMPLETION = 64  # tokens


def logprobs(folder: str) -> Any:
    golden = open_golden(folder)
    (case,) = golden.cases
    return golden.array(case, "outputs.result").astype(np.float64)


rollout, trainer = map(logprobs, sys.argv[1:])
tokens = np.exp(trainer - rollout)
completions = np.exp((trainer - rollout).reshape(-1, COMPLETION).sum(axis=1))
print(f"importance ratio: exactly 1 for {np.sum(tokens == 1)} of {len(tokens)} tokens", end=", ")
print(f"from {tokens.min():.6f} to {tokens.max():.6f}; of completions of {COMPLETION} tokens", end=" ")
print(f"from {completions.min():.6f} to {completions.max():.6f}")
