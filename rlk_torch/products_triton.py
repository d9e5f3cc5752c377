"""Digit products of few rows on NVIDIA GPUs, in Triton, with every rounding and the bias fused.

The reference is products.py and `finished` in lm_head.py; the bits are the same.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlk_torch.alignment import Aligned
from rlk_torch.alignment_triton import float32_bits
from rlk_torch.floats import bits_of
from rlk_torch.rounding_triton import finish, words_to_float32


@triton.jit
def product(h, w, acc, WEIGHT_FIRST: tl.constexpr):
    """Tiles [ROWS, DEPTH] and [COLUMNS, DEPTH]; the first operand of a matrix unit wants 64 rows and more."""
    if WEIGHT_FIRST:
        return tl.dot(w, h.T, acc, out_dtype=tl.int32)
    else:
        return tl.dot(h, w.T, acc, out_dtype=tl.int32)


@triton.jit
def few_rows_kernel(
    hidden, weight, hidden_exponents, hidden_flags, weight_exponents, weight_flags, bias, out,
    rows, vocab, width, hidden_plane, weight_plane, out_stride,
    DIGITS: tl.constexpr, TWO_WORDS: tl.constexpr, BIAS: tl.constexpr, DTYPE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, WEIGHT_FIRST: tl.constexpr,
):  # fmt: skip
    """A tile of ROWS rows and COLUMNS vocab entries a program; every plane of a weight tile is read once.

    Groups g0 .. g6 are the sums of digit products of weight 128^0 .. 128^6, int32: right for
    DIGITS * length <= 2^18. Width is a multiple of DEPTH; element offsets are 64-bit.
    """
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    v = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, DEPTH)
    n_in, v_in = n < rows, v < vocab
    h = hidden + n.to(tl.int64)[:, None] * width + k[None, :]
    w = weight + v.to(tl.int64)[:, None] * width + k[None, :]
    g0 = tl.zeros((COLUMNS if WEIGHT_FIRST else ROWS, ROWS if WEIGHT_FIRST else COLUMNS), tl.int32)
    g1, g2, g3, g4, g5, g6 = g0, g0, g0, g0, g0, g0
    for _ in range(0, width, DEPTH):
        h0 = tl.load(h, mask=n_in[:, None], other=0)
        h1 = tl.load(h + hidden_plane, mask=n_in[:, None], other=0)
        w0 = tl.load(w, mask=v_in[:, None], other=0)
        w1 = tl.load(w + weight_plane, mask=v_in[:, None], other=0)
        g0 = product(h0, w0, g0, WEIGHT_FIRST)
        g1 = product(h0, w1, g1, WEIGHT_FIRST)
        g1 = product(h1, w0, g1, WEIGHT_FIRST)
        g2 = product(h1, w1, g2, WEIGHT_FIRST)
        if DIGITS >= 3:
            h2 = tl.load(h + 2 * hidden_plane, mask=n_in[:, None], other=0)
            w2 = tl.load(w + 2 * weight_plane, mask=v_in[:, None], other=0)
            g2 = product(h0, w2, g2, WEIGHT_FIRST)
            g2 = product(h2, w0, g2, WEIGHT_FIRST)
            g3 = product(h1, w2, g3, WEIGHT_FIRST)
            g3 = product(h2, w1, g3, WEIGHT_FIRST)
            g4 = product(h2, w2, g4, WEIGHT_FIRST)
            if DIGITS == 4:
                h3 = tl.load(h + 3 * hidden_plane, mask=n_in[:, None], other=0)
                w3 = tl.load(w + 3 * weight_plane, mask=v_in[:, None], other=0)
                g3 = product(h0, w3, g3, WEIGHT_FIRST)
                g3 = product(h3, w0, g3, WEIGHT_FIRST)
                g4 = product(h1, w3, g4, WEIGHT_FIRST)
                g4 = product(h3, w1, g4, WEIGHT_FIRST)
                g5 = product(h2, w3, g5, WEIGHT_FIRST)
                g5 = product(h3, w2, g5, WEIGHT_FIRST)
                g6 = product(h3, w3, g6, WEIGHT_FIRST)
        h += DEPTH
        w += DEPTH
    low = g0.to(tl.int64) + (g1.to(tl.int64) << 7) + (g2.to(tl.int64) << 14)
    high = g3.to(tl.int64)
    if DIGITS >= 3:
        high += g4.to(tl.int64) << 7
    if DIGITS == 4:
        high += (g5.to(tl.int64) << 14) + (g6.to(tl.int64) << 21)
    total, exponent = words_to_float32(low, high, TWO_WORDS)
    he = tl.load(hidden_exponents + n, mask=n_in, other=0)
    hf = tl.load(hidden_flags + n, mask=n_in, other=0)
    we = tl.load(weight_exponents + v, mask=v_in, other=0)
    wf = tl.load(weight_flags + v, mask=v_in, other=0)
    b = we
    if BIAS != "":
        b = float32_bits(tl.load(bias + v, mask=v_in, other=0), BIAS)
    if WEIGHT_FIRST:
        bits = finish(
            total, exponent, he[None, :], hf[None, :], we[:, None], wf[:, None], b[:, None], DIGITS, BIAS != "", DTYPE
        )
        tl.store(out + n.to(tl.int64)[None, :] * out_stride + v[:, None], bits, mask=n_in[None, :] & v_in[:, None])
    else:
        bits = finish(
            total, exponent, he[:, None], hf[:, None], we[None, :], wf[None, :], b[None, :], DIGITS, BIAS != "", DTYPE
        )
        tl.store(out + n.to(tl.int64)[:, None] * out_stride + v[None, :], bits, mask=n_in[:, None] & v_in[None, :])


def two_words(digits: int, length: int) -> bool:
    """Whether D passes 62 bits."""
    return 2 * (7 * digits - 1) + max(1, length - 1).bit_length() > 62


def few_rows_triton(
    hidden: Aligned, weight: Aligned, bias: Tensor | None, out: Tensor, config: dict[str, int] | None = None
) -> None:
    """Fill logits out [N, v] (any row stride) of few rows: limited by reading the weight's planes, each once."""
    rows, vocab = hidden.shape[0], weight.shape[0]
    width = hidden.planes.shape[2]
    block = min(64, max(16, triton.next_power_of_2(rows)))
    config = {**_config(hidden.digits, block), **(config or {})}
    while width % config["DEPTH"]:
        config["DEPTH"] //= 2
    grid = (triton.cdiv(rows, block), triton.cdiv(vocab, config["COLUMNS"]))
    with torch.cuda.device(out.device):
        few_rows_kernel[grid](
            hidden.planes, weight.planes, hidden.exponent, hidden.nonfinite.view(torch.int8),
            weight.exponent, weight.nonfinite.view(torch.int8), out if bias is None else bits_of(bias), bits_of(out),
            rows, vocab, width, hidden.planes.stride(0), weight.planes.stride(0), out.stride(0),
            DIGITS=hidden.digits, TWO_WORDS=two_words(hidden.digits, hidden.length),
            BIAS="" if bias is None else str(bias.dtype).removeprefix("torch."),
            DTYPE=str(out.dtype).removeprefix("torch."), ROWS=block, **config,
        )  # fmt: skip


def _config(digits: int, rows: int) -> dict[str, int]:
    """Tiles that were fastest on an H200; the bits do not depend on them."""
    if digits == 4:
        return {"COLUMNS": 64, "DEPTH": 64, "WEIGHT_FIRST": rows > 16, "num_warps": 4, "num_stages": 3}
    if rows == 64:
        return {"COLUMNS": 128, "DEPTH": 128, "WEIGHT_FIRST": True, "num_warps": 8, "num_stages": 3}
    if rows == 32:
        return {"COLUMNS": 64, "DEPTH": 128, "WEIGHT_FIRST": True, "num_warps": 4, "num_stages": 3}
    warps, stages = (8, 4) if digits == 3 else (4, 3)
    return {"COLUMNS": 64, "DEPTH": 256, "WEIGHT_FIRST": False, "num_warps": warps, "num_stages": stages}
