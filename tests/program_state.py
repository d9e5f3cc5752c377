"""What a program may have set in Python, NumPy, torch and JAX, to see that the packages set none of it."""

import logging
import os
import warnings
from typing import Any

import jax
import numpy as np
import torch


def state() -> dict[str, Any]:
    """What a program may have set in Python, NumPy, torch and JAX."""
    return {
        "environment": dict(os.environ),
        "warning filters": list(warnings.filters),
        "log handlers": [logging.getLogger(name).handlers[:] for name in (None, "jax", "torch")],
        "log level": logging.getLogger().level,
        "numpy errors": np.geterr(),
        "numpy random": repr(np.random.get_state()),
        "subnormals": bool(np.float32(1e-40) * np.float32(0.5) > 0),
        "jax": {name: repr(value) for name, value in jax.config.values.items()},
        "torch random": torch.get_rng_state().tolist(),
        "torch": [
            torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads(), torch.is_grad_enabled(),
            torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(), torch.is_autocast_enabled("cpu"),
            torch.is_anomaly_enabled(), torch.is_inference_mode_enabled(),
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark,
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction, torch.backends.mkldnn.enabled,
            bool(torch.tensor(1e-40) * 0.5 > 0),
        ],
    }  # fmt: skip


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name in before if after[name] != before[name]]
