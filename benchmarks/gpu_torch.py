"""The torch half of benchmarks/gpu.py: device time, by events around graph replays or long loops."""

import statistics
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from gpu import GRADIENT_TOKENS, SMALL, TOKENS, K, Row, V, bandwidth, emit, rounds, tops

import rlk_torch

_SLICE = 250.0  # milliseconds of work between two looks at the clock: the card reaches its sustained clocks

Call = Callable[[], object]


def replayed(call: Call, repeats: int = 20) -> Call:
    """The call as a graph of repeats, so that launches leave no gaps; divide its time by repeats."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    return graph.replay


def elapsed(call: Call, count: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def in_turns(calls: Mapping[str, Call]) -> dict[str, float]:
    """Milliseconds of each: the median of rounds in which they take turns, each long enough to heat the card."""
    counts = {}
    for name, call in calls.items():
        elapsed(call, 2)
        counts[name] = max(1, round(_SLICE / elapsed(call, 2)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds()):
        for name, call in calls.items():
            times[name].append(elapsed(call, counts[name]))
    return {name: statistics.median(every) for name, every in times.items()}


def gather_rows(table: torch.Tensor) -> list[Row]:
    rows = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        weight = table.to(dtype)
        ids = torch.randint(0, V, (TOKENS,), device="cuda")
        source = torch.randn((TOKENS, K), device="cuda").to(dtype)
        target = torch.empty_like(source)
        times = in_turns(
            {
                "copy": lambda: target.copy_(source),  # noqa: B023
                "torch": lambda: F.embedding(ids, weight),  # noqa: B023
                "ours": lambda: rlk_torch.embedding(ids, weight, check_ids=False),  # noqa: B023
            }
        )
        nbytes = 2 * source.nbytes
        name = f"gather {str(dtype).removeprefix('torch.')}"
        ours = times["ours"]
        promised = 1 / 0.95 if dtype == torch.bfloat16 else None
        rows.append(Row(name, TOKENS, ours, bandwidth(nbytes, ours), "device copy", ours / times["copy"], promised))
        rows.append(Row(name, TOKENS, ours, bandwidth(nbytes, ours), "F.embedding", ours / times["torch"]))
    for count in SMALL:
        few = torch.randint(0, V, (count,), device="cuda")
        calls = {
            "torch": replayed(lambda: F.embedding(few, table)),  # noqa: B023
            "ours": replayed(lambda: rlk_torch.embedding(few, table, check_ids=False)),  # noqa: B023
        }
        times = {name: time / 20 for name, time in in_turns(calls).items()}
        rate = bandwidth(2 * count * K * 2, times["ours"])
        rows.append(
            Row("gather bfloat16", count, times["ours"], rate, "F.embedding", times["ours"] / times["torch"], 1)
        )
    return rows


def align_rows(table: torch.Tensor) -> list[Row]:
    target = torch.empty_like(table)
    rows = []
    for digits in (2, 3, 4):
        times = in_turns({"copy": lambda: target.copy_(table), "ours": lambda: rlk_torch.align(table, digits)})  # noqa: B023
        ours, nbytes = times["ours"], table.nbytes + digits * table.numel()
        ratio = ours / times["copy"]
        rows.append(Row(f"align digits {digits}", V, ours, bandwidth(nbytes, ours), "copy of the table", ratio, 6))
    return rows


def lm_head_rows(table: torch.Tensor) -> list[Row]:
    rows = []
    bounds = {(1, 2): 1.1, (16, 2): 1.1, (1, 3): 1.6, (16, 3): 1.6, (2048, 3): 4.3}
    aligned = {digits: rlk_torch.align(table, digits) for digits in (2, 3)}
    products = {2: 4, 3: 9}
    for count in (1, 16, 32, 64, 128, 256, 512, 2048):
        hidden = torch.randn((count, K), device="cuda").bfloat16()
        calls: dict[str, Call] = {"cuBLAS": lambda: hidden @ table.T}  # noqa: B023
        for digits, weight in aligned.items():
            calls[f"digits {digits}"] = lambda w=weight, d=digits: rlk_torch.lm_head(hidden, w, digits=d)  # noqa: B023
        if count <= 64:
            calls = {name: replayed(call) for name, call in calls.items()}
        repeats = 20 if count <= 64 else 1
        times = {name: time / repeats for name, time in in_turns(calls).items()}
        for digits in aligned:
            ours = times[f"digits {digits}"]
            made = products[digits] if count <= 512 else digits * (digits + 1) // 2
            rate, ratio = tops(made, count, ours), ours / times["cuBLAS"]
            rows.append(
                Row(f"lm_head digits {digits}", count, ours, rate, "cuBLAS bf16", ratio, bounds.get((count, digits)))
            )
    hidden = torch.randn((16, K), device="cuda").bfloat16()
    times = in_turns(
        {
            "mv": lambda: [torch.mv(table, row) for row in hidden],
            "ours": lambda: rlk_torch.lm_head(hidden, aligned[3]),
            "plain": lambda: rlk_torch.lm_head(hidden, table),
        }
    )
    rows.append(
        Row(
            "lm_head digits 3",
            16,
            times["ours"],
            tops(9, 16, times["ours"]),
            "row-wise torch.mv",
            times["ours"] / times["mv"],
        )
    )
    plain = times["plain"]
    rows.append(
        Row("the same, weight not aligned", 16, plain, tops(9, 16, plain), "row-wise torch.mv", plain / times["mv"])
    )
    return rows


def embedding_gradient_rows(table: torch.Tensor) -> list[Row]:
    """Against torch's own gradient under deterministic algorithms, which adds in floating point."""
    rows = []
    weight = table.detach().requires_grad_()
    grad = torch.randn((GRADIENT_TOKENS, K), device="cuda").bfloat16()
    ranks = 1 / torch.arange(1, V + 1, device="cuda").float()
    zipf = torch.randperm(V, device="cuda")[torch.multinomial(ranks, GRADIENT_TOKENS, replacement=True)]
    uniform = torch.randint(0, V, (GRADIENT_TOKENS,), device="cuda")
    torch.use_deterministic_algorithms(True)
    try:
        for name, ids in {"uniform": uniform, "Zipf": zipf, "one id": torch.full_like(uniform, 7)}.items():
            outputs = {
                "torch": F.embedding(ids, weight),
                "ours": rlk_torch.embedding(ids, weight, check_ids=False),
            }
            calls = {
                name: lambda y=y: torch.autograd.grad(y, weight, grad, retain_graph=True) for name, y in outputs.items()
            }
            times = in_turns(calls)
            ours, ratio = times["ours"], times["ours"] / times["torch"]
            rate = bandwidth(grad.nbytes + table.nbytes, ours)
            rows.append(Row(f"embedding gradient, {name}", GRADIENT_TOKENS, ours, rate, "F.embedding's", ratio, 3))
    finally:
        torch.use_deterministic_algorithms(False)
    return rows


def lm_head_gradient_rows(table: torch.Tensor) -> list[Row]:
    """Each argument by itself: torch computes the gradients of all arguments that require one."""
    hidden = torch.randn((2048, K), device="cuda").bfloat16()
    grad = (torch.randn((2048, V), device="cuda") * 1e-3).bfloat16()
    rows = []
    for name, argument, peer in (
        ("hidden", hidden, lambda: grad @ table),
        ("weight", table, lambda: grad.T @ hidden),
    ):
        wanted = argument.detach().requires_grad_()
        logits = rlk_torch.lm_head(wanted, table) if name == "hidden" else rlk_torch.lm_head(hidden, wanted)
        ours = lambda x=wanted, y=logits: torch.autograd.grad(y, x, grad, retain_graph=True)  # noqa: E731
        times = in_turns({"cuBLAS": peer, "ours": ours})
        rate, ratio = tops(10, 2048, times["ours"]), times["ours"] / times["cuBLAS"]
        rows.append(Row(f"lm_head gradient of {name}", 2048, times["ours"], rate, "cuBLAS bf16", ratio))
    return rows


def logprob_rows(table: torch.Tensor) -> list[Row]:
    """On ready float32 logits, against torch's own."""
    hidden, ids = torch.randn((2048, K), device="cuda").bfloat16(), torch.randint(0, V, (2048,), device="cuda")
    logits = rlk_torch.lm_head_fp32(hidden, table)
    times = in_turns(
        {
            "torch": lambda: torch.log_softmax(logits, 1).gather(1, ids[:, None]),
            "ours": lambda: rlk_torch.selected_logprob(logits, ids, check_ids=False),
        }
    )
    ours = times["ours"]
    rate, ratio = bandwidth(2 * logits.nbytes, ours), ours / times["torch"]
    rows = [Row("selected_logprob", 2048, ours, rate, "log_softmax, gather", ratio, 3)]
    leaf, upstream = logits.requires_grad_(), torch.randn(2048, device="cuda")
    outs = {
        "torch": torch.log_softmax(leaf, 1).gather(1, ids[:, None])[:, 0],
        "ours": rlk_torch.selected_logprob(leaf, ids, check_ids=False),
    }
    times = in_turns(
        {name: (lambda y=y: torch.autograd.grad(y, leaf, upstream, retain_graph=True)) for name, y in outs.items()}
    )
    ours = times["ours"]
    rate, ratio = bandwidth(2 * logits.nbytes, ours), ours / times["torch"]
    rows.append(Row("its gradient", 2048, ours, rate, "log_softmax's", ratio))
    return rows


def linear_logprob_rows(table: torch.Tensor) -> list[Row]:
    """From hidden states, against the logits alone; weight aligned before."""
    hidden, ids = torch.randn((2048, K), device="cuda").bfloat16(), torch.randint(0, V, (2048,), device="cuda")
    weight = rlk_torch.align(table, 4)
    times = in_turns(
        {
            "head": lambda: rlk_torch.lm_head_fp32(hidden, weight),
            "ours": lambda: rlk_torch.linear_logprob(hidden, weight, ids, check_ids=False),
        }
    )
    ours = times["ours"]
    return [Row("linear_logprob", 2048, ours, tops(10, 2048, ours), "lm_head_fp32", ours / times["head"], 1.5)]


def main() -> None:
    table = torch.empty((V, K), dtype=torch.bfloat16, device="cuda")
    for part in table.split(16384):
        part.copy_(torch.randn(part.shape, device="cuda") * 0.02)
    rows = [*gather_rows(table), *align_rows(table), *lm_head_rows(table)]
    rows += [*embedding_gradient_rows(table), *lm_head_gradient_rows(table)]
    rows += [*logprob_rows(table), *linear_logprob_rows(table)]
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}"
    emit(rows, versions)


if __name__ == "__main__":
    main()
