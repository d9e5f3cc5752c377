"""Token embedding and LM head for PyTorch with the same bits as rlk_jax, on every device and batch."""

from rlk_torch.alignment import Aligned, align
from rlk_torch.checkpoints import embedding_and_head_tensors, load_embedding_and_head, save_embedding_and_head
from rlk_torch.dispatch import Operator, get_op
from rlk_torch.embedding import embedding, embedding_fp32
from rlk_torch.linear_logprob import linear_logprob
from rlk_torch.lm_head import lm_head, lm_head_fp32
from rlk_torch.logprob import selected_logprob
from rlk_torch.masked import masked_mean, masked_sum
from rlk_torch.modules import LMHead
from rlk_torch.quantized import QuantizedTable, quantize
from rlk_torch.sharded import shard_range
from rlk_torch.sharded_embedding import sharded_embedding, sharded_embedding_fp32
from rlk_torch.sharded_linear_logprob import sharded_linear_logprob
from rlk_torch.sharded_lm_head import sharded_lm_head, sharded_lm_head_fp32
from rlk_torch.sharded_logprob import selected_logprob_of_parts, sharded_selected_logprob
from rlk_torch.sharded_parts import lm_head_of_parts, lm_head_of_parts_fp32
from rlk_torch.sharded_row_parallel import row_parallel_lm_head, row_parallel_lm_head_fp32
from rlk_torch.tables import EmbeddingTable

__all__ = [
    "Aligned",
    "EmbeddingTable",
    "LMHead",
    "Operator",
    "QuantizedTable",
    "align",
    "embedding",
    "embedding_and_head_tensors",
    "embedding_fp32",
    "get_op",
    "linear_logprob",
    "lm_head",
    "lm_head_fp32",
    "lm_head_of_parts",
    "lm_head_of_parts_fp32",
    "load_embedding_and_head",
    "masked_mean",
    "masked_sum",
    "quantize",
    "row_parallel_lm_head",
    "row_parallel_lm_head_fp32",
    "save_embedding_and_head",
    "selected_logprob",
    "selected_logprob_of_parts",
    "shard_range",
    "sharded_embedding",
    "sharded_embedding_fp32",
    "sharded_linear_logprob",
    "sharded_lm_head",
    "sharded_lm_head_fp32",
    "sharded_selected_logprob",
]
