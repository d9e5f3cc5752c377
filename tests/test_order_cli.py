"""`crosscheck order`: what it says in the terminal, in JSON and by its exit code, of planted orders and real ones."""

import json
from io import StringIO

import numpy as np
import planted_orders
import pytest
import simulated_sums as sums
from click.testing import CliRunner, Result
from rich.console import Console

from crosscheck.cli import main
from crosscheck.order.bench import Bench
from crosscheck.order.report import order_json, print_order
from crosscheck.order.run import OrderRun, Setting
from crosscheck.order.survey import Order, Part, Survey, survey
from crosscheck.order.tree import ADD, Tree
from crosscheck.order.words import shared
from crosscheck.threads import fair_threads


def order(*words: str, known=None) -> Result:
    result = CliRunner().invoke(main, ["order", *words], obj=known)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def planted(name: str, *words: str) -> Result:
    sizes = ("--width", "16", "--rows", "1,5", "--vocab", "3")
    return order("--op", "lm_head", "--backend", name, *sizes, *words, known=planted_orders.REGISTRY)


# Refused ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--op", "lm_head"], "nothing to reveal; expected --candidate NAME=torch:MODULE:FUNCTION or --backend NAME"),
        (["--op", "lm_head", "--backend", "cray"], "no backend 'cray'; the known ones are numpy, torch-cpu"),
        (["--op", "lm_head", "--candidate", "mine"], "the candidate 'mine' cannot be read; expected NAME=torch"),
        (
            ["--op", "lm_head", "--backend", "numpy", "--device", "cuda"],
            "--device means something with --candidate only; --backend names its device",
        ),
        (
            ["--op", "lm_head", "--backend", "jax-cpu", "--mode", "compile"],
            "jax-cpu has no mode 'compile'; expected one of eager, jit",
        ),
        (
            ["--op", "lm_head", "--backend", "numpy", "--rows", "257", "--vocab", "151936"],
            "257 rows and a vocab of 151936 have 39047552 results; expected at most 16777216",
        ),
        (
            ["--op", "lm_head", "--backend", "numpy", "--json", "/no/such/folder/report.json"],
            "the report cannot be written to /no/such/folder/report.json: No such file or directory",
        ),
        (
            ["--op", "lm_head", "--candidate", "mine=torch:no_such_module:f"],
            "mine is not available: no_such_module cannot be imported: ModuleNotFoundError: No module named "
            "'no_such_module'; nothing was revealed",
        ),
    ],
)
def test_unusable_input_is_2_and_says_what_is_wrong(words, message):
    result = order(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"crosscheck: {message}")


def test_only_operators_that_add_are_offered_and_taken():
    help_text, result = order("--help").stdout, order("--op", "embedding", "--backend", "numpy")
    assert "--op [lm_head|lm_head_fp32]" in help_text and "an embedding adds nothing" in " ".join(help_text.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'embedding' is not one of 'lm_head', 'lm_head_fp32'" in result.stderr


@pytest.mark.parametrize("width", ["1", "64,5000", "many", ""])
def test_widths_that_cannot_be_used_are_refused(width):
    result = order("--op", "lm_head", "--backend", "numpy", "--width", width)
    assert result.exit_code == 2
    assert f"{width!r}; expected numbers from 2 to 4096 with commas" in result.stderr


def test_an_interrupt_is_130(monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("crosscheck.cli_order.order_run", interrupted)
    result = order("--op", "lm_head", "--backend", "numpy")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "crosscheck: interrupted; every process that was started has been ended\n"


# Planted ---------------------------------------------------------------------------------------------------
def test_one_order_is_0():
    result = planted("InOrder", "--dtype", "bf16")
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert result.exit_code == 0 and lines[-1] == "ONE ORDER: InOrder has one order"
    assert "A  K 16: sequential; accumulators of 24 bits (float32)" in lines
    assert "InOrder: one order, for 1 and 5 rows and a vocab of 3, at every position" in lines


def test_an_order_that_changes_with_the_rows_is_1(tmp_path):
    result = planted("PairwiseFromFiveRowsOn", "--json", str(tmp_path / "report.json"))
    lines = result.stdout.splitlines()
    assert result.exit_code == 1 and lines[-1] == "CHANGES: PairwiseFromFiveRowsOn changes its order"
    assert "PairwiseFromFiveRowsOn: the order changes with the number of rows" in lines
    meeting = "products 0 and 2 first meet in the sum of 0..2 in A, and of 0..3 in B"
    assert f"  between 1 and 5 rows (K 16, vocab 3): A, then B; {meeting}" in lines
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["schema"], report["outcome"]) == ("crosscheck-order/1", "changes")
    assert report["command"].endswith(f"--rows 1,5 --vocab 3 --json {tmp_path / 'report.json'}")
    found = report["orders"]
    assert [found[letter]["shape"] for letter in "AB"] == ["sequential", "pairwise"]
    trees = [Tree.of(found[letter]["leaves"], found[letter]["nodes"], found[letter]["kinds"]) for letter in "AB"]
    assert trees == [sums.tree_of(sums.sequential(16)), sums.tree_of(sums.pairwise(range(16)))]
    assert all(found[letter]["replayed"] and found[letter]["widths"][:-1] == [24] * 14 for letter in "AB")
    parts = [setting["parts"] for setting in report["candidates"]["PairwiseFromFiveRowsOn"]["settings"]]
    assert [[part["order"] for part in some] for some in parts] == [["A"], ["B"]]


def test_an_order_that_changes_with_the_column_is_1(tmp_path):
    result = planted("PairwiseInTheLastColumn", "--json", str(tmp_path / "report.json"))
    assert result.exit_code == 1
    assert "PairwiseInTheLastColumn: the order changes with the position" in result.stdout.splitlines()
    assert "A in columns 0..1; B in column 2" in result.stdout
    assert "one mask a call, since positions have different sums" in result.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    part = report["candidates"]["PairwiseInTheLastColumn"]["settings"][1]["parts"][1]
    assert (part["order"], part["where"], part["rows"], part["columns"]) == ("B", "column 2", [[0, 4]], [[2, 2]])


def test_two_candidates_are_compared():
    """One in torch, with bfloat16 accumulators."""
    result = planted("InOrder", "--candidate", "mine=torch:planted_torch:bf16_accumulator", "--rows", "2")
    assert result.exit_code == 0
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert "A  K 16: sequential; accumulators of 8 bits (bfloat16)" in lines
    assert "B  K 16: as A; accumulators of 24 bits (float32)" in lines
    assert "mine and InOrder have the same order, but for the accumulators, at 1 of 1 setting" in lines
    assert lines[-1] == "ONE ORDER: mine has one order; InOrder has one order"


def shared_by(**letters: str) -> list[str]:
    """What is said of candidates with these orders, a letter for each setting; "." is no tree, and " " no result."""
    one = sums.tree_of(sums.sequential(4))
    known = {letter: Order(one, (None,) * 3, None, 100 + i) for i, letter in enumerate("ABCDEFGH")}
    known["a"] = Order(one, (24, 24, None), None, 0)
    known["b"] = Order(sums.tree_of(sums.pairwise(range(4))), (24, 24, None), None, 0)
    run = OrderRun("lm_head", "float32", "eager", [Setting(4, rows, 1) for rows in (1, 2, 3)])
    for name, of_each in letters.items():
        run.surveys[name] = {
            setting: Survey([Part(np.ones((setting.rows, 1), bool), known.get(letter))])
            for setting, letter in zip(run.settings, of_each, strict=True)
            if letter != " "
        }
    return shared(run)


def test_those_with_one_order_are_told_together_and_others_by_two():
    assert shared_by(x="ABC", y="ABC", z="ABC") == ["x, y and z have the same order at every setting"]
    assert shared_by(x="bbb", y="bbb", z="bab") == [
        "x and y have the same order at every setting",
        "x and z have the same order at 2 of 3 settings",
    ]
    assert shared_by(x="bA ", y="ba ") == [
        "x and y have the same order at 1 of 2 settings, and at 1 more setting but for the accumulators"
    ]
    assert shared_by(x="AAA", y="aab") == [
        "x and y have the same order, but for the accumulators, at 2 of 3 settings",
    ]
    assert shared_by(x="bbb", y="AAA", z="AAb") == [
        "x and z have the same order at 1 of 3 settings",
        "y and z have the same order at 2 of 3 settings",
        "x and y have the same order at no setting",
    ]


def test_many_without_a_common_order_are_one_sentence_and_what_gave_no_result_is_compared_with_nothing():
    many = dict(zip("pqrstuvw", ["bbb", "...", "...", *("...",) * 5], strict=True))
    assert shared_by(**many) == ["no two of p, q, r, s, t, u, v and w have the same order at any setting"]
    assert shared_by(x="AAA", y="...") == ["x and y have the same order at no setting"]
    assert shared_by(x="AAA", y="   ") == []


def test_another_width_is_compared_with_the_first():
    result = planted("InOrder", "--width", "16,24", "--rows", "2")
    same = "the first 16 products have the same order at 1 of 1 setting: zeros that pad K change no bit"
    assert f"  K 16 and 24: {same}" in result.stdout.splitlines()


def test_a_compensated_sum_is_1():
    result = planted("Kahan", "--dtype", "fp32", "--rows", "2")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "NO TREE: Kahan is not a sum in a fixed order"
    assert "rounded to 25 bits, have another sum: it may be a compensated sum" in result.stdout


@pytest.mark.parametrize(
    ("name", "timeout", "text"),
    [
        ("Raises", "60", "it raised ValueError: planted"),
        ("IsKilled", "60", "it crashed: its process was ended by SIGKILL"),
        ("OtherShape", "60", "its result has shape [1, 2, 3]; expected [2, 3]"),
        ("Hangs", "1", "it hung: no answer within 1 s; --timeout SECONDS allows more"),
    ],
)
def test_a_candidate_without_a_result_is_1(name, timeout, text):
    result = planted(name, "--rows", "2", "--timeout", timeout)
    assert result.exit_code == 1
    assert f"  K 16, 2 rows, vocab 3: {text}" in result.stdout.splitlines()
    assert result.stdout.splitlines()[-1] == f"FAILED: {name} gave no result"


# Real ------------------------------------------------------------------------------------------------------
def test_the_contract_has_no_order_in_any_framework(tmp_path):
    names = ("numpy", "torch-cpu", "jax-cpu")
    backends = [word for name in names for word in ("--backend", name)]
    sizes = ("--width", "16", "--rows", "1,3", "--vocab", "5")
    result = order("--op", "lm_head", *backends, *sizes, "--json", str(tmp_path / "report.json"))
    assert result.exit_code == 0
    last = result.stdout.splitlines()[-1]
    assert last.startswith("NO ORDER: numpy has no order, for its sums are exact; torch-cpu has no order")
    report = json.loads((tmp_path / "report.json").read_text())
    assert [order["shape"] for order in report["orders"].values()] == ["all at once"]
    assert "numpy, torch-cpu and jax-cpu have the same order at every setting" in result.stdout.splitlines()


def torch_linear(hidden, weight):
    import torch

    return torch.nn.functional.linear(torch.from_numpy(hidden), torch.from_numpy(weight)).numpy()


def torch_mv(hidden, weight):
    import torch

    matrix = torch.from_numpy(weight)
    return torch.stack([torch.mv(matrix, row) for row in torch.from_numpy(hidden)]).numpy()


def jax_dot(hidden, weight):
    import jax

    return np.asarray(jax.jit(jax.numpy.inner)(hidden, weight))


@pytest.mark.parametrize("head", [torch_linear, torch_mv, jax_dot])
def test_the_order_of_a_real_sum_predicts_its_bits(head):
    """Whatever the order on this machine, NumPy gets the same bits when it adds other values in it."""
    rows, vocab, width = 3, 5, 24

    def both(hidden, weight):
        return head(np.broadcast_to(hidden, (rows, width)).copy(), np.broadcast_to(weight, (vocab, width)).copy())

    def call(hidden, weight, rows, vocab):
        weights = np.broadcast_to(weight, (len(hidden), *weight.shape[1:]))
        return np.stack([both(*inputs) for inputs in zip(hidden, weights, strict=True)])

    found = survey(Bench(call, rows, vocab, width, "float32"))
    assert sum(part.cells for part in found.parts).all()
    products = np.random.default_rng(0).standard_normal((20, width), np.float32)
    results = call(products[:, None], np.ones((1, 1, width), np.float32), rows, vocab)
    for part in found.parts:
        assert part.order is not None, part.reason
        assert part.order.tree.leaves == width
        if set(part.order.tree.kinds) == {ADD} and set(part.order.widths) <= {24, None}:
            expected = sums.simulated(part.order.tree)(products.astype(np.float64))
            assert (results[:, part.cells] == expected[:, None]).all()


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_fits_the_terminal(width):
    one, other = sums.tree_of(sums.halves(sums.strided(64, 16))), sums.tree_of(sums.sequential(64))

    def call(hidden, weight, rows, vocab):
        products = (np.broadcast_to(hidden, (len(hidden), rows, 64)) * weight).astype(np.float64)
        found = sums.simulated(one if rows < 9 else other)(products.reshape(-1, 64))
        return found.reshape(len(hidden), rows, 1).astype(np.float32)

    settings = [Setting(64, rows, 1) for rows in (1, 17)]
    said = {"implementations": {"lm_head": "a_package_with_a_long_name.a_module:a_function"}, "device": "cpu",
            "threads": fair_threads(1), "versions": {"numpy": np.__version__}}  # fmt: skip
    run = OrderRun("lm_head", "float32", "eager", settings, {"mine": said}, {}, {"mine": {}})
    run.surveys["mine"] = {setting: survey(Bench(call, setting.rows, 1, 64, "float32")) for setting in settings}
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    print_order(console, run)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert any(line.startswith("A  K 64: 16 lanes strided by 16, each sequential") for line in lines)
    assert any(line.rstrip().endswith("└── the same with all products + 1") for line in lines)
    assert lines[-1] == "CHANGES: mine changes its order"
    json.dumps(order_json(run, "crosscheck order"), allow_nan=False)
