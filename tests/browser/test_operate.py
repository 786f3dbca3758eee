"""The console's operator side: what runs is seen as it runs, and can be stopped from another tab."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

from tests.browser.conftest import PATIENCE_MS
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import TaskRef

if TYPE_CHECKING:
    from playwright.async_api import Route

    from tests.browser.conftest import Console, Tabs
    from tests.support.client import Client
    from tests.support.stack import Stack

pytestmark = pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)


async def operator(tabs: Tabs, stack: Stack, **given: Any) -> Console:
    """A tab of an operator's own window."""
    console = await tabs.tab(**given)
    await console.add_key(stack.admin)
    await expect(console.page.get_by_role("heading", name="Tasks")).to_be_visible(timeout=PATIENCE_MS)
    return console


async def test_an_operator_stops_a_task_in_another_tab(console: Console, tabs: Tabs, stack: Stack) -> None:
    """The list shows it with its age and worker, one click ends it, and the user's page says so."""
    turn = await console.say("/tokens 3000 20")
    await console.sees(turn, "tok3 ")
    other = await operator(tabs, stack)
    row = other.page.locator("tbody tr").first
    await other.sees(row, "running")
    await other.sees(row, "demo")
    await other.sees(row, stack.workers[0][0].id)
    await other.sees(other.page.locator(".card", has_text="Running"), "1 of 100")
    await other.picture("operate")
    await row.get_by_role("button", name="Stop").click()
    await console.ended(turn, "canceled")
    await expect(other.page.get_by_text("No tasks.")).to_be_visible(timeout=PATIENCE_MS)
    await other.page.get_by_label("Status").select_option("canceled")
    await other.sees(other.page.locator("tbody tr").first, "canceled")
    ended = {
        label: await row.locator(f'td[data-label="{label}"]').inner_text()
        for label in ("Submitted", "Took", "Attempt", "Worker", "Ended by")
    }
    assert re.fullmatch(r"\d.* ago", ended["Submitted"])
    assert re.fullmatch(r"\d.* m?s", ended["Took"])
    assert (ended["Attempt"], ended["Worker"]) == ("1", stack.workers[0][0].id)
    assert re.fullmatch(r"admin key_\w+: stop", ended["Ended by"])
    assert other.complaints == []


async def test_an_operator_looks_into_a_task_and_stops_its_session(
    console: Console, tabs: Tabs, stack: Stack
) -> None:
    """Facts, pending calls and events as they come, by keyboard; then all of the session is ended."""
    turn = await console.say('/call weather {"city": "Bern"}')
    await console.sees(turn.locator(".ask"), "The agent calls weather")
    waiting = await console.say("hello?")
    other = await operator(tabs, stack)
    parked = other.page.locator("tbody tr", has_text="parked")
    await parked.get_by_role("button", name="dev /").focus()
    await other.page.keyboard.press("Enter")
    dialog = other.page.locator("#detail")
    await other.sees(dialog, "Waits for weather")
    await other.sees(dialog.locator("tbody"), "message function_call completed")
    await other.picture("task")
    await dialog.get_by_role("button", name="Stop session").click()
    await console.ended(turn, "canceled")
    await console.ended(waiting, "canceled")
    await other.sees(dialog.locator(".facts"), "canceled")
    await other.sees(dialog.locator("tbody"), "response canceled")
    await other.page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await console.sees(turn.locator(".outcome"), "The turn ended without an answer")


async def test_a_task_that_ends_while_it_is_looked_at_is_shown_ended(
    console: Console, tabs: Tabs, stack: Stack, client: Client
) -> None:
    """Facts that were read before the end, and events that were read after it, are not the last word."""
    turn = await console.say("/call f {}")
    await console.sees(turn.locator(".ask"), "The agent calls f")
    other = await operator(tabs, stack)

    async def late(route: Route) -> None:
        """Facts of the running task, that come when it has ended."""
        facts = await route.fetch()
        session, task = route.request.url.split("/")[-2:]
        assert (await client.stop(session, task)).status_code == 200
        await route.fulfill(response=facts)

    await other.page.route(re.compile(r"/tasks/dev/[^/]+/[^/]+$"), late, times=1)
    await other.page.locator("tbody tr", has_text="parked").get_by_role("button", name="dev /").click()
    dialog = other.page.locator("#detail")
    await other.sees(dialog.locator("tbody"), "response canceled")
    await other.sees(dialog.locator(".facts"), "canceled")


async def test_many_tasks_are_filtered_and_stopped_at_once(tabs: Tabs, stack: Stack) -> None:
    """Selected rows are stopped together; the filter narrows the list; a worker is listed."""
    chats = [await tabs.tab() for _ in range(2)]
    for chat in chats:
        await chat.add_key(stack.key)
        await chat.sees(await chat.say("/tokens 3000 20"), "tok3 ")
    other = await operator(tabs, stack)
    rows = other.page.get_by_role("region", name="Tasks").locator("tbody tr")
    await expect(rows).to_have_count(2, timeout=PATIENCE_MS)
    await other.page.get_by_label("Filter").fill("nobody")
    await expect(rows).to_have_count(0, timeout=PATIENCE_MS)
    await other.page.get_by_label("Only").select_option("agent")
    await other.page.get_by_label("Filter").fill("demo")
    await expect(rows).to_have_count(2, timeout=PATIENCE_MS)
    for at in range(2):
        await rows.nth(at).get_by_role("checkbox").check()
    other.page.on("dialog", lambda dialog: dialog.accept())
    await other.page.get_by_role("button", name="Stop 2 selected").click()
    for chat in chats:
        await chat.ended(chat.page.locator(".turn").first, "canceled")
    await other.sees(other.page.get_by_role("region", name="Processes"), "working")


async def test_an_admin_key_chats_with_any_agent(tabs: Tabs, stack: Stack) -> None:
    """It makes a key for the agent that is picked, and says nothing of its own to the agent."""
    other = await operator(tabs, stack)
    await other.page.get_by_role("button", name="Chat").click()
    await other.page.get_by_label("Agent").select_option("make:demo")
    await expect(other.page.locator("#pick-key option:checked")).to_have_text(
        "demo (console)", timeout=PATIENCE_MS
    )
    await other.ended(await other.say("hello"))
    made = [each.headers["authorization"] for each in other.requests if each.url.endswith("/process")]
    assert made != []
    assert f"Bearer {stack.admin}" not in made


async def test_the_operators_view_on_a_phone(tabs: Tabs, stack: Stack) -> None:
    """Rows become cards; nothing scrolls sideways; in the dark, too."""
    chat = await tabs.tab()
    await chat.add_key(stack.key)
    await chat.sees(await chat.say("/tokens 3000 20"), "tok3 ")
    other = await operator(tabs, stack, viewport={"width": 390, "height": 844}, color_scheme="dark")
    await other.sees(other.page.locator("tbody tr").first, "running")
    await other.picture("operate-phone-dark")
    inside = (
        "document.querySelector('.operate').scrollWidth <= innerWidth"
        " && document.documentElement.scrollWidth <= innerWidth"
    )
    assert await other.page.evaluate(inside)
    await chat.page.get_by_role("button", name="Stop").click()
    await chat.ended(chat.page.locator(".turn").first, "canceled")


async def test_tasks_beyond_the_first_page(tabs: Tabs, stack: Stack) -> None:
    """More brings the next ones; a filter finds a task however many are newer."""
    primary = stack.broker.primary
    fields = dict.fromkeys(("launch", "attempt", "crashes", "pending", "number", "submitted", "ended"), "1")
    for number in range(1200):
        owner = "acme" if number else "rare"
        ref = TaskRef(owner, "s", f"t{number}")
        task = {**fields, "status": "completed", "agent": "demo", "response": "r"}
        await command(primary, "ZADD", keys.RECENT, 1_000_000 + number, str(ref))
        await command(primary, "HSET", ref.keys.task(ref.task), *itertools.chain(*task.items()))
        await command(primary, "PEXPIRE", ref.keys.task(ref.task), 60_000)
    other = await operator(tabs, stack)
    region = other.page.get_by_role("region", name="Tasks")
    rows, more = region.locator("tbody tr"), region.get_by_role("button", name="More")
    await other.page.get_by_label("Status").select_option("completed")
    for count in (50, 100, 150):
        await expect(rows).to_have_count(count, timeout=PATIENCE_MS)
        await expect(more).to_be_visible()
        await more.click()
    await expect(rows).to_have_count(200, timeout=PATIENCE_MS)
    await other.page.get_by_label("Filter").fill("rare")
    await expect(rows).to_have_count(1, timeout=PATIENCE_MS)
    await expect(more).to_be_hidden()
    await other.sees(rows, "rare / s")


async def test_an_operator_holds_a_model_and_resumes_it(tabs: Tabs, stack: Stack) -> None:
    """The table says how it stands, and its button does the other thing then."""
    await stack.worker()
    console = await operator(tabs, stack)
    row = console.page.get_by_role("region", name="Models").locator("tbody tr", has_text="demo")
    await console.sees(row, "closed")
    console.page.once("dialog", lambda dialog: dialog.accept())
    await row.get_by_role("button", name="hold demo").click()
    await console.sees(row, "held")
    await row.get_by_role("button", name="resume demo").click()
    await console.sees(row, "closed")
    assert console.complaints == []
