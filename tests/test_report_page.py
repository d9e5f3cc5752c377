"""The HTML report in a real browser: it says what the JSON says, and asks for nothing."""

import pytest
import reported
from pages import CASE, MADE, OPEN_ALL, REPORTS, SIGNS, texts

from crosscheck.report_text import printable
from crosscheck.verdict import CHECKS


# What it asks for ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", REPORTS)
def test_it_asks_for_nothing_and_complains_of_nothing(opened, name):
    shown = opened(name)
    shown.evaluate(OPEN_ALL)
    shown.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    asked = [event["request"]["url"] for event in shown.events("Network.requestWillBeSent")]
    assert asked[0].startswith("file://") and all(url.startswith("data:image/png") for url in asked[1:])
    assert shown.events("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []


# What it says ----------------------------------------------------------------------------------------------
def test_outcome_and_numbers_are_on_top(seen, reports):
    shown, report = seen("planted"), reports["planted"]
    assert texts(shown, "h1") == ["≠Different"]
    numbers = dict(zip(texts(shown, ".counts dt"), texts(shown, ".counts dd"), strict=True))
    outcomes = [verdict["outcome"] for verdict in report["verdicts"]]
    assert numbers == {
        "cases": "3", "backends": "7", "verdicts": "21",
        **{outcome: f"{sign}{outcomes.count(outcome)}" for outcome, sign in SIGNS.items()},
    }  # fmt: skip


def test_every_verdict_has_its_cell_and_the_cell_leads_to_its_detail(seen, reports):
    shown, report = seen("planted"), reports["planted"]
    cells = shown.evaluate(
        "[...document.querySelectorAll('.matrix tr[data-case]')].map(row => [row.dataset.case,"
        " ...[...row.cells].slice(1).map(cell => [cell.textContent.trim(),"
        " document.getElementById(decodeURIComponent(cell.firstElementChild.hash.slice(1))).closest('details')]"
        ".map(x => x.dataset ? {...x.dataset} : x))])"
    )
    backends = texts(shown, ".matrix thead tr:first-child th")[1:]
    assert backends == list(report["backends"])
    said = {(verdict["case"], verdict["backend"]): verdict for verdict in report["verdicts"]}
    assert len(cells) * len(backends) == len(said)
    for case, *row in cells:
        for backend, (text, target) in zip(backends, row, strict=True):
            verdict = said[case, backend]
            assert text.startswith(SIGNS[verdict["outcome"]])
            assert target["case"] == case
            assert not verdict["failed"] or target["bad"].startswith(f"{backend} eager ")
    assert {said[case, backend]["outcome"] for case, backend in said} == set(SIGNS)


def test_a_failure_shows_both_values_both_patterns_its_trials_and_how_to_repeat_it(seen, reports):
    shown = seen("planted", fragment=f"#{CASE}:FlipsBits:eager")
    (verdict,) = [v for v in reports["planted"]["verdicts"] if (v["case"], v["backend"]) == (CASE, "FlipsBits")]
    difference = verdict["checks"]["bits"]["failed"][0]["difference"]
    body = f'[id="{CASE}:FlipsBits:eager"]'
    values = [difference["actual"], difference["expected"]]
    rows = texts(shown, f"{body} .first tbody tr > *")
    assert rows[0::3] == ["actual", "expected"]
    assert [float(value) for value in rows[1::3]] == pytest.approx(values, rel=1e-5)
    assert rows[2::3] == [difference["actual_bits"], difference["expected_bits"]]
    (digits,) = texts(shown, f"{body} .digits")
    actual, expected = digits.removeprefix("actual ").split(" expected ")
    for shown_digits, bits in ((actual, difference["actual_bits"]), (expected, difference["expected_bits"])):
        assert int(shown_digits.replace(" ", ""), 2) == int(bits, 16)
    assert texts(shown, f"{body} .trials tbody tr > *")[:5] == ["bits", "the call itself", "27", "27", "[0, 0]"]
    assert texts(shown, f"{body} .command pre") == [verdict["repeat"]]
    assert texts(shown, f"{body} .reproducers li") == [reported.REPRODUCER.sentence()]


def test_a_verdict_without_an_answer_shows_what_happened(seen):
    shown = seen("planted")
    said = f"crashed: its process exited, last words: {printable(reported.HOSTILE)}"
    assert texts(shown, f'[id="{CASE}:Dies:eager"] .said') == [" ".join(said.split())]
    assert texts(shown, f'[id="{CASE}:Hangs:eager"] .said') == ["timed out: no answer within 1 s, in: zero rows after"]


def test_checks_count_cases_as_the_terminal_does(seen):
    rows = texts(seen("planted"), "#checks tbody tr")
    assert "FlipsBits eager plantednot all: 0/2" + "2/2" * 9 in rows
    assert "Dies eager plantednot all: 0/2" + "–" * 9 in rows


def test_candidates_have_their_sentences_their_agreement_and_their_controls(seen, reports):
    shown, report = seen("candidates"), reports["candidates"]
    assert dict(zip(texts(shown, ".sentences dt"), texts(shown, ".sentences dd"), strict=True)) == report["candidates"]
    assert texts(shown, ".agreement tbody tr") == [
        "1 contract=2/20/2",
        "2 Planted eager2/2=0/2",
        "3 FlipsBits eager0/20/2=",
    ]
    controls = texts(shown, ".controls li")
    assert controls[0] == "=a batch-variant backend: caught"
    assert controls[1] == "≠a flipped bit: not caught, so this judge is not to be believed"


def test_an_interrupted_run_is_said_to_be_one_before_anything_else(seen, reports):
    shown = seen("interrupted")
    assert texts(shown, "h1") == ["…Interrupted"]
    (notice,) = texts(shown, "#interrupted")
    due = reports["interrupted"]["due"]
    assert notice.startswith(f"This run was interrupted. {MADE} of {due} verdicts made")
    assert shown.evaluate("document.getElementById('interrupted').getBoundingClientRect().bottom < innerHeight / 2")
    cells = texts(shown, ".matrix tbody td")
    assert len(cells) == due and cells.count("· not made") == due - MADE
    assert texts(seen("planted"), "#interrupted") == []


def test_each_side_and_the_machine_are_described(seen, reports):
    shown, report = seen("planted"), reports["planted"]
    cards = texts(shown, ".card")
    assert [card.split()[0] for card in cards] == [*report["backends"], "machine"]
    for word in ("device cpu", "numpy 2", "views for FlipsBits", "lm_head: planted (eager)"):
        assert word in cards[1]
    assert report["machine"]["architecture"] in cards[-1]


def test_every_check_outcome_and_sign_is_explained(seen):
    legend = texts(seen("planted"), "#legend dt")
    assert set(CHECKS) <= set(legend)
    assert {f"{sign}{outcome}" for outcome, sign in SIGNS.items()} <= set(legend)


# What it counts --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["planted", "equal"])
def test_the_bars_of_an_accuracy_add_up_to_its_sample_and_are_as_long_as_their_counts(opened, reports, name):
    shown = opened(name)
    shown.evaluate(OPEN_ALL)
    found = shown.evaluate(
        "[...document.querySelectorAll('.case .histogram')].map(table => [table.closest('.case').dataset.case,"
        " ...[0, 1].map(k => [...table.querySelectorAll(`[data-series='${k}']`)].map(cell =>"
        " [Number(cell.textContent), cell.nextElementSibling.firstElementChild?.getBoundingClientRect().width ?? 0]))])"
    )
    of_case = {v["case"]: v["accuracy"]["samples"] for v in reports[name]["verdicts"] if v["accuracy"]}
    assert {case for case, *_ in found} == set(of_case)
    for case, *series in found:
        for rows in series:
            assert sum(count for count, _ in rows) == of_case[case]
            most, longest = max(rows)
            for count, length in rows:
                assert length == pytest.approx(longest * count / most, abs=2.1)


def test_backends_with_the_same_errors_share_a_histogram(seen):
    shown = seen("equal")
    assert len(texts(shown, f'[id="{CASE}"] .histogram')) == 1
    assert len(texts(shown, f'[id="{CASE}"] tbody tr th[scope="row"]')) > 2


def test_heat_map_and_distances_add_up_to_the_elements_that_differ(opened, reports):
    shown = opened("planted")
    shown.evaluate(OPEN_ALL)
    maps = 0
    for verdict in reports["planted"]["verdicts"]:
        failures = [failure for check in verdict["checks"].values() for failure in check["failed"]]
        spread = next((failure for failure in failures if failure["spread"]), None)
        if spread is None:
            continue
        maps += 1
        body = f'[id="{verdict["case"]}:{verdict["backend"]}:eager"]'
        counts = texts(shown, f"{body} .halves .histogram [data-series]")
        assert sum(map(int, counts)) == sum(map(sum, spread["spread"]["grid"])) == spread["difference"]["count"]
        inked = shown.evaluate(
            f"(async () => {{ const image = document.querySelector({body + ' .heat img'!r}); await image.decode();"
            " const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight).getContext('2d');"
            " canvas.drawImage(image, 0, 0); const data = canvas.getImageData(0, 0, image.naturalWidth,"
            " image.naturalHeight).data; return [...data].filter((value, i) => i % 4 == 3).map(Boolean) })()"
        )
        assert inked == [count > 0 for row in spread["spread"]["grid"] for count in row]
    assert maps >= 5
