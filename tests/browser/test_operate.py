"""The console's operator side: what runs is seen as it runs, and can be stopped from another tab."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

from tests.behaviour.test_coded_agents import coded
from tests.browser.conftest import PATIENCE_MS
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.api_keys import ApiKeys, make_token
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import TaskRef

if TYPE_CHECKING:
    from playwright.async_api import Route

    from tests.browser.conftest import Console, Tabs
    from tests.conftest import Place
    from tests.support.client import Client

# Of a key: text, whatever a page could take it for.
NOTE = "Anna's phone <b>Loud</b>"

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
    questions: list[str] = []
    answers = iter([False, True])

    async def answer(dialog: Any) -> None:
        questions.append(dialog.message)
        await (dialog.accept() if next(answers) else dialog.dismiss())

    other.page.on("dialog", answer)
    stop = row.get_by_role("button", name="Stop")
    await stop.click()
    await other.sees(row, "running")
    await stop.click()
    await console.ended(turn, "canceled")
    assert len(questions) == 2
    assert "Stop dev/" in questions[0]
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
    await other.sees(dialog.locator(".events tbody"), "message function_call completed")
    await other.picture("task")
    other.page.once("dialog", lambda question: question.accept())
    await dialog.get_by_role("button", name="Stop session").click()
    await console.ended(turn, "canceled")
    await console.ended(waiting, "canceled")
    await other.sees(dialog.locator(".facts"), "canceled")
    await other.sees(dialog.locator(".events tbody"), "response canceled")
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
    await other.sees(dialog.locator(".events tbody"), "response canceled")
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
    await other.page.get_by_label("Filter").fill("DEM")
    await expect(rows).to_have_count(2, timeout=PATIENCE_MS)
    await other.page.get_by_label("Only").select_option("agent")
    await expect(rows).to_have_count(0, timeout=PATIENCE_MS)
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
    await other.page.locator("#pick-key").select_option("make:demo")
    await expect(other.page.locator("#pick-key option:checked")).to_have_text(
        "demo (console)", timeout=PATIENCE_MS
    )
    await other.ended(await other.say("hello"))
    made = [each.headers["authorization"] for each in other.requests if each.url.endswith("/process")]
    assert made != []
    assert f"Bearer {stack.admin}" not in made


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


async def test_the_address_holds_the_filter_and_the_task(tabs: Tabs, client: Client, stack: Stack) -> None:
    """Failures are grouped by error with its text, rows are ordered by a column; a reload, or who is sent the link, sees the same."""
    for number, text in enumerate(("/fail one", "/fail two", "/tokens 30", "hello")):
        await client.turn(f"s{number}", text, id=f"t{number}")
    console = await operator(tabs, stack)
    page = console.page
    rows = page.get_by_role("region", name="Tasks").locator("tbody tr")
    await page.get_by_label("Status").select_option(label="all")
    await page.get_by_label("Submitted").select_option(label="in the last hour")
    await expect(rows).to_have_count(4, timeout=PATIENCE_MS)
    await console.sees(rows.filter(has_text="dev / s1"), "demo_failure")
    await console.sees(rows.filter(has_text="dev / s1"), "two")
    await (
        page.get_by_role("list", name="Failures by error")
        .get_by_role("button", name="demo_failure · 2")
        .click()
    )
    await expect(rows).to_have_count(2, timeout=PATIENCE_MS)
    head = page.get_by_role("columnheader", name="Owner and session")
    for order, first in (("ascending", "s0"), ("descending", "s1")):
        await head.get_by_role("button").focus()
        await page.keyboard.press("Enter")
        await expect(head).to_have_attribute("aria-sort", order)
        await console.sees(rows.first, f"dev / {first}")
    await console.axe("operate-failures")
    for _ in range(2):
        await expect(page.get_by_label("Filter")).to_have_value("demo_failure", timeout=PATIENCE_MS)
        await expect(rows).to_have_count(2, timeout=PATIENCE_MS)
        await console.sees(rows.first, "dev / s1")
        await page.reload()
    await rows.first.get_by_role("button", name="dev / s1").click()
    dialog = page.locator("#detail")
    await console.sees(dialog, "/fail two")
    await page.reload()
    await console.sees(dialog.locator(".facts"), "demo_failure")
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await expect(page).not_to_have_url(re.compile("task="), timeout=PATIENCE_MS)
    assert "why=demo_failure" in page.url
    assert console.complaints == []


async def test_where_a_turns_time_went(console: Console, tabs: Tabs, stack: Stack) -> None:
    """Its wait, attempts with worker and reason, requests to models, tools, parks; pieces of a text share a row; input, output and tokens."""
    turn = await console.say("/approve the cache")
    await turn.get_by_role("button", name="Approve").click()
    await console.ended(turn)
    await console.ended(await console.say("/tokens 40"))
    other = await operator(tabs, stack, color_scheme="dark")
    await other.page.get_by_label("Status").select_option("completed")
    region = other.page.get_by_role("region", name="Tasks")
    await region.locator("tr", has_text="completed").nth(1).get_by_role("button", name="dev /").click()
    dialog = other.page.locator("#detail")
    fall = dialog.get_by_role("region", name="Where the time went")
    worker = stack.workers[0][0].id
    for words in (
        "Waits for a worker",
        f"Attempt 1 at {worker}",
        "Asks demo, first token after",
        "Approval of delete_everything",
        "Waits for its client",
        f"Attempt 2 at {worker} (answered)",
        "Model answers",
    ):
        await other.sees(fall, words)
    await expect(dialog.locator("pre").first).to_have_text("/approve the cache")
    await other.sees(dialog.locator("pre").nth(1), "the cache")
    await fall.scroll_into_view_if_needed()
    await other.axe("task-dark")
    await other.page.get_by_role("button", name="Close").click()
    await region.locator("tr", has_text="completed").first.get_by_role("button", name="dev /").click()
    await other.sees(dialog.locator(".events"), "pieces: ")
    await expect(dialog.locator("pre").first).to_have_text("/tokens 40")
    assert other.complaints == []


async def test_an_agent_is_held_and_resumed(console: Console, tabs: Tabs, stack: Stack) -> None:
    """After a question; its turns wait until the same button ends it."""
    other = await operator(tabs, stack)
    other.page.once("dialog", lambda dialog: dialog.accept())
    await other.page.get_by_role("button", name="hold agent demo", exact=True).click()
    resume = other.page.get_by_role("button", name="resume agent demo", exact=True)
    await expect(resume).to_be_visible(timeout=PATIENCE_MS)
    gates = [worker.gate for worker, _ in stack.workers]
    await wait_until(lambda: all(gate.refusal("agent demo") for gate in gates), "the workers to see the hold")
    turn = await console.say("hello")
    tasks = other.page.get_by_role("region", name="Tasks")
    await other.sees(tasks, "agent_held")
    await resume.scroll_into_view_if_needed()
    await other.axe("agent-held")
    await resume.click()
    await console.ended(turn)


async def test_what_a_turn_cost_is_shown_where_it_is_known(tabs: Tabs, place: Place, stack: Stack) -> None:
    """Below the turn and among an operator's facts; nothing where one price is not known."""
    # The usual worker does not know this agent.
    await stack.stop_worker(stack.workers[0][0])
    charging = Stack(place, coded("charges"))
    try:
        await charging.worker()
        front_end = await charging.front_end()
        console = await tabs.tab(url=front_end.base_url)
        await console.add_key(charging.key)
        known, unknown = await console.say("both"), await console.say("one")
        await console.ended(unknown)
        await expect(known.locator(".took")).to_contain_text(
            "3,000 in, 300 out · $0.0105", timeout=PATIENCE_MS
        )
        await expect(unknown.locator(".took")).to_contain_text("3,000 in, 300 out")
        await expect(unknown.locator(".took")).not_to_contain_text("$")
        other = await tabs.tab(url=front_end.base_url)
        await other.add_key(charging.admin)
        region = other.page.get_by_role("region", name="Tasks")
        await other.page.get_by_label("Status").select_option("completed")
        for row, cost in ((1, "$0.0105"), (0, "")):
            await region.locator("tbody tr").nth(row).get_by_role("button", name="dev /").click()
            facts = other.page.locator("#detail .facts")
            await expect(facts).to_contain_text("3000 in, 300 out", timeout=PATIENCE_MS)
            if cost:
                await expect(facts).to_contain_text(f"Cost{cost}")
                await other.picture("task-cost")
            else:
                await expect(facts).not_to_contain_text("$")
            await other.page.get_by_role("button", name="Close").click()
        await console.picture("turn-cost")
        assert console.complaints == other.complaints == []
    finally:
        await charging.close()


async def test_a_turn_is_replayed(console: Console, tabs: Tabs, stack: Stack) -> None:
    """From the list, after a question: the user's page shows the new turn."""
    await console.ended(await console.say("hello"))
    other = await operator(tabs, stack)
    await other.page.get_by_label("Status").select_option("completed")
    row = other.page.get_by_role("region", name="Tasks").locator("tbody tr").first
    await row.get_by_role("checkbox").check()
    other.page.once("dialog", lambda dialog: dialog.accept())
    await other.page.get_by_role("button", name="Replay 1 selected").click()
    again = console.page.locator(".turn").nth(1)
    await console.ended(again)
    await console.sees(again.locator(".said"), "hello")
    await console.sees(again.locator(".answer"), "You said: hello")


async def test_keys_are_made_listed_and_revoked(tabs: Tabs, stack: Stack) -> None:
    """The new key works, is shown once, and no more after a question."""
    console = await operator(tabs, stack)
    page = console.page
    await page.get_by_label("Owner", exact=True).fill("acme")
    await page.get_by_label("Note", exact=True).fill(f" {NOTE} ")
    await page.get_by_role("button", name="Make a key").click()
    made = page.locator(".made code")
    await console.sees(made, "sk-")
    token = await made.inner_text()
    chat = await tabs.tab()
    await chat.add_key(token)
    await chat.ended(await chat.say("hello"))
    region = page.get_by_role("region", name="API keys")
    row = region.locator("tbody tr", has_text="acme")
    await console.sees(row, "demo")
    await expect(row.locator("[data-label=Note]")).to_have_text(NOTE)
    await expect(page.get_by_label("Note", exact=True)).to_have_value("")
    assert not await page.get_by_text("Loud", exact=True).count()
    await row.scroll_into_view_if_needed()
    await console.axe("keys")
    page.once("dialog", lambda dialog: dialog.accept())
    await row.get_by_role("button", name="Revoke").click()
    await expect(row).to_have_count(0, timeout=PATIENCE_MS)
    assert token not in await region.inner_text()


async def test_turns_over_time_are_told_by_agent_and_owner(tabs: Tabs, client: Client, stack: Stack) -> None:
    """How many, how many failed, how long they took; the same after a reload."""
    for number, text in enumerate(("hello", "/fail no", "/tokens 5")):
        await client.turn(f"s{number}", text)
    token = make_token()
    await ApiKeys(stack.broker.primary).register(token, owner="acme", agent="demo-researcher")
    await stack.client(client.base_url, token).turn("s1", "hello")
    console = await operator(tabs, stack)
    page = console.page
    region = page.get_by_role("region", name="Turns over time")
    for _ in range(2):
        demo = region.locator("tbody tr").first
        await expect(demo.locator("td").nth(0)).to_have_text("demo", timeout=PATIENCE_MS)
        assert [await demo.locator("td").nth(at).inner_text() for at in (1, 2)] == ["3", "1"]
        await console.sees(region.locator("tbody tr").nth(1), "demo-researcher")
        await page.locator("#history-by").select_option("owner")
        await console.sees(region.locator("tbody tr").nth(1), "acme")
        await region.scroll_into_view_if_needed()
        await console.axe("turns-over-time")
        await page.reload()


async def test_the_graphs_outlive_a_reload(tabs: Tabs, stack: Stack, client: Client) -> None:
    """They begin with what they had."""
    await client.turn("s1", "hello")
    console = await operator(tabs, stack)
    picture = console.page.locator(".card svg").first
    await expect(picture).to_have_attribute(
        "aria-label", re.compile("last [2-9] samples"), timeout=PATIENCE_MS
    )
    await console.page.reload()
    await expect(picture).to_have_attribute(
        "aria-label", re.compile(r"last ([3-9]|\d\d) samples"), timeout=PATIENCE_MS
    )


async def test_a_worker_is_paused_and_resumed(console: Console, tabs: Tabs, stack: Stack) -> None:
    """Its row tells; a turn waits meanwhile."""
    other = await operator(tabs, stack)
    worker = stack.workers[0][0].id
    row = other.page.get_by_role("region", name="Processes").locator("tbody tr", has_text=worker)
    other.page.once("dialog", lambda dialog: dialog.accept())
    await row.get_by_role("button", name=f"Pause {worker}").click()
    await other.sees(row, "paused")
    turn = await console.say("hello")
    await console.sees(turn.locator(".state"), "waiting")
    await other.sees(other.page.locator(".card", has_text="Queue depth").locator("strong"), "1")
    await row.get_by_role("button", name=f"Resume {worker}").click()
    await console.ended(turn)
    await other.sees(row, "working")
