"""The HTML report in use: its filter and links, on any screen, with any means, and whatever a text holds."""

import pytest
import reported
from browser import chromium
from pages import CASE, OPEN_ALL, REPORTS, SIGNS, texts, type_words, visible

from crosscheck.report_text import printable


# Filter and links ------------------------------------------------------------------------------------------
def test_the_filter_shows_cases_that_have_all_words_and_hides_the_others(opened):
    shown = opened("planted")
    ids = [case.id for case in reported.CASES]
    assert visible(shown, ".matrix [data-case]") == visible(shown, ".case") == ids
    type_words(shown, "LM_head  bf16")
    assert visible(shown, ".matrix [data-case]") == visible(shown, ".case") == [ids[0]]
    assert set(visible(shown, ".verdict")) == {ids[0]}
    assert texts(shown, "#shown") == ["1 of 3 cases"]
    assert shown.evaluate("[...document.querySelectorAll('.matrix tbody')].map(x => x.checkVisibility())") == [
        True,
        False,
    ]
    type_words(shown, "timed out")
    assert visible(shown, ".verdict") == ids and len(texts(shown, ".verdict:not([hidden]) .where")) == 3
    type_words(shown, "no such case")
    assert visible(shown, "[data-case]") == [] and visible(shown, "#nothing") == [None]
    type_words(shown, "")
    assert visible(shown, ".matrix [data-case]") == ids and visible(shown, "#nothing") == []


def test_only_what_is_not_equal_hides_the_equal(opened):
    shown = opened("interrupted")  # its first verdicts are of one case
    assert len(visible(shown, ".matrix [data-case]")) == 3
    shown.evaluate("document.getElementById('only').click()")
    assert visible(shown, ".matrix [data-case]") == visible(shown, ".case") == [CASE]
    equal = opened("equal")
    equal.evaluate("document.getElementById('only').click()")
    assert visible(equal, "[data-case]") == [] and texts(equal, "#shown") == ["0 of 3 cases"]


TARGETS = [f"{CASE}:Hangs:eager", f"{reported.CASES[2].id}:FlipsBits:eager", reported.CASES[1].id]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scripts", [True, False])
def test_a_link_from_outside_opens_its_detail(opened, target, scripts):
    shown = opened("planted", fragment=f"#{target}", scripts=scripts)
    top = shown.evaluate(
        f"(place => place.checkVisibility() && place.getBoundingClientRect().top)(document.getElementById({target!r}))"
    )
    assert top is not False and 0 <= top < 900
    others = shown.evaluate("[...document.querySelectorAll('details')].filter(x => x.open).length")
    assert others == 1


@pytest.mark.parametrize("target", TARGETS)
def test_the_script_opens_a_detail_where_the_browser_does_not_by_itself(opened, target):
    shown = opened("planted")
    is_open = f"document.getElementById({target!r}).closest('details').open"
    shown.evaluate(f"history.replaceState(null, '', '#' + encodeURIComponent({target!r}))")  # no navigation
    assert shown.evaluate(is_open) is False
    shown.evaluate("dispatchEvent(new HashChangeEvent('hashchange'))")
    assert shown.evaluate(is_open) is True


def test_a_cell_opens_its_detail_again_and_where_the_filter_hid_it(opened):
    shown = opened("planted")
    open_ = f"document.getElementById('{CASE}:FlipsBits:eager').closest('details').open"
    click = f"document.querySelector('.matrix a[href*=\"{CASE}%3AFlipsBits\"]').click()"
    wait = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    for _ in range(2):  # the second time without a change of the address
        assert shown.evaluate(open_) is False
        shown.evaluate(f"{click}; {wait}")
        assert shown.evaluate(open_) is True
        shown.evaluate(f"{open_} = false")
    type_words(shown, "embedding")
    shown.evaluate(f"{click}; {wait}")
    assert shown.evaluate(open_) is True and CASE in visible(shown, ".verdict")


def test_the_command_is_copied_as_it_is(opened, reports):
    shown = opened("planted")
    shown.evaluate(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async text => { window.copied = text }}});"
        " document.querySelector('header [data-copy]').click()"
    )
    assert shown.evaluate("copied") == printable(reports["planted"]["command"])
    assert texts(shown, "header [data-copy]") == ["Copied"]


# Anyone, anywhere ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_sticks_out_of_the_page(opened, name, width):
    shown = opened(name, width=width, height=740)
    shown.evaluate(OPEN_ALL)
    assert shown.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


CONTRAST = """
(() => {
  const parse = colour => { const n = colour.match(/[\\d.]+/g).map(Number); return [n[0], n[1], n[2], n[3] ?? 1] };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const light = colour => { const [r, g, b] = colour.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
  const paper = element => { const all = []; for (let x = element; x; x = x.parentElement)
    all.unshift(parse(getComputedStyle(x).backgroundColor));
    return all.reduce((below, top) => over(top, below), [255, 255, 255, 1]) };
  const found = []; const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.tagName === "SCRIPT") continue;
    const ground = paper(element), ink = over(parse(getComputedStyle(element).color), ground);
    const [a, b] = [light(ink), light(ground)].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), element.className + ": " + walker.currentNode.data.trim().slice(0, 40)]);
  }
  return found.sort((x, y) => x[0] - y[0]);
})()
"""


@pytest.mark.parametrize("name", ["planted", "candidates", "interrupted"])
@pytest.mark.parametrize("dark", [False, True])
def test_every_text_stands_out_from_what_is_behind_it(opened, name, dark):
    shown = opened(name, dark=dark)
    shown.evaluate(OPEN_ALL)
    found = shown.evaluate(CONTRAST)
    assert len(found) > 200
    assert [entry for entry in found if entry[0] < 4.5] == []


def test_the_page_is_dark_where_a_dark_one_is_wanted(opened):
    colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    light, dark = (opened("planted", dark=wanted).evaluate(colours) for wanted in (False, True))
    brightness = [sum(int(part) for part in colour[4:-1].split(",")) for colour in (*light, *dark)]
    assert brightness[0] > 700 > 200 > brightness[1] and brightness[2] < 100 < 600 < brightness[3]


def test_a_verdict_is_told_by_more_than_its_colour(seen):
    cells = texts(seen("planted"), ".matrix tbody td")
    assert {cell.split()[0] for cell in cells} == set(SIGNS.values())
    assert all(len(cell.split()) > 1 for cell in cells)


def test_tables_name_their_rows_and_columns(seen):
    shown = seen("candidates")
    loose = "[...document.querySelectorAll('th')].filter(cell => !cell.scope).length"
    headless = (
        "[...document.querySelectorAll('table')].filter(table => !table.querySelector('thead th[scope=col]')"
        " || !table.querySelector('tbody th[scope=row]')).length"
    )
    assert shown.evaluate(loose) == 0 and shown.evaluate(headless) == 0
    assert shown.evaluate("[...document.querySelectorAll('img')].every(image => image.alt)")


def test_the_keyboard_reaches_filter_and_cells_and_shows_where_it_is(opened):
    shown = opened("planted")
    reached = []
    for _ in range(12):
        shown.press("Tab")
        reached.append(shown.evaluate(
            "(x => [x.id || x.tagName + (x.closest('.matrix') ? ' of matrix' : ''), getComputedStyle(x).outlineStyle,"
            " parseFloat(getComputedStyle(x).outlineWidth)])(document.activeElement)"
        ))  # fmt: skip
    names = [name for name, *_ in reached]
    assert names[0] == "A" and {"words", "only", "A of matrix"} <= set(names)
    assert all(style != "none" and width >= 1 for _, style, width in reached), reached


def test_without_scripts_there_is_all_but_the_filter(opened):
    shown = opened("planted", scripts=False)
    assert shown.evaluate("document.querySelector('.filter').checkVisibility()") is False
    assert shown.evaluate("[...document.querySelectorAll('button')].some(button => button.checkVisibility())") is False
    assert len(visible(shown, ".matrix [data-case]")) == 3
    assert shown.evaluate("document.querySelector('.verdict').open") is False
    x, y = shown.evaluate("(r => [r.x + 5, r.y + 5])((document.querySelector('#failures').scrollIntoView(),"
                          " document.querySelector('.verdict summary').getBoundingClientRect()))")  # fmt: skip
    shown.click(x, y)
    assert shown.evaluate("document.querySelector('.verdict').open") is True


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_a_browser_the_tests_fail_in_ci_and_are_skipped_elsewhere(monkeypatch, ci, outcome):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no browser: expected one of chromium"):
        chromium()


# Hostile texts ---------------------------------------------------------------------------------------------
def test_a_hostile_text_is_shown_as_text_wherever_it_comes_from(opened):
    shown = opened("hostile")
    shown.evaluate(OPEN_ALL)
    name = " ".join(printable(reported.HOSTILE).split())
    assert texts(shown, ".matrix thead tr:first-child th")[2] == name
    assert name in texts(shown, ".card h3")
    assert any(name in text for text in texts(shown, ".said"))
    assert name in texts(shown, "header pre")[0]
    assert shown.evaluate("typeof hostile") == "undefined"
    assert shown.evaluate("document.scripts.length") == 1


def test_a_script_that_got_in_would_not_run(opened):
    shown = opened("planted")
    shown.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'hostile = 1'}))")
    assert shown.evaluate("typeof hostile") == "undefined"
    shown.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"hostile = 1\">')")
    shown.evaluate("new Promise(done => setTimeout(done, 50))")
    assert shown.evaluate("typeof hostile") == "undefined"
    assert len(shown.events("Log.entryAdded")) >= 2  # the browser says that it refused them
