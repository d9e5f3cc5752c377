"""What the HTML report's columns, signs and case ids mean; docs/crosscheck.md has it at length."""

__all__ = ["CASE_ID_PARTS", "CHECK_MEANINGS", "OUTCOME_MEANINGS"]

OUTCOME_MEANINGS = {
    "equal": "every bit is the contract's, and no transform changed one",
    "different": "a dtype, a shape or a bit differs, or an error is above the tolerance",
    "failed": "no bit that was compared differs, and the backend raised or crashed",
    "incomplete": "there was no time or no process left for an answer",
    "not offered": "the candidate takes no bias, or cannot be compiled: no failure of its own",
    "not made": "the run ended before this verdict",
}
CHECK_MEANINGS = {
    "bits": "dtype, shape and every bit are the contract's",
    "inputs": "the call left its arguments as they were",
    "population": "a row has the same bits alone, in half the batch, and with rows added",
    "position": "rows, and the vocab, in another order give the same bits in that order",
    "neighbours": "the other rows, of the batch or of the weight, become garbage, and a row keeps its bits",
    "padding": "rows of zeros, NaN or pad tokens before or after change nothing",
    "chunking": "rows in two calls, and the vocab and the hidden dimension in shards, give the same bits",
    "layout": "transposed, strided, expanded and unaligned storage gives the same bits",
    "repeat": "the same call gives the same bits again",
    "grad": "the gradients are the contract's, and keep their bits under the transforms",
}
CASE_ID_PARTS = {
    "lm_head, embedding": "the operator, with _fp32 its float32 form; selected_logprob, linear_logprob",
    "bf16, fp16, fp32": "the dtype of the table, of logits, or of hidden states and weight; bf16xfp32: of the two",
    "N257, N2x3, Nscalar": "the leading shape: 257 rows, [2, 3], a single id",
    "K4096, H4096, V1000": "the width of a row, of an LM head or of an embedding; the vocab",
    "d3, dauto": "digits; the operator's own choice",
    "bias, nobias": "a bias in the dtype of the hidden states, none; bias_fp32: a bias in float32",
    "int64, uint8, ...": "the dtype of the token ids, or of the targets",
    "checkpoint": "on the tables of --checkpoint",
}
