"""What a person does around the chat: comes back, goes offline, has many tabs, a phone, or a keyboard only."""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import FilePayload, expect

import tests
from tests.behaviour.conftest import team
from tests.browser.conftest import PATIENCE_MS
from tests.support.scripted import script
from tests.support.stack import Stack
from turnstream.shared.api_keys import ApiKeys, make_token
from turnstream.shared.broker.client import command

if TYPE_CHECKING:
    from playwright.async_api import Locator, Route

    from tests.browser.conftest import Console, Tabs
    from tests.conftest import Place
    from tests.support.client import Client

pytestmark = pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)

PHONE = {"width": 390, "height": 844}
JSON = {"Content-Type": "application/json"}
SUBMITS = re.compile(r"/process($|\?)")


async def fail_posts(route: Route) -> None:
    """No message reaches the server."""
    if route.request.method == "POST":
        await route.abort()
    else:
        await route.continue_()


async def users_lines(console: Console, client: Client) -> list[Any]:
    """What users said, as the server knows it, in the conversation that is shown."""
    session = await console.page.evaluate("JSON.parse(sessionStorage['turnstream.view']).session")
    answer = await client.http.get("/liteAgent/v1/history", params={"sessionId": session})
    return [each["content"] for each in answer.json() if each["role"] == "user"]


async def hide(console: Console, hidden: bool) -> None:
    """Have the page believe that its tab is in the background, or in front again."""
    await console.page.evaluate(
        """(hidden) => {
            Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
            Object.defineProperty(document, 'visibilityState', { configurable: true, get: () => (hidden ? 'hidden' : 'visible') });
            document.dispatchEvent(new Event('visibilitychange'));
        }""",
        hidden,
    )


async def focused(where: Locator) -> None:
    """Wait until it has the focus."""
    await expect(where).to_be_focused(timeout=PATIENCE_MS)


@pytest.mark.parametrize("first", [True, False])
async def test_a_message_that_was_not_sent_outlives_a_reload(
    console: Console, client: Client, first: bool
) -> None:
    """It says that it is not sent yet, is sent when that is possible again, and is taken once."""
    page = console.page
    if not first:
        await console.ended(await console.say("before"))
    await page.route(SUBMITS, fail_posts)
    turn = await console.say("said offline")
    await console.sees(turn.locator(".state"), "not sent yet")
    await page.reload()
    turn = page.locator(".turn").last
    await console.sees(turn.locator(".said"), "said offline")
    await console.sees(turn.locator(".state"), "not sent yet")
    await page.unroute(SUBMITS)
    await console.ended(turn)
    await console.sees(turn.locator(".answer"), "You said: said offline")
    await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    await page.reload()
    await expect(page.locator(".turn")).to_have_count(1 if first else 2, timeout=PATIENCE_MS)
    said = [str(line) for line in await users_lines(console, client)]
    assert sum("said offline" in line for line in said) == 1


async def test_a_message_whose_acceptance_was_lost_is_taken_once(console: Console, client: Client) -> None:
    """It says not sent yet, is sent again under its id, after a reload too, and there is one turn of it."""
    page = console.page
    await console.ended(await console.say("before"))

    async def lose(route: Route) -> None:
        if route.request.method == "POST":
            async with client.http.stream(
                "POST", "/process", content=route.request.post_data_buffer, headers=JSON
            ) as answer:
                assert answer.status_code == 200, await answer.aread()
            await route.abort()
        else:
            await route.continue_()

    await page.route(SUBMITS, lose)
    turn = await console.say("only once")
    await console.ended(turn)
    assert len(await page.evaluate("JSON.parse(sessionStorage['turnstream.outbox'])")) == 1
    await page.reload()
    await page.unroute(SUBMITS)
    await page.wait_for_function("() => sessionStorage['turnstream.outbox'] === '[]'")
    await expect(page.locator(".turn")).to_have_count(2, timeout=PATIENCE_MS)
    said = [str(line) for line in await users_lines(console, client)]
    assert sum("only once" in line for line in said) == 1


async def test_a_message_that_was_not_sent_can_be_taken_back(console: Console) -> None:
    """Stop gives it back to the field that it was written in; nothing is left to send."""
    page = console.page
    await page.route(SUBMITS, fail_posts)
    turn = await console.say("rather not")
    await console.sees(turn.locator(".state"), "not sent yet")
    await page.get_by_role("button", name="Stop").click()
    await console.ended(turn, "canceled")
    await expect(page.get_by_label("Message")).to_have_value("rather not")
    assert await page.evaluate("JSON.parse(sessionStorage['turnstream.outbox'])") == []


async def test_a_draft_stays_in_its_conversation(console: Console) -> None:
    """It is there again when one comes back, and after a reload; elsewhere it is not."""
    page, field = console.page, console.page.get_by_label("Message")
    await console.ended(await console.say("one"))
    await page.get_by_role("button", name="New conversation").click()
    await console.ended(await console.say("two"))
    await field.fill("a draft in two")
    await page.locator(".session", has_text="one").click()
    await expect(field).to_have_value("")
    await page.locator(".session", has_text="two").click()
    await expect(field).to_have_value("a draft in two")
    await page.reload()
    await expect(field).to_have_value("a draft in two")
    await console.ended(await console.say("sent now"))
    await page.reload()
    await expect(field).to_have_value("")


async def test_a_phones_drawer_closes(tabs: Tabs, stack: Stack) -> None:
    """By a tap beside it, by Escape, by a new conversation, by another agent."""
    console = await tabs.tab(viewport=PHONE, has_touch=True)
    await console.add_key(stack.key)
    page, new = console.page, console.page.get_by_role("button", name="New conversation")
    toggle = page.get_by_role("button", name="Conversations")

    async def opened() -> None:
        await toggle.click()
        await expect(new).to_be_in_viewport(ratio=1, timeout=PATIENCE_MS)

    await opened()
    await page.mouse.click(380, 400)
    await expect(new).to_be_hidden(timeout=PATIENCE_MS)
    await opened()
    await focused(new)
    await console.picture("phone-drawer")
    await page.keyboard.press("Escape")
    await expect(new).to_be_hidden(timeout=PATIENCE_MS)
    await focused(toggle)
    await opened()
    await new.click()
    await expect(new).to_be_hidden(timeout=PATIENCE_MS)
    await focused(page.get_by_label("Message"))
    other = make_token()
    await ApiKeys(stack.broker.primary).register(other, owner="dev", agent="demo")
    await console.add_key(other)
    await opened()
    await page.locator("#pick-key").select_option(f"key:{stack.key}")
    await expect(new).to_be_hidden(timeout=PATIENCE_MS)


AT_END = (
    "() => { const { scrollHeight, scrollTop, clientHeight } = document.getElementById('log');"
    " return scrollHeight > clientHeight && scrollHeight - scrollTop - clientHeight < 60; }"
)


async def test_a_phones_keyboard_hides_nothing(tabs: Tabs, stack: Stack) -> None:
    """When the page becomes lower, who read its end goes on seeing it."""
    console = await tabs.tab(viewport=PHONE, has_touch=True)
    await console.add_key(stack.key)
    await console.ended(await console.say("/tokens 600"))
    await console.page.wait_for_function(AT_END)
    await console.page.set_viewport_size({"width": 390, "height": 500})
    await console.page.wait_for_function(AT_END)


async def test_a_keyboard_may_open_while_text_arrives(console: Console) -> None:
    """What scrolls by itself is not taken for the reader's will, though its event comes after the page became lower."""
    page = console.page
    await console.ended(await console.say("/tokens 600"))
    await page.wait_for_function(AT_END)
    await page.locator("#log").evaluate(
        "log => { log.lastElementChild.style.paddingBottom = '300px'; log.scrollTop = log.scrollHeight;"
        " log.style.flex = 'none'; log.style.height = `${log.clientHeight - 200}px`; }"
    )
    await page.wait_for_function(AT_END)
    # But who scrolls up, stays there.
    await page.locator("#log").evaluate("log => { log.scrollTop = 0; }")
    await expect(page.locator("#jump")).to_be_visible(timeout=PATIENCE_MS)
    await page.locator("#log").evaluate("log => { log.style.height = `${log.clientHeight - 20}px`; }")
    await expect(page.locator("#jump")).to_be_visible()
    assert await page.locator("#log").evaluate("log => log.scrollTop") == 0


async def test_who_reads_above_is_told_what_comes_below(console: Console) -> None:
    """A button says that there is more, and leads to it; at the end there is none."""
    page = console.page
    await console.ended(await console.say("/tokens 900"))
    jump = page.locator("#jump")
    await expect(jump).to_be_hidden()
    turn = await console.say("/call f {}")
    field = turn.get_by_label("Result, as JSON or text")
    await field.fill("42")
    await page.locator("#log").evaluate("log => { log.scrollTop = 0; }")
    # Its text alone stands there while it is hidden, too: before the page has noticed that somebody scrolled.
    await expect(jump).to_be_visible(timeout=PATIENCE_MS)
    await expect(jump).to_have_text("Jump to the latest")
    await turn.get_by_role("button", name="Send result").evaluate("button => button.form.requestSubmit()")
    await expect(jump).to_have_text("New below", timeout=PATIENCE_MS)
    await console.picture("jump")
    await jump.click()
    await expect(jump).to_be_hidden()
    await expect(turn.locator(".answer")).to_be_in_viewport()


async def test_the_focus_goes_on(console: Console) -> None:
    """After an answer to the next question, after the last one and after a stop to the composer."""
    page, composer = console.page, console.page.get_by_label("Message")
    turn = await console.say("/calls 2")
    fields = turn.get_by_label("Result, as JSON or text")
    await expect(fields).to_have_count(2, timeout=PATIENCE_MS)
    await fields.first.focus()
    for left in (fields.nth(1), composer):
        await page.keyboard.type("1")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await focused(left)
    await console.ended(turn)
    await focused(composer)
    for name in ("Approve", "Refuse"):
        turn = await console.say("/approve")
        await turn.get_by_role("button", name=name).focus()
        await page.keyboard.press("Enter")
        await focused(composer)
        await console.ended(turn)
    turn = await console.say("/tokens 2000 20")
    await console.sees(turn, "tok3 ")
    await page.get_by_role("button", name="Stop").focus()
    await page.keyboard.press("Enter")
    await console.ended(turn, "canceled")
    await focused(composer)


async def test_hidden_tabs_leave_the_connections_to_the_one_in_front(tabs: Tabs, stack: Stack) -> None:
    """A browser opens six to a server. A hidden tab sees what came when it is shown; its title when its turn is done."""
    window = await tabs.window()
    console = await tabs.tab(window)
    await console.add_key(stack.key, keep=True)
    consoles = [console, *[await tabs.tab(window) for _ in range(5)]]
    for each in consoles:
        await each.ended(await each.say("hello"))
        await hide(each, hidden=True)
    await hide(consoles[0], hidden=False)
    working = await consoles[0].say("/tokens 100 20")
    await consoles[0].sees(working, "tok2 ")
    await hide(consoles[0], hidden=True)
    seventh = await tabs.tab(window)
    await seventh.ended(await seventh.say("the seventh"))
    await seventh.light("live")
    await expect(consoles[0].page).to_have_title("Turnstream console", timeout=PATIENCE_MS)
    await hide(consoles[1], hidden=False)
    await consoles[1].light("live")
    await consoles[1].ended(await consoles[1].say("back again"))


async def test_a_forgotten_conversation_says_so(console: Console, stack: Stack) -> None:
    """A link to it leads to words that say so, it is not in the list, and can be begun anew."""
    page = console.page
    await console.ended(await console.say("long ago"))
    link = page.url
    await page.get_by_role("button", name="New conversation").click()
    sessions = stack.broker.sessions
    for key in await command(sessions, "KEYS", "ts:{dev/*"):
        await command(sessions, "DEL", key)
    await page.goto(link)
    await console.sees(page.locator(".notice"), "no longer kept by the server")
    await expect(page.locator(".session")).to_have_count(0, timeout=PATIENCE_MS)
    await console.sees(page.locator("#light"), "ready")
    await console.ended(await console.say("once more"))
    await console.light("live")
    assert page.url == link
    await expect(page.locator(".session", has_text="once more")).to_be_visible(timeout=PATIENCE_MS)


async def test_a_refused_tool_is_no_success(console: Console) -> None:
    """What ran is green, what was refused is not."""
    colour = "mark => getComputedStyle(mark).backgroundColor"
    colours = []
    for name in ("Approve", "Refuse"):
        turn = await console.say("/approve")
        await turn.get_by_role("button", name=name).click()
        await console.ended(turn)
        colours.append(await turn.locator(".tool .mark").evaluate(colour))
    assert colours[0] != colours[1]


async def test_tools_are_told_once_and_missing_ones_always(tabs: Tabs, place: Place, stack: Stack) -> None:
    """A server that cannot be reached is no server without tools; a turn without an answer says that."""
    server = str(Path(next(iter(tests.__path__))) / "support" / "mcp_server.py")
    there = {"label": "there", "command": sys.executable, "args": [server]}
    gone = {"label": "gone", "command": sys.executable, "args": ["-c", ""]}
    # The usual worker does not know this agent.
    await stack.stop_worker(stack.workers[0][0])
    team_stack = Stack(place, team(lead={"mcp": [there, gone]}), dev_agent="lead")
    try:
        await team_stack.worker()
        front_end = await team_stack.front_end()
        console = await tabs.tab(url=front_end.base_url)
        await console.add_key(team_stack.key)
        first = await console.say(script("hi"))
        await console.ended(first)
        await console.sees(first, re.compile(r"there offers \d+ tools"))
        await console.sees(first, "The tools of gone are missing: ")
        await expect(first).not_to_contain_text("gone offers")
        second = await console.say(script("hi"))
        await console.ended(second)
        await expect(second.get_by_text("there offers")).to_be_hidden()
        await console.sees(second, "The tools of gone are missing: ")
        third = await console.say(script(""))
        await console.ended(third)
        await console.sees(third.locator(".state"), "The agent said nothing")
        await console.picture("tools")
    finally:
        await team_stack.close()


async def test_what_is_written_from_right_to_left_is_shown_so(console: Console) -> None:
    """What is typed, said and answered has the direction of its own letters."""
    direction = "each => getComputedStyle(each).direction"
    text = "שלום 42\n\n- אחת\n- שתיים"
    field = console.page.get_by_label("Message")
    await field.fill(text)
    assert await field.evaluate(direction) == "rtl"
    turn = await console.say(text)
    await console.ended(turn)
    assert await turn.locator(".said p").evaluate(direction) == "rtl"
    assert await turn.locator(".answer ul").evaluate(direction) == "rtl"
    assert await turn.locator(".answer p").first.evaluate(direction) == "ltr", "it begins with: You said"


async def test_a_key_is_taken_as_people_paste_it(tabs: Tabs, stack: Stack) -> None:
    """With the word before it and spaces around; what cannot be one is told in words that fit the dialog."""
    console = await tabs.tab()
    await console.page.get_by_role("button", name="Keys").click()
    field = console.page.get_by_label("API key")
    await field.fill("my key")
    await console.page.get_by_role("button", name="Add key").click()
    await console.sees(console.page.locator("#key-error"), "begins with sk-")
    await field.fill(f"  Bearer {stack.key} ")
    await console.page.get_by_role("button", name="Add key").click()
    await expect(console.page.locator("#keys")).to_be_hidden(timeout=PATIENCE_MS)
    await console.ended(await console.say("hello"))


async def test_the_page_says_what_it_cannot_do(console: Console) -> None:
    """Offline before the first word; a file that is larger than the agent takes."""
    page = console.page
    await console.sees(page.locator("#light"), "ready")
    await page.context.set_offline(True)
    await console.sees(page.locator("#light"), "offline")
    await page.context.set_offline(False)
    await console.sees(page.locator("#light"), "ready")
    large = FilePayload(name="large.pdf", mimeType="application/pdf", buffer=bytes(8_000_000))
    await page.set_input_files("#attach", [large])
    await console.sees(
        page.locator(".notice"), "large.pdf is too large: a message to this agent may have 10.4 MB"
    )
    await expect(page.locator(".thumb")).to_have_count(0)


async def test_only_what_the_agent_takes_is_attached(tabs: Tabs, place: Place, stack: Stack) -> None:
    """The button offers no others; one that is dropped is refused in words, and so it is by the server."""
    picky = Stack(place, team(lead={"attachments": ["image"]}), dev_agent="lead")
    try:
        front_end = await picky.front_end()
        console = await tabs.tab(url=front_end.base_url)
        await console.add_key(picky.key)
        page = console.page
        await expect(page.locator("#attach")).to_have_attribute("accept", "image/*", timeout=PATIENCE_MS)
        pdf = FilePayload(name="a.pdf", mimeType="application/pdf", buffer=b"%PDF-1.4")
        await page.set_input_files("#attach", [pdf])
        await console.sees(
            page.locator("body"), "a.pdf is not attached: this agent takes images and text, no files."
        )
        await expect(page.locator("#thumbs")).to_be_hidden()
        await console.axe("not-attached")
    finally:
        await picky.close()


async def test_any_file_is_attached_by_button_drop_and_paste(console: Console) -> None:
    """It goes with the message, and what was said shows it, after a reload, too."""
    page = console.page
    pdf = FilePayload(name="a.pdf", mimeType="application/pdf", buffer=b"%PDF-1.4")
    await page.set_input_files("#attach", [pdf])
    give = """(files) => files.map(([kind, name]) => {
        const given = new DataTransfer();
        given.items.add(new File(['words'], name, { type: 'text/plain' }));
        const made = kind === 'drop' ? new DragEvent('drop', { bubbles: true, cancelable: true, dataTransfer: given })
            : new ClipboardEvent('paste', { bubbles: true, cancelable: true, clipboardData: given });
        document.getElementById(kind === 'drop' ? 'log' : 'said').dispatchEvent(made);
        return made.defaultPrevented;
    })"""
    dropped, _ = await page.evaluate(give, [["drop", "b.txt"], ["paste", "c.txt"]])
    assert dropped
    await expect(page.locator(".thumb")).to_have_count(3, timeout=PATIENCE_MS)
    await page.get_by_role("button", name="Remove c.txt 3").click()
    await console.axe("attached")
    turn = await console.say("look")
    await console.ended(turn)
    await expect(turn.locator(".said .attached")).to_have_text(["a.pdf", "b.txt"])
    await console.sees(turn.locator(".answer"), "(an attachment)")
    await page.evaluate(f"({give})([['paste', 'd.txt']]); document.getElementById('send').click()")
    await expect(page.locator(".said .attached").last).to_have_text("d.txt", timeout=PATIENCE_MS)
    await expect(page.locator(".thumb")).to_have_count(0)
    await page.reload()
    await expect(page.locator(".said .attached")).to_have_text(
        ["a.pdf", "b.txt", "d.txt"], timeout=PATIENCE_MS
    )


async def test_the_address_alone_leads_to_the_page(tabs: Tabs, stack: Stack) -> None:
    """And an operator is told how to chat, not to add a key."""
    console = await tabs.tab()
    await console.page.goto(f"{console.url}/")
    await console.add_key(stack.admin)
    await console.page.get_by_role("button", name="Chat").click()
    await console.sees(console.page.locator(".welcome"), "Pick an agent")
    await expect(console.page.locator(".welcome")).not_to_contain_text("Add an API key")


async def test_who_spoke_is_told_to_who_cannot_see(console: Console, tabs: Tabs, stack: Stack) -> None:
    """Articles are named after their speakers, headings leave out no level, no two landmarks share a name."""
    page = console.page
    turn = await console.say("hello\n\n#### deep\n\n# high\n\n### low")
    await console.ended(turn)
    await expect(turn.get_by_role("article", name="You said")).to_contain_text("hello")
    await expect(turn.get_by_role("article", name="demo answered")).to_contain_text("You said: hello")
    for _ in range(2):
        turn = await console.say("/approve")
        await console.sees(turn.locator(".ask"), "Allow delete_everything?")
        await turn.get_by_role("button", name="Refuse").click()
        await console.ended(turn)
    levels = await page.evaluate(
        "[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].filter((each) => each.checkVisibility()).map((each) => Number(each.tagName[1]))"
    )
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), levels
    await expect(page.get_by_role("region", name="Allow delete_everything?")).to_have_count(0)
    other = await tabs.tab(viewport=PHONE)
    await other.add_key(stack.admin)
    await expect(other.page.get_by_role("heading", level=1)).to_have_text("Operate", timeout=PATIENCE_MS)
    await other.sees(other.page.get_by_role("region", name="Processes"), "Front ends")
    box = await other.page.locator("caption", has_text="Front ends").bounding_box()
    assert box
    assert box["height"] > 10


async def test_nothing_moves_when_a_conversation_begins(console: Console) -> None:
    """The head is as high with its button as without."""
    head = console.page.locator(".talk-head")
    before = await head.bounding_box()
    await console.ended(await console.say("hello"))
    await expect(console.page.get_by_role("button", name="Delete")).to_be_visible()
    assert await head.bounding_box() == before


async def test_the_link_that_serve_prints_brings_its_key(tabs: Tabs, stack: Stack) -> None:
    """Who opens it can chat at once, and the key stands in the address no more, not even while it is looked up."""
    console = await tabs.tab()
    page = console.page
    addresses: list[str] = []

    async def note(route: Route) -> None:
        addresses.append(page.url)
        await route.continue_()

    await page.route("**/console/key", note)
    await page.goto(f"about:blank#{console.url}")
    await page.goto(f"{console.url}/console#key={stack.key}")
    turn = await console.say("hello")
    await console.ended(turn)
    assert len(addresses) == 1
    assert stack.key not in addresses[0]
    assert stack.key not in page.url
    await page.go_back()
    await page.go_forward()
    assert stack.key not in page.url
    assert console.complaints == []


async def test_a_link_with_an_operators_key_leads_to_their_page(tabs: Tabs, stack: Stack) -> None:
    """Nobody chats with it: where there is a chat key, that is still the chat's."""
    console = await tabs.tab()
    page = console.page
    await page.goto(f"about:blank#{console.url}")
    await page.goto(f"{console.url}/console#key={stack.key}")
    await expect(page.get_by_label("Message")).to_be_enabled(timeout=PATIENCE_MS)
    await page.evaluate(f"location.hash = '#key={stack.admin}'")
    await expect(page.locator("#view-operate")).to_be_visible(timeout=PATIENCE_MS)
    assert stack.admin not in page.url
    await page.locator("#tab-chat").click()
    await console.ended(await console.say("hello"))


async def test_nothing_is_typed_before_the_key_is_known(tabs: Tabs, stack: Stack) -> None:
    """It could not be sent, and would be lost when the key's own draft is shown."""
    console = await tabs.tab()
    page, field = console.page, console.page.get_by_label("Message")
    asked, known = asyncio.Event(), asyncio.Event()

    async def wait(route: Route) -> None:
        asked.set()
        await known.wait()
        await route.continue_()

    await page.route("**/console/key", wait)
    await page.goto(f"about:blank#{console.url}")
    await page.goto(f"{console.url}/console#key={stack.key}")
    await asked.wait()
    await expect(field).to_be_disabled()
    known.set()
    await console.ended(await console.say("hello"))


async def test_a_link_with_a_wrong_key_is_explained(tabs: Tabs) -> None:
    """It is not kept, and the page says what is wrong with it."""
    console = await tabs.tab()
    await console.page.goto("about:blank")
    await console.page.goto(f"{console.url}/console#key=sk-{'0' * 32}")
    await console.sees(console.page.locator("body"), "not known here")
