"""What is said in a turn's place is said in a branch; and an inbox of all that waits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

from tests.browser.conftest import PATIENCE_MS

if TYPE_CHECKING:
    from tests.browser.conftest import Console, Tabs
    from tests.support.stack import Stack

pytestmark = pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)


async def said(console: Console, *texts: str) -> None:
    """Wait until exactly this was said in the conversation that is shown, and has ended."""
    await expect(console.page.locator(".said")).to_have_text(list(texts), timeout=PATIENCE_MS)
    await expect(console.page.locator('.turn[data-status="completed"]')).to_have_count(
        len(texts), timeout=PATIENCE_MS
    )


async def test_a_turn_is_regenerated_edited_and_branched(console: Console) -> None:
    """Each begins a conversation of its own with what was said before, also from a turn that a branch began with."""
    page = console.page
    for text in ("one", "two", "three"):
        await console.ended(await console.say(text))
    turns = page.locator(".turn")
    first = page.url
    await turns.nth(1).get_by_role("button", name="Regenerate").click()
    await said(console, "one", "two")
    assert page.url != first
    await page.reload()
    await said(console, "one", "two")
    await console.axe("branch")
    # The first turn is none of the branch's own.
    await turns.nth(0).get_by_role("button", name="Branch").click()
    await said(console, "one")
    await expect(page.get_by_label("Message")).to_be_focused()
    await console.ended(await console.say("another"))
    await said(console, "one", "another")
    await turns.nth(1).get_by_role("button", name="Edit").focus()
    await page.keyboard.press("Enter")
    field = page.get_by_label("Message")
    await expect(field).to_have_value("another")
    await page.keyboard.press("Escape")
    await expect(field).to_have_value("")
    await page.keyboard.press("ArrowUp")
    await expect(field).to_have_value("another")
    await page.keyboard.press("Escape")
    await page.keyboard.type("draft")
    await page.keyboard.press("ArrowUp")
    await expect(field).to_have_value("draft")
    await field.fill("")
    await turns.nth(1).get_by_role("button", name="Edit").click()
    await page.keyboard.press("End")
    await page.keyboard.type(" one")
    await page.keyboard.press("Enter")
    await said(console, "one", "another one")
    await page.goto(first)
    await said(console, "one", "two", "three")
    await expect(page.locator(".session", has_text="branch")).to_have_count(3, timeout=PATIENCE_MS)


@pytest.mark.parametrize("form", ["desktop", "phone"])
async def test_branches_lead_to_each_other(tabs: Tabs, stack: Stack, form: str) -> None:
    """Where they part, in each of them: by pointer, touch and keyboard; also from a branch of a branch, and after a reload."""
    given: dict[str, Any] = (
        {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
        if form == "phone"
        else {"viewport": {"width": 1280, "height": 900}}
    )
    console = await tabs.tab(**given)
    page = console.page
    await console.add_key(stack.key)
    for text in ("one", "two", "three"):
        await console.ended(await console.say(text))
    first = page.url
    turns, switch = page.locator(".turn"), page.locator(".branches")
    await expect(switch).to_have_count(0)
    await turns.nth(1).get_by_role("button", name="Edit").click()
    await page.get_by_label("Message").fill("zwei")
    await page.keyboard.press("Enter")
    await said(console, "one", "zwei")
    await expect(switch).to_contain_text("2/2", timeout=PATIENCE_MS)
    # Between what all say and what each says.
    assert await page.evaluate("[...document.querySelectorAll('#log > *')].map((each) => each.className)") == [
        "turn", "branches", "turn",
    ]  # fmt: skip
    previous, following = (switch.get_by_role("button", name=name) for name in ("Previous", "Next"))
    await expect(following).to_be_disabled()
    await console.axe(f"branches-{form}")
    await (previous.tap() if form == "phone" else previous.click())
    await said(console, "one", "two", "three")
    assert page.url == first
    await expect(switch).to_contain_text("1/2")
    await expect(previous).to_be_disabled()
    # The keyboard goes on from here, and the place is in sight.
    await expect(following).to_be_focused()
    await expect(following).to_be_in_viewport()
    await turns.nth(1).get_by_role("button", name="Regenerate").click()
    await said(console, "one", "two")
    await expect(switch).to_contain_text("3/3", timeout=PATIENCE_MS)
    await console.ended(await console.say("more"))
    await turns.nth(1).get_by_role("button", name="Branch", exact=True).click()
    await said(console, "one", "two")
    await console.ended(await console.say("else"))
    await said(console, "one", "two", "else")
    await page.reload()
    await said(console, "one", "two", "else")
    await expect(switch).to_have_text([re.compile("3/3"), re.compile("2/2")], timeout=PATIENCE_MS)
    assert await console.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    await console.axe(f"branches-of-branches-{form}")
    await switch.nth(0).get_by_role("button", name="Previous branch, 2 of 3: one").focus()
    await page.keyboard.press("Enter")
    await said(console, "one", "zwei")
    await expect(previous).to_be_focused()
    await page.keyboard.press("Shift+Tab")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await said(console, "one", "two", "three")
    assert page.url == first
    # Of those that are deleted nothing is left.
    page.on("dialog", lambda dialog: dialog.accept())
    await following.click()
    await said(console, "one", "zwei")
    await page.get_by_role("button", name="Delete").click()
    await page.goto(first)
    await expect(switch).to_contain_text("1/2", timeout=PATIENCE_MS)
    assert console.complaints == []


async def test_a_failed_turn_is_retried(console: Console) -> None:
    """The first one of a conversation, too: nothing was said before it."""
    page = console.page
    turn = await console.say("/fail no luck")
    await console.ended(turn, "failed")
    first = page.url
    await turn.get_by_role("button", name="Retry").click()
    await expect(page).not_to_have_url(first, timeout=PATIENCE_MS)
    await console.ended(page.locator(".turn"), "failed")
    await expect(page.locator(".said")).to_have_text("/fail no luck")


async def test_the_inbox_has_all_that_waits(console: Console, tabs: Tabs, stack: Stack) -> None:
    """Over conversations; one is opened from it, and its question has the focus; an answer takes it out."""
    page = console.page
    for text in ("/approve the cache", '/call weather {"city": "Bern"}'):
        await console.sees(
            (await console.say(text)).locator(".ask"), "weather" if "weather" in text else "Allow"
        )
        await page.get_by_role("button", name="New conversation").click()
    inbox = page.get_by_role("button", name="Inbox (2)")
    await expect(inbox).to_be_visible(timeout=PATIENCE_MS)
    await inbox.focus()
    await page.keyboard.press("Enter")
    items = page.locator("#inbox-list li")
    await expect(items).to_have_count(2, timeout=PATIENCE_MS)
    await console.sees(items.first, "Approve delete_everything?")
    await console.sees(items.nth(1), "Result of weather")
    await console.axe("inbox")
    await items.nth(1).get_by_role("button", name="Open").click()
    field = page.get_by_label("Result, as JSON or text")
    await expect(field).to_be_focused(timeout=PATIENCE_MS)
    await page.keyboard.type("21")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await console.ended(page.locator(".turn"))
    await expect(page.get_by_role("button", name="Inbox (1)")).to_be_visible(timeout=PATIENCE_MS)


async def test_who_looks_elsewhere_is_notified(tabs: Tabs, stack: Stack) -> None:
    """Only where that is wanted: of a question and of an answer, in words."""
    window = await tabs.window(permissions=["notifications"])
    console = await tabs.tab(window)
    page = console.page
    await console.add_key(stack.key)
    await page.evaluate(
        """() => {
            window.told = [];
            const Real = window.Notification;
            window.Notification = class extends EventTarget {
                static get permission() { return Real.permission; }
                static requestPermission() { return Real.requestPermission(); }
                constructor(title, { body }) { super(); window.told.push(`${title}: ${body}`); }
                close() {}
            };
            document.hasFocus = () => false;
        }"""
    )
    await console.ended(await console.say("not told"))
    await page.get_by_role("button", name="Notify me").click()
    await expect(page.get_by_role("button", name="Notifications are on")).to_have_attribute(
        "aria-pressed", "true"
    )
    turn = await console.say("/approve it")
    await console.sees(turn.locator(".ask"), "Allow")
    await turn.get_by_role("button", name="Approve").click()
    await console.ended(turn)
    asked, answered = await page.evaluate("window.told")
    assert asked == "not told: The agent waits for you."
    assert answered.startswith("not told: The agent answered: ")
