"""Token embedding and LM head for PyTorch with the same bits as rlk_jax, on every device and batch."""

from rlk_torch.alignment import Aligned, align
from rlk_torch.dispatch import Operator, get_op
from rlk_torch.embedding import embedding, embedding_fp32
from rlk_torch.lm_head import lm_head, lm_head_fp32

__all__ = ["Aligned", "Operator", "align", "embedding", "embedding_fp32", "get_op", "lm_head", "lm_head_fp32"]
