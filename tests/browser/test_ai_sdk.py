"""The AI SDK's `useChat` with its own transport, in a real Chromium, in a page of another origin."""

from __future__ import annotations

import asyncio
import re
import uuid
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.support import javascript
from tests.support.link import Link
from tests.unit.turnstream.client.conftest import port_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

    from tests.support.stack import Stack

SECONDS = 120_000

TEXT = "".join(f"tok{number} " for number in range(60)).strip()


@pytest.fixture
async def origin() -> AsyncIterator[str]:
    """A server of its own that has the page. A browser lets pages of other hosts ask nothing of this machine."""
    javascript.build()
    source = javascript.PACKAGE / "test" / "page" / "ai-sdk.jsx"
    environment = '--define:process.env.NODE_ENV="production"'
    script = javascript.bundle(source, "--jsx=automatic", environment, "--minify")
    html = b'<!doctype html><meta charset="utf-8"><body><script type="module">%b</script></body>' % script
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %d\r\n\r\n" % len(
        html
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (line := await reader.readline()) and line.strip():
            pass
        writer.write(head + html)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()


@pytest.fixture
async def line(stack: Stack, origin: str) -> AsyncIterator[Link]:
    """A proxy before a front end that lets the page's origin in."""
    await stack.worker()
    client = await stack.front_end(cors_origins=origin)
    link = Link(port_of(client))
    await link.start()
    yield link
    await link.close()


@pytest.fixture
async def page(browser: Browser, stack: Stack, line: Link, origin: str) -> AsyncIterator[Page]:
    """The page."""
    window = await browser.new_context()
    page = await window.new_page()
    await page.goto(f"{origin}/#key={stack.key}&chat={uuid.uuid4().hex}&url={line.url}")
    yield page
    await window.close()


async def test_send_cut_reload_stop_call_and_again(page: Page, line: Link) -> None:
    """Words come once each over a cut line and a reload; a stop ends the turn; a call is answered after a reload."""
    section, answers = page.locator("section"), page.locator(".assistant")
    whole = re.compile(f"^{re.escape(TEXT)}\\s*$")

    async def say(text: str) -> None:
        await expect(section).to_have_attribute("data-status", "ready", timeout=SECONDS)
        await section.locator("input").fill(text)
        await section.locator("input").press("Enter")

    async def press(name: str) -> None:
        await section.get_by_role("button", name=name).click(timeout=SECONDS)

    await say("/tokens 60 100")
    await expect(answers).to_contain_text("tok3 ", timeout=SECONDS)
    line.cut_all()
    await expect(section).to_have_attribute("data-status", "error", timeout=SECONDS)
    await press("resume")
    await expect(answers).to_contain_text("tok10 ", timeout=SECONDS)
    await page.reload()
    await expect(answers).to_have_text(whole, timeout=SECONDS)
    await say("/tokens 1000 20")
    await expect(answers.nth(1)).to_contain_text("tok5 ", timeout=SECONDS)
    await press("stop")
    await say('/call weather {"city": "Bern"}')
    await section.get_by_role("button", name="answer").wait_for(timeout=SECONDS)
    await page.reload()
    await press("answer")
    await expect(answers.nth(2)).to_have_text("The result is fog.", timeout=SECONDS)
    await say("hello")
    await expect(answers.nth(3)).to_have_text("You said: hello", timeout=SECONDS)
    await press("again")
    await expect(section).to_have_attribute("data-status", "ready", timeout=SECONDS)
    await expect(answers.nth(3)).to_have_text("You said: hello", timeout=SECONDS)
    await page.reload()
    await expect(page.locator("p")).to_have_count(8, timeout=SECONDS)
    await expect(answers.nth(0)).to_have_text(whole)
