"""All of the console in one walk, as a user and as an operator: by pointer, by keyboard alone, and by touch on a phone; light and dark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

from tests.browser.conftest import PATIENCE_MS, Console

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.async_api import Locator

    from tests.browser.conftest import Tabs
    from tests.support.client import Client
    from tests.support.stack import Stack

pytestmark = pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
DESKTOP = {"viewport": {"width": 1280, "height": 900}}

# Whoever goes on by Tab alone is where they want to be after so many, or never.
MOST_TABS = 150

PROSE = "# A title\n\n- one\n- **two**\n\n```python\nprint(1)\n```\n\n$$x^2$$\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"


class Walker(Console):
    """A tab, and the way in which its user acts."""

    way = "pointer"
    name = ""

    async def act(self, on: Locator) -> None:
        """Press a button, whichever way."""
        if self.way == "touch":
            await on.tap()
        elif self.way == "pointer":
            await on.click()
        else:
            await self.reach(on)
            await self.page.keyboard.press("Enter")

    async def reach(self, what: Locator) -> None:
        """Go there by Tab; what has the focus can be seen."""
        await expect(what).to_be_visible(timeout=PATIENCE_MS)
        for _ in range(MOST_TABS):
            if await what.evaluate("each => each === document.activeElement"):
                return
            await self.page.keyboard.press("Tab")
        pytest.fail(f"{what} is not reached by Tab")

    async def write(self, field: Locator, text: str, end: str = "") -> None:
        """Type into a field, in place of what it has, and press a key."""
        if self.way == "keyboard":
            await self.reach(field)
        else:
            await self.act(field)
        await self.page.keyboard.press("Control+a")
        lines = text.split("\n")
        for at, line in enumerate(lines):
            await self.page.keyboard.insert_text(line)
            if at + 1 < len(lines):
                await self.page.keyboard.press("Shift+Enter")
        if end:
            await self.page.keyboard.press(end)

    async def choose(self, field: Locator, option: str) -> None:
        """Choose by what an option says."""
        if self.way != "keyboard":
            await field.select_option(label=option)
            return
        await self.reach(field)
        await self.page.keyboard.type(option)
        await expect(field.locator("option:checked")).to_have_text(option)

    async def say(self, text: str) -> Locator:
        """Say something; the turn that it begins."""
        turns = self.page.locator(".turn")
        before = await turns.count()
        await self.write(self.page.get_by_label("Message"), text, "Enter")
        return turns.nth(before)

    async def list_is_open(self) -> None:
        """See the conversations: on a phone they are behind a button."""
        button = self.page.get_by_role("button", name="Conversations", exact=True)
        if await button.is_visible():
            await self.act(button)

    async def look(self, name: str) -> None:
        """Nothing is in anybody's way, nothing is wider than the screen, and a picture is kept."""
        wide = await self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{name}: {wide} pixels too wide"
        await self.axe(f"{self.name}-{name}")


@pytest.fixture(
    params=["desktop-light-pointer", "desktop-dark-keyboard", "phone-light-touch", "phone-dark-touch"]
)
def form(request: pytest.FixtureRequest) -> str:
    """Size, colours and way."""
    return str(request.param)


@pytest.fixture
async def walker(tabs: Tabs, form: str) -> Callable[..., Any]:
    """Opens a tab in this form."""
    size, colours, way = form.split("-")

    async def opened() -> Walker:
        window = await tabs.window(
            **(PHONE if size == "phone" else DESKTOP),
            color_scheme=colours,
            permissions=["clipboard-read", "clipboard-write"],
        )
        walker = Walker(await window.new_page(), tabs.url)
        walker.way, walker.name = way, form
        walker.page.on("dialog", lambda question: question.accept())
        await walker.open()
        return walker

    return opened


async def with_key(walker: Walker, key: str) -> None:
    """Tell the page a key."""
    page = walker.page
    await walker.act(page.get_by_role("button", name="Keys"))
    await walker.write(page.get_by_label("API key"), key)
    await walker.look("keys-dialog")
    await walker.act(page.get_by_role("button", name="Add key"))
    await expect(page.locator("#keys")).to_be_hidden(timeout=PATIENCE_MS)


async def test_a_users_walk(walker: Callable[..., Any], stack: Stack) -> None:
    """Say, read, copy, approve, answer, stop, retry, edit, branch, name, search, find what waits, delete."""
    user: Walker = await walker()
    page = user.page
    await with_key(user, stack.key)
    await user.look("welcome")

    turn = await user.say(PROSE)
    await user.ended(turn)
    await expect(turn.locator(".answer pre")).to_contain_text("print(1)")
    await user.act(turn.get_by_role("button", name="Copy answer"))
    await expect(turn.get_by_role("button", name="Copied")).to_be_visible(timeout=PATIENCE_MS)
    assert "print(1)" in await page.evaluate("navigator.clipboard.readText()")
    await user.look("prose")

    turn = await user.say("/approve the cache")
    await user.act(turn.get_by_role("button", name="Approve"))
    await user.ended(turn)
    turn = await user.say('/call weather {"city": "Bern"}')
    await user.sees(turn.locator(".ask"), "weather")
    await user.look("asked")
    await user.write(turn.get_by_label("Result, as JSON or text"), "21")
    await user.act(turn.get_by_role("button", name="Send result"))
    await user.ended(turn)

    turn = await user.say("/tokens 2000 20")
    await user.sees(turn, "tok3 ")
    await user.act(page.get_by_role("button", name="Stop", exact=True))
    await user.ended(turn, "canceled")
    turn = await user.say("/fail on purpose")
    await user.ended(turn, "failed")
    await user.look("failed")
    before = page.url
    await user.act(turn.get_by_role("button", name="Retry"))
    await expect(page).not_to_have_url(before, timeout=PATIENCE_MS)
    last = page.locator(".turn").last
    await user.ended(last, "failed")
    await user.act(last.get_by_role("button", name="Edit"))
    field = page.get_by_label("Message")
    await expect(field).to_have_value("/fail on purpose")
    await user.write(field, "all is well", "Enter")
    await user.sees(page.locator(".turn").last, "You said: all is well")
    await user.look("branch")

    await user.act(page.get_by_role("button", name="Rename"))
    await page.keyboard.press("Control+a")
    await page.keyboard.insert_text("My trip")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="My trip")).to_be_visible(timeout=PATIENCE_MS)
    await user.list_is_open()
    await user.act(page.get_by_role("button", name="New conversation"))
    await user.sees(await user.say("/approve a second one"), "Allow")
    await user.list_is_open()
    await user.write(page.get_by_label("Search conversations"), "trip")
    await expect(page.locator(".session")).to_have_count(1, timeout=PATIENCE_MS)
    await user.look("search")
    await user.act(page.locator(".session", has_text="My trip"))
    await expect(page.get_by_role("heading", name="My trip")).to_be_visible(timeout=PATIENCE_MS)
    await user.act(page.get_by_role("button", name="Inbox (1)"))
    await user.sees(page.locator("#inbox-list"), "Approve delete_everything?")
    await user.look("inbox")
    await user.act(page.locator("#inbox-list").get_by_role("button", name="Open"))
    await user.act(page.locator(".turn").get_by_role("button", name="Refuse"))
    await user.ended(page.locator(".turn"))
    await user.act(page.get_by_role("button", name="Delete"))
    await expect(page.locator(".turn")).to_have_count(0, timeout=PATIENCE_MS)
    assert user.complaints == []


async def test_an_operators_walk(walker: Callable[..., Any], client: Client, stack: Stack) -> None:
    """Group failures, order, look into a turn, replay it, stop one, pause a worker, hold a model, make and revoke a key."""
    for number, text in enumerate(("/fail one", "/fail two", "hello")):
        await client.turn(f"s{number}", text, id=f"t{number}")
    # It goes on without its client.
    async with client.process("busy", "/tokens 5000 20") as stream:
        await stream.until(len)
    operator: Walker = await walker()
    page = operator.page
    await with_key(operator, stack.admin)
    tasks = page.get_by_role("region", name="Tasks")
    rows = tasks.locator("tbody tr")
    await operator.sees(rows.first, "running")
    await operator.look("operate")
    await operator.act(rows.first.get_by_role("button", name="Stop"))
    await expect(page.get_by_text("No tasks.")).to_be_visible(timeout=PATIENCE_MS)

    await operator.choose(page.get_by_label("Status"), "all")
    failures = page.get_by_role("list", name="Failures by error")
    await operator.act(failures.get_by_role("button", name="demo_failure · 2"))
    await expect(rows).to_have_count(2, timeout=PATIENCE_MS)
    await operator.look("failures")
    await operator.act(rows.first.get_by_role("button", name="dev /"))
    dialog = page.locator("#detail")
    fall = dialog.get_by_role("region", name="Where the time went")
    await operator.sees(fall, "Attempt 1")
    await operator.sees(fall, "Asks demo, failed: demo_failure")
    await operator.sees(dialog.locator(".events"), "response failed")
    await operator.look("task")
    await operator.act(dialog.get_by_role("button", name="Close"))
    await operator.act(rows.first.get_by_role("checkbox"))
    if operator.way == "keyboard":
        await page.keyboard.press("Space")
    await operator.act(page.get_by_role("button", name="Replay 1 selected"))
    await expect(rows).to_have_count(3, timeout=PATIENCE_MS)

    worker = stack.workers[0][0].id
    row = page.get_by_role("region", name="Processes").locator("tbody tr", has_text=worker)
    await operator.act(row.get_by_role("button", name=f"Pause {worker}"))
    await operator.sees(row, "paused")
    await operator.act(row.get_by_role("button", name=f"Resume {worker}"))
    await operator.sees(row, "working")
    held = page.get_by_role("region", name="Models")
    for kind, free in (("model", "closed"), ("agent", "open")):
        hold = page.get_by_role("button", name=f"hold {kind} demo", exact=True)
        resume = page.get_by_role("button", name=f"resume {kind} demo", exact=True)
        row = held.locator("tbody tr").filter(has=hold.or_(resume))
        await operator.act(hold)
        await operator.sees(row, "held")
        await operator.act(resume)
        await operator.sees(row, free)
    await operator.look("held")

    await operator.write(page.get_by_label("Owner", exact=True), "acme")
    await operator.act(page.get_by_role("button", name="Make a key"))
    await operator.sees(page.locator(".made code"), "sk-")
    row = page.get_by_role("region", name="API keys").locator("tbody tr", has_text="acme")
    await operator.act(row.get_by_role("button", name="Revoke"))
    await expect(row).to_have_count(0, timeout=PATIENCE_MS)
    over_time = page.get_by_role("region", name="Turns over time")
    await operator.choose(page.locator("#history-by"), "owner")
    await operator.sees(over_time.locator("tbody tr").first, "dev")
    await operator.look("turns-over-time")
    assert operator.complaints == []
