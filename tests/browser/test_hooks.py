"""React's hook of the JavaScript client, and the AI SDK's over our transport, in a real Chromium."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.support import javascript

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

    from tests.browser.conftest import Tabs
    from tests.support.link import Link
    from tests.support.stack import Stack

SECONDS = 120_000

TEXT = "".join(f"tok{number} " for number in range(60)).strip()


@pytest.fixture(scope="module")
def script() -> str:
    """The test page's program, as a bundler makes it."""
    javascript.build()
    source = javascript.PACKAGE / "test" / "page" / "page.jsx"
    environment = '--define:process.env.NODE_ENV="production"'
    return javascript.bundle(source, "--jsx=automatic", environment, "--minify").decode()


@pytest.fixture
async def page(tabs: Tabs, stack: Stack, script: str) -> Page:
    """The test page, which the front end's own origin seems to have: browsers ask no other one."""
    page = await (await tabs.window()).new_page()
    html = f'<!doctype html><meta charset="utf-8"><body><script type="module">{script}</script></body>'
    await page.route(
        "**/test-page", lambda route: route.fulfill(body=html, content_type="text/html; charset=utf-8")
    )
    await page.goto(f"{tabs.url}/test-page#key={stack.key}&session={uuid.uuid4().hex}")
    return page


async def _say(section: Locator, text: str) -> None:
    await section.locator("input").fill(text)
    await section.locator("input").press("Enter")


async def test_the_hook_through_cut_connections(page: Page, proxy: Link) -> None:
    """A turn's words come once each though the line is cut; a call is answered; a turn is stopped; a reload shows all."""
    ours = page.locator("#ours")
    turns = ours.locator("article")
    await _say(ours, "/tokens 60 20")
    await expect(turns.nth(0)).to_contain_text("tok5 ", timeout=SECONDS)
    proxy.cut_all()
    await expect(turns.nth(0)).to_have_attribute("data-status", "completed", timeout=SECONDS)
    await expect(turns.nth(0).locator("p")).to_have_text(TEXT)
    await _say(ours, "/call weather {}")
    await ours.get_by_role("button", name="answer weather").click(timeout=SECONDS)
    await expect(turns.nth(1)).to_contain_text("The result is fog.", timeout=SECONDS)
    await _say(ours, "/tokens 1000 20")
    await ours.get_by_role("button", name="stop").click(timeout=SECONDS)
    await expect(turns.nth(2)).to_have_attribute("data-status", "canceled", timeout=SECONDS)
    await page.reload()
    await expect(turns.nth(2)).to_have_attribute("data-status", "canceled", timeout=SECONDS)
    said = ["/tokens 60 20", "/call weather {}", "/tokens 1000 20"]
    await expect(ours.locator("h2")).to_have_text(said, timeout=SECONDS)


async def test_the_ai_sdk_goes_on_after_a_reload(page: Page, proxy: Link) -> None:
    """A cut in the middle of an answer, then a reload: the whole text, once."""
    theirs = page.locator("#theirs")
    answers = theirs.locator(".assistant")
    await _say(theirs, "/tokens 60 40")
    await expect(answers).to_contain_text("tok5 ", timeout=SECONDS)
    proxy.cut_all()
    await expect(answers).to_contain_text("tok10 ", timeout=SECONDS)
    await page.reload()
    await expect(answers).to_have_text(re.compile(f"^{re.escape(TEXT)}\\s*$"), timeout=SECONDS)
    await expect(theirs).to_have_attribute("data-status", "ready", timeout=SECONDS)
