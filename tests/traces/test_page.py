"""A trace as one HTML file: it holds everything, and a model's words in it are only words."""

import json
import os
import re
import shutil
from dataclasses import replace

import pytest

from entropix_mlx import Profile, cli
from entropix_mlx.step import (
    Alternative,
    Attended,
    Branch,
    ChosenBy,
    Fork,
    Origin,
    Strategy,
    first_divergence,
)
from entropix_mlx.traces.explain import explain
from entropix_mlx.traces.page import recorded, render
from entropix_mlx.traces.trace import read_trace
from entropix_mlx.traces.trace import recorded as written
from tests.steps import HEADER, make_step, make_trace

HOSTILE = [
    *("</script><script>alert(1)</script>", "<b>bold</b>", "&amp;", "\"quoted'", "<!--"),
    *("\x1b[31m", "\x00", "\ufffd", "\udce9", "\u2028", "\n\t", "", "$title", "$vocabulary"),
]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
WIDTHS = {"phone": 390, "desk": 1280}


@pytest.fixture
def steps():
    """An answer of every strategy, with an insertion and a fork, in hostile words."""
    found = [make_step(i, text, list(Strategy)[i % 7]) for i, text in enumerate(HOSTILE)]
    branches = tuple(
        Branch((1, 2), f"branch {n} <b>", -1.0 - n, 2.0, lead=0.5 * n) for n in range(3)
    )
    found[4] = replace(found[4], strategy=Strategy.THINK, origin=Origin.INSERTED, rolled_back=1)
    chosen = {"origin": Origin.CHOSEN, "rolled_back": 1, "fork": Fork(branches, 1, ChosenBy.USER)}
    found[6] = replace(found[6], strategy=Strategy.BRANCH, **chosen)
    found[8] = replace(found[8], top_logprobs=(Alternative(1, "</script>", -0.25),))
    return found


def test_every_measurement_is_in_the_page(steps):
    shown = recorded(make_trace(steps))
    for step, record, why in zip(steps, shown["steps"], shown["why"], strict=True):
        assert record["entropy"] == pytest.approx(step.entropy, rel=1e-6)
        assert record["strategy"] == step.strategy
        assert str(explain(Profile.load(), step)).startswith(why["heading"].split(",")[0])
    assert shown["steps"][8]["top_logprobs"][0]["text"] == "</script>"
    assert shown["steps"][5]["text"] == "␛[31m"


def test_infinite_numbers_never_reach_the_page(steps):
    thresholds = {"branch_min_varentropy": float("inf"), "low_entropy": float("-inf")}
    profile = Profile.load().replace({"thresholds": thresholds})
    steps[0] = replace(steps[0], logprob=float("-inf"))
    shown = recorded(make_trace(steps, profile=profile))
    json.dumps(shown, allow_nan=False)
    assert shown["map"]["tree"]


def test_a_sampler_without_thresholds_has_no_regions(steps):
    assert recorded(make_trace(steps, sampler="min_p"))["map"]["tree"] == []


def test_the_page_needs_no_network_and_is_small(steps):
    text = render(make_trace(steps))
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    data = len(json.dumps(recorded(make_trace(steps))))
    assert len(text.encode()) - data < 150_000


def test_the_command_writes_a_page(steps, tmp_path, capsys):
    recording, page = tmp_path / "trace.jsonl", tmp_path / "page.html"
    list(written(steps, recording, HEADER))
    assert cli.main(["view", str(recording), "--html", str(page)]) == 0
    assert capsys.readouterr().out == ""
    assert page.read_text(encoding="utf-8") == render(read_trace(recording))
    for trace, file in (("absent", page), (recording, tmp_path)):
        assert cli.main(["view", str(trace), "--html", str(file)]) == 2
        assert capsys.readouterr().err.startswith("entropix: ")
    before = recording.read_bytes()
    assert cli.main(["view", str(recording), "--html", str(recording)]) == 2
    assert recording.read_bytes() == before


def test_two_answers_part_where_a_token_differs(steps):
    other = [*steps[:3], replace(steps[3], token=999, text="else"), *steps[4:9]]
    assert first_divergence(steps, other) == 3
    assert first_divergence(steps, steps[:5]) == 5


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        assert not os.environ.get("NEEDS_BROWSER"), "there is no Chromium here"
        pytest.skip("there is no Chromium here")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(params=WIDTHS)
def open_page(request, browser, tmp_path):
    """Return what opens the page of a trace from its file; any error or request fails the test."""
    wrong = []

    def open_(trace, theme="light"):
        file = tmp_path / "page.html"
        file.write_text(render(trace), encoding="utf-8")
        size = {"width": WIDTHS[request.param], "height": 800}
        tab = browser.new_context(viewport=size, color_scheme=theme).new_page()
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("console", lambda said: wrong.append(said.text))
        tab.on(
            "request",
            lambda asked: asked.url.startswith(("file:", "data:")) or wrong.append(asked.url),
        )
        tab.goto(file.as_uri())
        tab.wait_for_selector(".token")
        return tab

    yield open_
    for context in browser.contexts:
        context.close()
    assert not wrong


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_recorded_answer_opens_and_is_looked_at(open_page, steps, theme):
    question = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "<i>Hi</i>"}]
    attention = {1: Attended(1, 0.5, [[0, 0.25]])}
    trace = replace(make_trace(steps, messages=question), attention=attention)
    tab = open_page(trace, theme)
    assert tab.locator(".user").text_content() == "<i>Hi</i>"
    assert "Be brief" in tab.locator(".facts").text_content()
    assert tab.locator(".answer img, .answer script, .answer b, .answer i").count() == 0
    tab.locator("[data-i='1']").first.click()
    assert "token 2" in tab.locator("aside h2").text_content()
    assert tab.locator(".why").is_visible()
    assert tab.locator("[style*='--seen']").count() == 1
    before = tab.locator("[data-gauge=entropy]").text_content()
    tab.locator(".text").focus()
    tab.keyboard.press("End")
    tab.wait_for_function(
        "before => document.querySelector('[data-gauge=entropy]').textContent !== before",
        arg=before,
    )
    tab.locator("[data-i='6']").first.click()
    tab.wait_for_selector("h3.branch")
    assert tab.locator(".alternatives button:enabled").count() == 0, "nobody goes on with it here"
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.locator("textarea").count() == 0
