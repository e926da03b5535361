"""The page of a run of 248 iterations in a real headless browser."""

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from basics import ROOT
from browser import ELEMENT, Browser, browser, reason_to_skip
from synthetic_run import HOSTILE, Shape, SyntheticEvaluation, SyntheticRun

from mrt_hpc.errors import visible
from mrt_hpc.roles.report import write_comparison, write_report
from mrt_hpc.run.layout import RunLayout

pytestmark = pytest.mark.skipif(reason_to_skip() is not None, reason=reason_to_skip() or "")
WIDE, PHONE = 1280, 390
MOST_BYTES, MOST_SECONDS = 3_000_000, 60
LEAST_CONTRAST = 4.5
TAB, ENTER, DOWN = "\ue004", "\ue007", "\ue015"

CONTRAST = (ROOT / "tests" / "cases" / "report_page.js").read_text()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    layout = SyntheticRun(tmp_path_factory.mktemp("long") / "run", Shape()).write()
    began = time.process_time()
    write_report(layout)
    assert time.process_time() - began < MOST_SECONDS and layout.page.stat().st_size < MOST_BYTES
    return layout


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def page(run: RunLayout, window: Browser) -> Iterator[Browser]:
    """The page at its full width; a test fails if the console said anything."""
    window.console()
    window.open(run.page, WIDE)
    yield window
    assert window.console() == []


def choose(window: Browser, select: str, value: str) -> None:
    source = "const s = document.getElementById(arguments[0]); s.value = arguments[1];"
    window.script(source + "s.dispatchEvent(new Event('change', { bubbles: true }))", select, value)


def count(window: Browser) -> tuple[int, int]:
    said = window.script("return document.getElementById('count').textContent").split()
    listed = window.script("return document.querySelectorAll('#list button').length")
    assert listed == int(said[0])
    return int(said[0]), int(said[2])


def listed(window: Browser) -> list[str]:
    return window.script("return [...document.querySelectorAll('#list button')].map((b) => b.innerText)")


def test_every_figure_is_there_with_its_words_and_its_numbers(page: Browser) -> None:
    figures = page.script(
        "return [...document.querySelectorAll('figure')].map((f) => { const s = f.querySelector('svg');"
        "const box = s.getBoundingClientRect(); return [f.querySelector('h3').textContent, box.width, box.height,"
        "s.getAttribute('role'), s.getAttribute('aria-label'), f.querySelectorAll('tbody tr').length,"
        "[...s.querySelectorAll('path')].filter((p) => p.getBoundingClientRect().width > 100).length] })"
    )
    rows = {title: found for title, _, _, _, _, found, _ in figures}
    assert {"Accuracy", "Regret", "Scaling with samples", "Votes of samples", "Scaling with tokens: aime24"} < {*rows}
    assert rows["Reward"] == rows["Time by phase"] == 248
    assert rows["Progress by episode in training"] == rows["Progress by episode: math500"] == 6
    for title, width, height, role, label, _, lines in figures:
        assert (width > 400, height > 200, role, lines > 1) == (True, True, "img", True), title
        assert label.startswith(title.partition(":")[0])


def test_the_filters_change_what_is_listed(page: Browser) -> None:
    every, total = count(page)
    assert every == total > 60
    numbers = []
    for verdict, mark in (("right", "✓ right"), ("wrong", "✗ wrong")):
        choose(page, "verdict", verdict)
        numbers.append(count(page)[0])
        assert all(mark in text for text in listed(page))
    assert sum(numbers) == every and min(numbers) > 0
    choose(page, "verdict", "")
    problem = page.script("return document.getElementById('problem').options[1].value")
    choose(page, "problem", problem)
    assert 0 < count(page)[0] < every
    assert all(problem in text for text in listed(page))
    choose(page, "problem", "")
    choose(page, "source", "rollouts of iteration 247")
    assert all("rollouts of iteration 247" in text for text in listed(page))
    choose(page, "verdict", "right")
    choose(page, "problem", problem)
    assert count(page)[0] == 0


def test_traces_are_ordered_by_their_greatest_gain_or_loss(page: Browser) -> None:
    def numbers(word: str) -> list[int]:
        told = [text.replace("−", "-").replace(",", " ").split() for text in listed(page)]
        return [int(words[words.index(word) + (2 if word == "best" else 1)]) for words in told]

    choose(page, "order", "gain")
    gains = numbers("best")
    choose(page, "order", "loss")
    losses = numbers("worst")
    assert gains == sorted(gains, reverse=True) and gains[0] > gains[-1]
    assert losses == sorted(losses) and losses[0] < 0 <= losses[-1]


def test_a_trace_shows_its_episodes_with_progress_and_forced_answers(page: Browser) -> None:
    shown: dict[str, Any] = page.script(
        "const e = [...document.querySelectorAll('#trace .episode')];"
        "const at = (q) => e.map((x) => x.querySelector(q));"
        "return {titles: at('h4').map((x) => x.innerText), chips: at('.chip').map((x) => [x.innerText, x.className]),"
        "texts: at('pre').map((x) => x.textContent), answers: at('.answers').map((x) => x.innerText),"
        "left: document.querySelectorAll('#trace .omitted').length}"
    )
    assert shown["titles"] == [f"Episode {n}" for n in range(6)]
    for text, kind in shown["chips"]:
        sign = {"+": "g", "−": "l"}.get(text[0], "")
        size = int(text.split()[0].lstrip("+−"))
        expected = "zero" if size == 0 else f"{sign}{3 if size >= 50 else 2 if size >= 20 else 1}"
        assert kind == f"chip {expected}"
    assert shown["texts"][1].startswith(f"Wait, x=1: {visible(HOSTILE)[:40]}")
    assert all("right:" in text or "wrong:" in text for text in shown["answers"])
    assert shown["left"] == 0, "these traces are short enough to be whole"


def test_a_text_is_found_and_a_link_leads_to_its_trace(run: RunLayout, page: Browser) -> None:
    """The trace at the top of the page is in the reader, and its link shows it whatever is filtered."""
    seek = "const t = document.getElementById('text'); t.value = arguments[0]; t.dispatchEvent(new Event('input'))"
    every = count(page)[1]
    problem = page.script("return document.getElementById('problem').options[1].value")
    page.script(seek, problem.upper())
    assert 0 < count(page)[0] < every
    assert all(text.startswith(problem) for text in listed(page))
    page.script(seek, "WAIT, X=1:")
    assert count(page)[0] > 0
    page.script(seek, "no trace has this")
    assert count(page)[0] == 0
    link, gain = page.script(
        "const e = document.getElementById('example');"
        "return [e.querySelector('a').href, e.querySelector('.chip').textContent]"
    )
    page.call("POST", "url", url=link)
    page.call("POST", "refresh")
    assert (count(page), page.script("return document.activeElement.id")) == ((every, every), "trace")
    assert page.script("return document.querySelector('#trace .chip').textContent") == gain
    assert page.script("return document.querySelector('#trace details').open"), "the problem is read with its trace"
    page.open(run.page, WIDE)


def test_what_a_model_wrote_has_no_effect(run: RunLayout, window: Browser, page: Browser, tmp_path: Path) -> None:
    assert page.script("return window.broken === undefined")
    assert page.script("return document.querySelectorAll('img, iframe, object, b').length") == 0
    assert page.script("return document.scripts.length") == 2
    spoilt = tmp_path / "spoilt.html"  # a script that gets in is stopped, and the console is known to say something
    spoilt.write_text(run.page.read_text().replace("</body>", "<script>window.broken = 3</script></body>"))
    window.open(spoilt, WIDE)
    assert window.script("return window.broken === undefined")
    assert "Content Security Policy" in " ".join(window.console())


def test_the_keyboard_reaches_everything(page: Browser) -> None:
    page.press(TAB)
    assert page.script("return document.activeElement.className") == "skip"
    assert page.script("return document.activeElement.getBoundingClientRect().left") >= 0
    page.press(ENTER, TAB)
    assert page.script("return document.getElementById('main').contains(document.activeElement)")
    page.script("document.getElementById('source').focus()")
    page.press(DOWN)
    assert count(page)[0] < count(page)[1]
    page.script("document.getElementById('order').focus()")
    page.press(TAB, TAB)
    assert page.script("return document.activeElement === document.querySelectorAll('#list button')[1]")
    assert page.script("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press(ENTER)
    assert page.script("return document.activeElement.id") == "trace"
    first = page.script("return document.getElementById('trace-title').textContent")
    page.press(TAB, TAB, ENTER)
    assert page.script("return document.getElementById('trace-title').textContent") != first


def test_headings_labels_and_names_are_for_screen_readers(page: Browser) -> None:
    levels = page.script("return [...document.querySelectorAll('h1,h2,h3,h4')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    nodes = page.devtools("Accessibility.getFullAXTree")["nodes"]
    named = {(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"]}
    roles = {"combobox", "button", "image", "region", "table", "navigation"}
    assert {role for role, _ in named} >= {*roles, "main"}
    assert not {role for role, name in named if not name} & {*roles, "link"}
    assert page.script("return document.documentElement.lang") == "en"


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_only_boxes_scroll_sideways(run: RunLayout, page: Browser, width: int) -> None:
    page.open(run.page, width)
    page.script("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.script("return document.documentElement.scrollWidth") <= width
    beyond = page.script(
        "return [...document.querySelectorAll('main *, header *')]"
        ".filter((e) => !e.closest('.box, svg, .skip, select') && e.checkVisibility())"
        ".filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert beyond == []
    captions = page.script(
        "return [...document.querySelectorAll('caption span')].filter((e) =>"
        "e.getBoundingClientRect().right > arguments[0]).map((e) => e.textContent)",
        width,
    )
    assert captions == [], "a caption is read without scrolling sideways"
    words = page.script(
        "const s = document.querySelector('svg'); const t = s.querySelector('text');"
        "return parseFloat(getComputedStyle(t).fontSize) * s.getBoundingClientRect().width / s.viewBox.baseVal.width"
    )
    assert words > 9, "the words of figures can be read"


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_contrast(run: RunLayout, page: Browser, dark: bool) -> None:
    page.open(run.page, WIDE, dark=dark)
    found = page.script(CONTRAST)
    assert len(found) >= 6
    assert [(round(ratio, 2), where) for ratio, where in found if ratio < LEAST_CONTRAST] == []


def test_without_scripts_all_tables_and_figures_are_there(run: RunLayout, page: Browser) -> None:
    tables = page.script("return document.querySelectorAll('table').length")
    page.open(run.page, WIDE, scripts=False)
    try:
        html = page.devtools("DOM.getOuterHTML", nodeId=page.devtools("DOM.getDocument")["root"]["nodeId"])["outerHTML"]
        assert html.count("<table>") == tables > 15 and html.count("<svg ") > 10
        reader = page.call("POST", "element", using="css selector", value="#reader")
        assert page.call("GET", f"element/{reader[ELEMENT]}/displayed") is False
        told = page.call("POST", "element", using="css selector", value=".warning")
        assert "needs JavaScript" in page.call("GET", f"element/{told[ELEMENT]}/text")
        row = page.call("POST", "element", using="css selector", value="#results ~ .box tbody th")
        assert page.call("GET", f"element/{row[ELEMENT]}/text") == "aime24"
    finally:
        page.open(run.page, WIDE)


def test_runs_and_models_of_an_evaluation_can_be_filtered(run: RunLayout, page: Browser, tmp_path: Path) -> None:
    other = SyntheticRun(tmp_path / "other", Shape(iterations=62, name="other-run", seed=1)).write()
    write_comparison([run, other], tmp_path / "both.html", [None, None])
    evaluation = SyntheticEvaluation(tmp_path / "evaluation").write()
    write_report(evaluation)
    for path, name, words in (
        (tmp_path / "both.html", "other-run", "other-run"),
        (evaluation.page, "second", "second · evaluation on"),
    ):
        assert path.stat().st_size < MOST_BYTES
        page.open(path, PHONE)
        assert page.script("return document.documentElement.scrollWidth") <= PHONE
        choose(page, "run", name)
        assert all(words in text for text in listed(page))
        assert 0 < count(page)[0] < count(page)[1]
    assert count(page) == (32, 64)
