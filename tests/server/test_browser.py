"""The page of a server and of a trace in a real browser, on a phone and a desk: `make browser`."""

import json
import os
import shutil
from dataclasses import replace

import pytest

from entropix_mlx.palette import CONTRAST, contrast
from entropix_mlx.step import Attended
from entropix_mlx.traces.page import render
from tests.steps import make_step, make_steps, make_trace

pytestmark = pytest.mark.browser
playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
WAIT = 60_000
WIDTHS = {"phone": 390, "desk": 1280}
HOSTILE = (
    "<img src=x onerror=alert(1)> </script><b>b</b>\u2028"
    " [a](javascript:alert(1)) ![b](http://127.0.0.1:1/b.png) **bold**"
)
COLOURS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const style = (node, name) => getComputedStyle(node)[name];
  const behind = (node) =>
    node === document.body || style(node, "backgroundColor") !== "rgba(0, 0, 0, 0)" ? node
      : behind(node.parentElement);
  return [...document.querySelectorAll("body *:not(script, svg, svg *)")].filter((node) =>
    node.getClientRects().length && [...node.childNodes].some((one) => one.nodeName === "#text"))
    .map((node) => [rgb(style(node, "color")), rgb(style(behind(node), "backgroundColor"))]);
}"""
"""The colour of each element that has a text, and the colour behind it."""


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        assert not os.environ.get("NEEDS_BROWSER"), "there is no Chromium here"
        pytest.skip("there is no Chromium here")
    expect.set_options(timeout=WAIT)
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(params=WIDTHS)
def new_tab(request, browser):
    """Return what opens a tab: errors in it and requests to other addresses fail the test."""
    wrong = []
    # A refused request is reported by the browser itself, and is no error of the page.
    ours = ("file:", "data:", "http://127.0.0.1", "Failed to load")

    def note(text):
        if not text.startswith(ours):
            wrong.append(text)

    def open_(address, theme="light", script=""):
        size = {"width": WIDTHS[request.param], "height": 800}
        tab = browser.new_context(viewport=size, color_scheme=theme).new_page()
        tab.set_default_timeout(WAIT)
        tab.on("pageerror", lambda error: note(str(error)))
        tab.on("console", lambda said: note(said.text))
        tab.on("request", lambda sent: note(sent.url))
        tab.add_init_script(script)
        tab.goto(address)
        return tab

    yield open_
    for context in browser.contexts:
        context.close()
    assert not wrong


@pytest.fixture
def open_chat(new_tab, url):
    def open_(key="key", theme="light", stored=None, **settings):
        chosen = {"seed": "1", "max_tokens": "12", "markdown": False} | settings
        local = json.dumps({"entropix.settings": json.dumps(chosen)} | (stored or {}))
        script = f"if (!localStorage.length) Object.assign(localStorage, {local});"
        script += f"sessionStorage.setItem('entropix.key', '{key}');" if key else ""
        return new_tab(url, theme, script)

    return open_


@pytest.fixture
def open_trace(new_tab, tmp_path):
    def open_(trace, theme="light"):
        file = tmp_path / "page.html"
        file.write_text(render(trace), encoding="utf-8")
        return new_tab(file.as_uri(), theme)

    return open_


def ask(tab, question):
    tab.fill("#question", question)
    tab.press("#question", "Enter")


def open_chats(tab):
    if tab.viewport_size["width"] == WIDTHS["phone"]:
        tab.click("[title=Chats]")


def tokens(tab) -> list[str]:
    return tab.locator(".answer .token").all_text_contents()


def test_a_chat_is_asked_looked_at_changed_and_found_again(open_chat):
    tab = open_chat()
    expect(tab.locator("h1")).to_have_text("tiny")
    expect(tab.locator(".welcome .legend")).to_contain_text("sure")
    assert tab.locator("aside").count() == 0, "nothing was asked, so there is nothing to show"
    ask(tab, "Hello <b>there</b>")
    expect(tab.locator(".answer footer")).to_contain_text("12 tokens")
    expect(tab.locator(".user")).to_have_text("Hello <b>there</b>")
    before = tokens(tab)
    # A token moves the gauges and the plane, and shows why it was taken.
    tab.locator(".token").nth(3).click()
    expect(tab.locator(".why")).to_contain_text("Token")
    expect(tab.locator(".plane .now")).to_have_count(1)
    expect(tab.locator(".cases li").first).to_be_visible()
    first = tab.locator("[data-gauge=entropy]").text_content()
    tab.locator(".text").focus()
    tab.keyboard.press("End")
    expect(tab.locator("[data-gauge=entropy]")).not_to_have_text(first)
    # One tap continues with another token, and keeps the old answer.
    tab.locator(".token").nth(2).click()
    tab.locator(".alternatives button:enabled").first.click()
    expect(tab.locator(".versions")).to_contain_text("answer 2 of 2")
    expect(tab.locator(".answer footer")).to_contain_text("tokens")
    assert tokens(tab)[:2] == before[:2]
    assert tokens(tab) != before
    tab.click("[title='Previous answer']")
    expect(tab.locator(".versions")).to_contain_text("answer 1 of 2")
    assert tokens(tab) == before
    # The chat is there again after a reload, and can be removed.
    tab.reload()
    expect(tab.locator(".user")).to_have_text("Hello <b>there</b>")
    assert tokens(tab) == before
    open_chats(tab)
    tab.locator("nav li button").first.click()
    expect(tab.locator(".welcome")).to_be_visible()
    assert not tab.evaluate("Object.keys(localStorage).filter((key) => key.includes('chat'))")


def test_an_answer_that_is_awaited_can_be_stopped_and_goes_on(open_chat):
    tab = open_chat()
    tab.route("**/completions", lambda route: None)
    ask(tab, "Hello")
    expect(tab.locator(".answer [role=status]")).to_contain_text("first token")
    tab.get_by_text("Stop", exact=True).click()
    tab.unroute("**/completions")
    tab.get_by_text("Go on", exact=True).click()
    expect(tab.locator(".answer footer")).to_contain_text("12 tokens")


def test_a_key_is_asked_for(open_chat):
    tab = open_chat(key="")
    tab.fill("[name=key]", "key")
    tab.keyboard.press("Enter")
    expect(tab.locator("h1")).to_have_text("tiny")
    tab.reload()
    expect(tab.locator("h1")).to_have_text("tiny")
    assert '"key"' not in json.dumps(tab.evaluate("Object.values(localStorage)"))


@pytest.mark.parametrize("markdown", [True, False])
def test_no_text_of_a_model_becomes_markup(open_chat, markdown):
    step = make_step(0, HOSTILE).to_dict()
    step |= {"top_logprobs": [{"token": 1, "text": HOSTILE, "logprob": -1.0}]}
    answer = {"steps": [step], "totals": None, "how": {}}
    turn = {"question": HOSTILE, "answers": [answer], "at": 0}
    chat = {"id": "1-2", "title": HOSTILE, "changed": 1, "turns": [turn]}
    tab = open_chat(stored={"entropix.chat.1-2": json.dumps(chat)}, markdown=markdown)
    open_chats(tab)
    tab.click("nav li a")
    expect(tab.locator(".answer")).to_contain_text("<img src=x onerror=alert(1)>")
    tab.locator(".token").first.click(position={"x": 2, "y": 2})
    expect(tab.locator(".alternatives")).to_contain_text("onerror")
    assert tab.locator("img, body script, [onerror], .answer b").count() == 0
    links = [link.get_attribute("href") for link in tab.locator(".answer a").all()]
    assert links == (["http://127.0.0.1:1/b.png"] if markdown else [])


def test_an_error_says_what_to_do(open_chat):
    tab = open_chat()
    expect(tab.locator("h1")).to_have_text("tiny")
    body = json.dumps({"error": {"message": "no", "code": None}})
    advice = {413: "new chat", 429: "7 s", 503: "Start", 401: "key", 0: "running"}
    for status, said in advice.items():
        refused = {"status": status, "body": body, "headers": {"Retry-After": "7"}}
        tab.route(
            "**/completions",
            lambda route, _, how=refused: route.fulfill(**how) if how["status"] else route.abort(),
        )
        ask(tab, "Hello")
        expect(tab.locator(".answer [role=alert]").last).to_contain_text(said)
        if status == 401:
            tab.keyboard.press("Escape")
        tab.unroute("**/completions")
    tab.get_by_text("Try again", exact=True).last.click()
    expect(tab.locator(".answer footer").last).to_contain_text("12 tokens")


def test_every_text_can_be_read(open_chat, open_trace):
    seen = []
    for theme in ("light", "dark"):
        tab = open_chat(theme=theme)
        expect(tab.locator(".welcome li").first).to_be_visible()
        seen += tab.evaluate(COLOURS)
        tab.click("[title=Settings]")
        seen += tab.evaluate(COLOURS)
        tab = open_trace(make_trace(make_steps()), theme)
        tab.locator(".token").first.click()
        expect(tab.locator(".why")).to_be_visible()
        seen += tab.evaluate(COLOURS)
    assert len(seen) > 80
    assert all(contrast(tuple(ink), tuple(paper)) >= CONTRAST for ink, paper in seen)


def test_a_recorded_answer_opens_and_is_looked_at(open_trace):
    question = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "<i>Hi</i>"}]
    steps = [make_step(0, HOSTILE, strain=0.0), *make_steps()[1:]]
    trace = make_trace(steps, messages=question)
    tab = open_trace(replace(trace, attention={1: Attended(1, 0.5, [[0, 0.25]])}))
    expect(tab.locator(".user")).to_have_text("<i>Hi</i>")
    expect(tab.locator(".facts")).to_contain_text("Be brief")
    assert tab.locator("img, body script, .answer b, .answer i").count() == 0
    tab.locator("[data-i='1']").first.click()
    expect(tab.locator(".why")).to_contain_text("Token 2")
    assert tab.locator("[style*='--seen']").count() == 1
    before = tab.locator("[data-gauge=entropy]").text_content()
    tab.locator(".text").focus()
    tab.keyboard.press("ArrowRight")
    expect(tab.locator("[data-gauge=entropy]")).not_to_have_text(before)
    fork = next(step.index for step in steps if step.fork)
    tab.locator(f"[data-i='{fork}']").first.click()
    expect(tab.get_by_text("branches compared")).to_be_visible()
    assert tab.locator(".alternatives button:enabled").count() == 0, "there is no model here"
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.locator("textarea").count() == 0
