"""The list of conversations beside the chat: the same on every device, found, named and deleted."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

from tests.browser.conftest import PATIENCE_MS
from turnstream.shared.broker.keys import SessionKeys

if TYPE_CHECKING:
    from playwright.async_api import Dialog

    from tests.browser.conftest import Console, Tabs
    from tests.support.client import Client
    from tests.support.stack import Stack

pytestmark = pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)

PHONE = {"width": 390, "height": 844}
DAY = 86_400


async def said_days_ago(stack: Stack, session: str, days: int) -> None:
    """Have a conversation's last sign of life be some days ago: it expires so much earlier."""
    redis: Any = stack.broker.sessions
    keys = SessionKeys("dev", session)
    left = await redis.pttl(keys.meta) - days * DAY * 1000
    assert left > 0, "the session would be gone"
    await redis.hset(keys.meta, "created", str(int((time.time() - days * DAY) * 1000)))
    await redis.pexpire(keys.meta, left)


async def test_another_device_lists_what_was_said(console: Console, tabs: Tabs, stack: Stack) -> None:
    """With its state and title; by its address it is opened, and Back leads to the one before."""
    await console.ended(await console.say("the first words"))
    await console.page.get_by_role("button", name="New conversation").click()
    turn = await console.say("/approve the second")
    await console.sees(turn.locator(".ask"), "Allow")
    other = await tabs.tab(viewport=PHONE, color_scheme="dark")
    await other.add_key(stack.key)
    await other.page.get_by_role("button", name="Conversations").click()
    await other.sees(other.page.get_by_role("list", name="Needs you"), "/approve the second")
    await other.sees(other.page.get_by_role("list", name="Today"), "the first words")
    await other.axe("drawer-phone-dark")
    await other.page.locator(".session", has_text="the first words").click()
    await other.sees(other.page.locator(".turn .answer"), "You said: the first words")
    assert re.search(r"#chat/[0-9a-f]{32}$", other.page.url)
    third = await tabs.tab()
    await third.page.goto(other.page.url)
    await third.page.reload()
    await third.add_key(stack.key)
    await third.sees(third.page.locator(".turn .answer"), "You said: the first words")
    await third.page.locator(".session", has_text="/approve the second").click()
    await third.sees(third.page.locator(".ask"), "Allow")
    await third.axe("asked")
    await third.page.go_back()
    await third.sees(third.page.locator(".turn .answer"), "You said: the first words")
    await third.ended(third.page.locator(".turn"))
    # What is answered elsewhere needs nobody any more.
    await turn.get_by_role("button", name="Approve").click()
    await expect(third.page.get_by_role("list", name="Needs you")).to_have_count(0, timeout=PATIENCE_MS)
    assert third.complaints + other.complaints == []


async def test_it_is_named_by_keyboard_and_deleted_for_good(console: Console, client: Client) -> None:
    """Escape leaves the name, Enter changes it, in the list, too; after the deletion there is nothing left of it."""
    page = console.page
    await console.ended(await console.say("hello"))
    session = page.url.rpartition("/")[2]
    rename = page.get_by_role("button", name="Rename")
    await rename.focus()
    await page.keyboard.press("Enter")
    await page.keyboard.type("not so")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("heading", name="hello", exact=True)).to_be_visible()
    await expect(rename).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.type("My trip")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="My trip")).to_be_visible(timeout=PATIENCE_MS)
    await console.sees(page.locator(".session"), "My trip")
    await page.reload()
    await expect(page.get_by_role("heading", name="My trip")).to_be_visible(timeout=PATIENCE_MS)
    questions: list[str] = []

    async def agree(dialog: Dialog) -> None:
        questions.append(dialog.message)
        await dialog.accept()

    page.on("dialog", agree)
    await page.get_by_role("button", name="Delete").click()
    await expect(page.locator(".session")).to_have_count(0, timeout=PATIENCE_MS)
    await expect(page.locator(".turn")).to_have_count(0)
    await expect(page.get_by_label("Message")).to_be_focused()
    assert ["for good" in each for each in questions] == [True]
    history = await client.http.get("/liteAgent/v1/history", params={"sessionId": session})
    assert history.status_code == 404


async def test_many_are_found(tabs: Tabs, client: Client, stack: Stack) -> None:
    """By day and by search; more than a page by a button."""
    for number in range(32):
        await client.turn(f"s{number}", f"subject {number}")
    console = await tabs.tab()
    await console.add_key(stack.key)
    rows = console.page.locator(".session")
    await expect(rows).to_have_count(30, timeout=PATIENCE_MS)
    await console.page.get_by_role("button", name="More conversations").click()
    await expect(rows).to_have_count(32, timeout=PATIENCE_MS)
    await expect(console.page.get_by_role("button", name="More conversations")).to_be_hidden()
    await console.page.get_by_label("Search conversations").fill("subject 3")
    await expect(rows).to_have_count(3, timeout=PATIENCE_MS)
    await console.picture("search")
    await console.page.get_by_label("Search conversations").fill("no such thing")
    await console.sees(console.page.locator("#session-list"), "None is called so.")


async def test_older_ones_stand_under_their_day(tabs: Tabs, place: Any) -> None:
    """Yesterday, the last days, and the months before; kept for so long by the operator's setting."""
    from tests.support.stack import Stack

    stack = Stack(place, session_ttl=300 * DAY)
    try:
        await stack.worker()
        client = await stack.front_end()
        for days in (0, 1, 4, 100):
            await client.turn(f"s{days}", f"{days} days ago")
            await said_days_ago(stack, f"s{days}", days)
        console = await tabs.tab(url=client.base_url)
        await console.add_key(stack.key)
        for name, days in (("Today", 0), ("Yesterday", 1), ("Last 7 days", 4)):
            await console.sees(console.page.get_by_role("list", name=name), f"{days} days ago")
        await expect(console.page.locator(".group")).to_have_count(4)
        assert re.search(r" \d{4}$", await console.page.locator(".group").last.inner_text())
    finally:
        await stack.close()
