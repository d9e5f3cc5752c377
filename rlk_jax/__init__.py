"""Token embedding and LM head for JAX with the same bits as rlk_torch, on every device and batch."""

from rlk_jax.alignment import Aligned, align
from rlk_jax.dispatch import Operator, get_op
from rlk_jax.embedding import embedding, embedding_fp32
from rlk_jax.lm_head import lm_head, lm_head_fp32

__all__ = ["Aligned", "Operator", "align", "embedding", "embedding_fp32", "get_op", "lm_head", "lm_head_fp32"]
