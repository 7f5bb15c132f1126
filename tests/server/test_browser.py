"""The page in a real browser, at the widths of a phone and of a desk: `make browser`."""

import json
import os
import re
import shutil

import pytest

from entropix_mlx.palette import CONTRAST, contrast

pytestmark = pytest.mark.browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
WAIT = 60_000
WIDTHS = {"phone": 390, "desk": 1280}
HOSTILE = (
    "<img src=x onerror=alert(1)> [a](javascript:alert(1)) ![b](http://127.0.0.1:1/b.png) **bold**"
)
COLOURS = """() => [...document.querySelectorAll("body *")].flatMap((node) => {
  const said = [...node.childNodes].filter((child) => child.nodeType === 3 && child.data.trim()); if
  (!said.length || !node.getClientRects().length || node.closest("script, svg")) return []; let
  behind = node; while (behind && getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)")
  behind = behind.parentElement; const colours = [getComputedStyle(node).color,
  getComputedStyle(behind ?? document.body).backgroundColor]; return [[said[0].data, ...colours]];
})"""
"""Of each element with a text of its own: the text, its colour, and the colour behind it."""


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        assert not os.environ.get("NEEDS_BROWSER"), "there is no Chromium here"
        pytest.skip("there is no Chromium here")
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=WAIT)
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(params=WIDTHS)
def open_tab(request, url, browser):
    """Return what opens a tab with the page; whatever goes wrong in one fails the test."""
    wrong = []

    def open_(key="key", theme="light", stored=None, **settings):
        size = {"width": WIDTHS[request.param], "height": 800}
        context = browser.new_context(viewport=size, color_scheme=theme)
        tab = context.new_page()
        tab.set_default_timeout(WAIT)
        chosen = {"seed": "1", "tokens": "12", "markdown": False} | settings
        local = {"entropix.settings": json.dumps(chosen)} | (stored or {})
        tab.add_init_script(f"sessionStorage.setItem('entropix.key', '{key}')") if key else None
        tab.add_init_script(
            f"if (!localStorage.length) Object.assign(localStorage, {json.dumps(local)})"
        )
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        # What a browser itself says of a refused request is no error of the page.
        tab.on(
            "console",
            lambda said: said.text.startswith("Failed to load") or wrong.append(said.text),
        )
        tab.goto(url)
        return tab

    yield open_
    for context in browser.contexts:
        context.close()
    assert not wrong


def expect(thing):
    return pytest.importorskip("playwright.sync_api").expect(thing)


def ask(tab, question):
    tab.fill("#question", question)
    tab.press("#question", "Enter")


def on_phone(tab) -> bool:
    return tab.viewport_size["width"] == WIDTHS["phone"]


def open_chats(tab):
    if on_phone(tab):
        tab.click("[title=Chats]")


def steps_shown(tab) -> list[str]:
    return tab.locator(".answer .token").all_text_contents()


def test_a_chat_is_asked_looked_at_changed_and_found_again(open_tab):
    tab = open_tab()
    expect(tab.locator("h1")).to_have_text("tiny")
    expect(tab.locator(".welcome dt").first).to_contain_text("argmax")
    ask(tab, "Hello <b>there</b>")
    expect(tab.locator(".answer footer")).to_contain_text("12 tokens")
    expect(tab.locator(".user")).to_have_text("Hello <b>there</b>")
    before = steps_shown(tab)
    # A token moves the gauges and the map, and shows why it stands there.
    tab.locator(".token").nth(3).click()
    expect(tab.locator("aside h2")).to_contain_text("token")
    expect(tab.locator(".plane .now")).to_have_count(1)
    expect(tab.locator(".why")).to_be_visible()
    first = tab.locator("[data-gauge=entropy]").text_content()
    tab.locator(".text").focus()
    tab.keyboard.press("End")
    expect(tab.locator("[data-gauge=entropy]")).not_to_have_text(first)
    # One tap continues from another token, and keeps the old answer.
    tab.locator(".token").nth(2).click()
    tab.locator(".alternatives button:enabled").first.click()
    expect(tab.locator(".versions")).to_contain_text("answer 2 of 2")
    expect(tab.locator(".answer footer")).to_contain_text("tokens")
    assert steps_shown(tab)[:2] == before[:2]
    assert steps_shown(tab) != before
    tab.click("[title='Previous answer']")
    assert steps_shown(tab) == before
    # The chat is there again after a reload, and can be removed.
    tab.reload()
    expect(tab.locator(".user")).to_have_text("Hello <b>there</b>")
    assert steps_shown(tab) == before
    open_chats(tab)
    tab.locator("nav li button").first.click()
    expect(tab.locator(".welcome")).to_be_visible()
    assert (
        tab.evaluate("Object.keys(localStorage).filter((key) => key.includes('chat')).length") == 0
    )


def test_a_key_is_asked_for(open_tab):
    tab = open_tab(key="")
    tab.fill("[name=key]", "key")
    tab.keyboard.press("Enter")
    expect(tab.locator("h1")).to_have_text("tiny")
    tab.reload()
    expect(tab.locator("h1")).to_have_text("tiny")
    assert "key" not in json.dumps(tab.evaluate("({...localStorage})"))


def chat_of(text: str) -> dict[str, str]:
    """Return a stored chat whose answer is a text."""
    step = {"token": 1, "text": text, "logprob": -0.1, "entropy": 1, "varentropy": 1, "margin": 0.5}
    step |= {"strategy": "argmax", "origin": "sampled", "index": 0, "top_logprobs": []}
    answer = {"steps": [step], "text": text, "totals": None, "how": {}}
    turn = {"question": "Q", "answers": [answer], "at": 0}
    chat = {"id": "1-2", "title": "T", "changed": 1, "turns": [turn]}
    return {"entropix.chat.1-2": json.dumps(chat, separators=(",", ":"))}


def test_no_text_of_a_model_becomes_markup(open_tab):
    tab = open_tab(stored=chat_of(HOSTILE), markdown=True)
    open_chats(tab)
    tab.click("nav li a")
    expect(tab.locator(".answer strong")).to_have_text("bold")
    expect(tab.locator(".answer")).to_contain_text("<img src=x onerror=alert(1)>")
    assert tab.locator(".answer img, .answer script, [onerror]").count() == 0
    links = [link.get_attribute("href") for link in tab.locator(".answer a").all()]
    assert links == ["http://127.0.0.1:1/b.png"]


def test_an_error_says_what_to_do(open_tab):
    tab = open_tab()
    expect(tab.locator("h1")).to_have_text("tiny")
    body = json.dumps({"error": {"message": "no", "code": None}})
    advice = {413: "new chat", 429: "7 s", 503: "Start", 401: "key", 0: "running"}
    for status, said in advice.items():
        refused = {"status": status, "body": body, "headers": {"Retry-After": "7"}}
        if status:
            tab.route("**/completions", lambda route, _, how=refused: route.fulfill(**how))
        else:
            tab.route("**/completions", lambda route: route.abort())
        ask(tab, "Hello")
        expect(tab.get_by_role("alert").last).to_contain_text(said)
        if status == 401:
            tab.keyboard.press("Escape")
        tab.unroute("**/completions")
    tab.get_by_text("Try again", exact=True).last.click()
    expect(tab.locator(".answer footer").last).to_contain_text("12 tokens")


def test_every_text_can_be_read(open_tab):
    seen = []
    for theme in ("light", "dark"):
        tab = open_tab(theme=theme)
        expect(tab.locator("h1")).to_have_text("tiny")
        seen += tab.evaluate(COLOURS)
        ask(tab, "Hello")
        expect(tab.locator(".answer footer")).to_contain_text("12 tokens")
        tab.locator(".token").first.click()
        expect(tab.locator(".why")).to_be_visible()
        tab.click("[title=Settings]")
        seen += tab.evaluate(COLOURS)
    assert len(seen) > 80
    for text, *colours in seen:
        ink, paper = (tuple(map(int, re.findall(r"\d+", one)[:3])) for one in colours)
        assert contrast(ink, paper) >= CONTRAST, (text, ink, paper)
