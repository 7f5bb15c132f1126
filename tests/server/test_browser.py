"""The page in a real browser: a chat, a token's alternatives, a fork, the monitor."""

import shutil

import httpx
import pytest

from entropix_mlx.server.app import PAGE_HEADERS, page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
WAIT = 60_000
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")


def test_the_page_needs_nothing_from_elsewhere():
    assert "http://" not in page().replace("http://www.w3.org", "")
    assert "https://" not in page()
    assert "$looks" not in page()
    assert "default-src 'none'" in PAGE_HEADERS["content-security-policy"]


@pytest.fixture
def tab(url):
    """A tab that shows the page; whatever goes wrong in it fails the test."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        found, wrong = browser.new_page(), []
        found.set_default_timeout(WAIT)
        found.on("pageerror", lambda error: wrong.append(str(error)))
        found.on("console", lambda said: wrong.append(said.text) if "CSP" in said.text else None)
        found.goto(url)
        yield found
        browser.close()
    assert not wrong


@needs_browser
def test_a_chat_in_a_browser(tab, url):
    expect = pytest.importorskip("playwright.sync_api").expect
    expect.set_options(timeout=WAIT)
    expect(tab.locator("#model")).to_contain_text("API key")
    tab.fill("#key", "key")
    tab.press("#key", "Tab")
    expect(tab.locator("#model")).to_have_text("tiny")
    tab.fill("#seed", "1")
    tab.fill("#most", "12")
    tab.fill("#question", "Hello <b>there</b>")
    tab.press("#question", "Enter")
    expect(tab.locator("#turns .faint")).to_contain_text("length; mean H")
    expect(tab.locator(".token")).to_have_count(12)
    expect(tab.locator(".user")).to_have_text("Hello <b>there</b>")
    expect(tab.locator("#plane .dot")).to_have_count(12)
    assert float(tab.locator("#H").text_content()) >= 0
    # The second alternative of the fourth token in its place:
    before = tab.locator(".token").all_text_contents()
    tab.locator(".token").nth(3).dispatch_event("click")
    expect(tab.locator("#alternatives button")).to_have_count(8)
    tab.fill("#most", "5")
    tab.locator("#alternatives button").nth(1).dispatch_event("click")
    expect(tab.locator(".token")).to_have_count(8)
    assert tab.locator(".token").all_text_contents()[:3] == before[:3]
    # What another client is answered:
    expect(tab.locator("#send")).to_be_enabled()
    with tab.expect_response("**/v1/monitor"):
        tab.click("#watch")
    expect(tab.locator(".token")).to_have_count(0)
    body = {"prompt": "A", "max_tokens": 7, "seed": 3}
    headers = {"Authorization": "Bearer key"}
    reply = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)
    assert reply.status_code == 200
    expect(tab.locator(".token")).to_have_count(7)
