"""A real Chromium, and the console in it. Without Chromium these tests skip, and say so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import async_playwright, expect

from tests.support.javascript import PACKAGE, install
from tests.support.link import Link
from tests.unit.turnstream.client.conftest import port_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from playwright.async_api import Browser, BrowserContext, Locator, Page, Request

    from tests.support.client import Client
    from tests.support.stack import Stack

ARTIFACTS = Path(__file__).parent.parent / "artifacts"

# What a person would call broken on a busy machine, and no sooner.
PATIENCE_MS = 120_000


@cache
def axe_source() -> str:
    """The accessibility checks."""
    install(PACKAGE)
    return (PACKAGE / "node_modules" / "axe-core" / "axe.min.js").read_text()


class Console:
    """One tab with the console, and what it did."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.requests: list[Request] = []
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: self.requests.append(request))  # noqa: PLW0108 - it marks what it is given
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on(
            "console",
            lambda message: (
                self.complaints.append(message.text) if "Security Policy" in message.text else None
            ),
        )

    async def open(self) -> None:
        """Go to the page."""
        await self.page.goto(f"{self.url}/console")

    async def add_key(self, key: str, *, keep: bool = False) -> None:
        """Tell it a key."""
        await self.page.get_by_role("button", name="Keys").click()
        await self.page.get_by_label("API key").fill(key)
        if keep:
            await self.page.get_by_label("Remember on this device").check()
        await self.page.get_by_role("button", name="Add key").click()
        await expect(self.page.locator("#keys")).to_be_hidden(timeout=PATIENCE_MS)

    async def say(self, text: str) -> Locator:
        """Say something; the turn that it begins."""
        turns = self.page.locator(".turn")
        before = await turns.count()
        field = self.page.get_by_label("Message")
        await field.fill(text)
        await field.press("Enter")
        return turns.nth(before)

    async def ended(self, turn: Locator, status: str = "completed") -> None:
        """Wait for a turn's end."""
        await expect(turn).to_have_attribute("data-status", status, timeout=PATIENCE_MS)

    async def sees(self, where: Locator, text: Any) -> None:
        """Wait until the text is there."""
        await expect(where).to_contain_text(text, timeout=PATIENCE_MS)

    async def light(self, state: str) -> None:
        """Wait for the connection light."""
        await expect(self.page.locator("#light")).to_have_attribute("data-state", state, timeout=PATIENCE_MS)

    async def axe(self, name: str) -> None:
        """No violation of any impact, in what is shown now; a screenshot of it is kept."""
        await self.picture(f"axe-{name}")
        await self.page.evaluate(axe_source())
        found = await self.page.evaluate("axe.run({ resultTypes: ['violations'] })")
        told = [(each["id"], [node["target"] for node in each["nodes"]]) for each in found["violations"]]
        assert told == [], name

    async def picture(self, name: str) -> None:
        """Keep a screenshot."""
        ARTIFACTS.mkdir(exist_ok=True)
        await self.page.screenshot(path=ARTIFACTS / f"{name}.png")

    def resumed_from(self) -> list[str]:
        """The cursors that its streams asked to go on after."""
        cursors = [each.headers.get("last-event-id", "") for each in self.requests if "/process" in each.url]
        return [cursor for cursor in cursors if cursor]


class Tabs:
    """Opens tabs, each with its own storage unless they share a window."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser = browser
        self.url = url
        self.windows: list[BrowserContext] = []

    async def window(self, **given: Any) -> BrowserContext:
        """A window of its own: nothing is remembered."""
        window = await self.browser.new_context(**given)
        self.windows.append(window)
        return window

    async def tab(self, window: BrowserContext | None = None, url: str = "", **given: Any) -> Console:
        """A tab with the console."""
        window = window or await self.window(**given)
        console = Console(await window.new_page(), url or self.url)
        await console.open()
        return console


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Chromium, one for all tests of the process: the address at which Playwright's server lends it."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    config = tmp_path_factory.mktemp("chromium") / "launch.json"
    config.write_text(json.dumps({"executablePath": path, "args": ["--no-sandbox"]}))
    program = [
        sys.executable,
        "-m",
        "playwright",
        "launch-server",
        "--browser=chromium",
        f"--config={config}",
    ]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            assert address.startswith("ws://"), "Chromium did not start"
            yield address
        finally:
            # The server ends its browser; the pipe closes when both have ended.
            os.killpg(server.pid, signal.SIGTERM)
            server.stdout.read()


@pytest.fixture
async def browser(stack: Stack, chromium: str) -> AsyncIterator[Browser]:
    """A connection to Chromium; what the test opened ends with it, before the deployment does."""
    async with async_playwright() as driver:
        browser = await driver.chromium.connect(chromium)
        yield browser
        await browser.close()


@pytest.fixture
async def proxy(client: Client) -> AsyncIterator[Link]:
    """A proxy before the front end, as a deployment has one."""
    proxy = Link(port_of(client))
    await proxy.start()
    yield proxy
    await proxy.close()


@pytest.fixture
async def tabs(client: Client, proxy: Link, browser: Browser) -> AsyncIterator[Tabs]:
    """Opens tabs at the proxy."""
    tabs = Tabs(browser, proxy.url)
    yield tabs
    for window in tabs.windows:
        await window.close()


@pytest.fixture
async def console(tabs: Tabs, stack: Stack) -> AsyncIterator[Console]:
    """A tab that knows the chat key. Afterwards: no script failed, nothing broke the page's policy."""
    console = await tabs.tab()
    await console.add_key(stack.key)
    yield console
    assert console.complaints == []
    strangers = [each.url for each in console.requests if not each.url.startswith((console.url, "data:"))]
    assert strangers == [], "the page asks nobody but its own server"
