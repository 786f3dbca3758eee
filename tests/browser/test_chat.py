"""The console's chat side, as a person uses it in a browser."""

from __future__ import annotations

import asyncio
import base64
import re
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import FilePayload, expect

from tests.browser.conftest import PATIENCE_MS
from tests.unit.turnstream.client.conftest import port_of

if TYPE_CHECKING:
    from playwright.async_api import Locator, Route

    from tests.browser.conftest import Console, Tabs
    from tests.support.client import Client
    from tests.support.link import Link
    from tests.support.stack import Stack

pytestmark = pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
HOSTILE = '<img src=x onerror="document.title=\'pwned\'"><script>document.title="pwned"</script>'


def tokens(count: int) -> str:
    """What `/tokens count` says, as a reader sees it."""
    return " ".join(f"tok{number}" for number in range(count))


async def text_of(turn: Locator) -> str:
    """All that the agent said in a turn."""
    return " ".join(await turn.locator(".answer").all_inner_texts()).strip()


async def test_a_chat(console: Console) -> None:
    """Text, thinking, tools, a sub-agent and critics are shown as they come; the light says that it is live."""
    turn = await console.say("Hello **there**")
    await console.ended(turn)
    assert await text_of(turn) == "You said: Hello there"
    await console.light("live")
    turn = await console.say("/think about it")
    await console.ended(turn)
    await console.sees(turn.locator("summary"), "Thought")
    assert await text_of(turn) == "I thought about it: about it."
    turn = await console.say("/tool add 1 2")
    await console.ended(turn)
    await console.sees(turn.locator(".tool"), "add(a=1, b=2)")
    await console.sees(turn.locator(".tool-result"), "3")
    turn = await console.say("/dispatch look it up")
    await console.ended(turn)
    await console.sees(turn.locator(".dispatch"), "Asked demo-researcher: look it up")
    await console.sees(turn.locator(".inner"), "I looked into it")
    turn = await console.say("/reflect")
    await console.ended(turn)
    await console.sees(turn.locator(".critic").last, "round 2: passed (9/10 Well put.)")
    turn = await console.say("/fail no luck")
    await console.ended(turn, "failed")
    await console.sees(turn.locator(".state"), "Failed: no luck")
    await console.picture("chat")


async def test_a_client_call_and_an_approval_by_keyboard(console: Console) -> None:
    """The form takes JSON, the buttons decide; without a mouse."""
    page = console.page
    turn = await console.say('/call weather {"city": "Bern"}')
    await console.sees(turn.locator(".ask"), "The agent calls weather")
    await console.picture("client-call")
    field = turn.get_by_label("Result, as JSON or text")
    await field.focus()
    await page.keyboard.type('{"t": 21}')
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await console.ended(turn)
    assert await text_of(turn) == 'The result is {"t":21}.'
    turn = await console.say("/approve")
    await console.sees(turn.locator(".ask"), "Allow delete_everything?")
    await console.picture("approval")
    await turn.get_by_label("Reason (optional)").focus()
    await page.keyboard.type("not on a Friday")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await console.ended(turn)
    await console.sees(turn.locator(".outcome"), "Refused: not on a Friday")
    turn = await console.say("/approve")
    await turn.get_by_role("button", name="Approve").click()
    await console.ended(turn)
    await console.sees(turn.locator(".outcome"), "Approved")


async def test_a_reload_in_mid_stream_goes_on_where_it_was(console: Console) -> None:
    """What was shown is there at once, the rest follows after the last event, and nothing comes twice."""
    await console.ended(await console.say("before"))
    turn = await console.say("/tokens 150 20")
    await console.sees(turn, "tok20 ")
    assert console.resumed_from() == []
    await console.page.reload()
    first, second = console.page.locator(".turn").first, console.page.locator(".turn").nth(1)
    await console.sees(first.locator(".said"), "before")
    await console.sees(second, "tok20 ")
    await console.ended(second)
    assert await text_of(second) == tokens(150)
    assert await text_of(first) == "You said: before"
    assert len(console.resumed_from()) == 1, "the reload asked for what came after its last event"


async def test_a_front_ends_death_in_mid_stream_is_survived(
    console: Console, client: Client, stack: Stack, proxy: Link
) -> None:
    """The light says that the connection is lost, another front end takes over, each word comes once."""
    other = await stack.front_end()
    turn = await console.say("/tokens 150 20")
    await console.sees(turn, "tok20 ")
    proxy.upstream = 1
    await stack.stop_front_end(client)
    proxy.cut_all()
    await console.light("lost")
    await console.picture("connection-lost")
    proxy.upstream = port_of(other)
    await console.light("live")
    await console.ended(turn)
    assert await text_of(turn) == tokens(150)
    assert console.resumed_from() != []


async def test_a_dropped_network_is_survived(console: Console) -> None:
    """Offline is said at once; the turn goes on without us and is caught up with."""
    turn = await console.say("/tokens 100 10")
    await console.sees(turn, "tok10 ")
    await console.page.context.set_offline(True)
    await console.light("lost")
    await console.sees(console.page.locator("#light"), "offline")
    await console.page.context.set_offline(False)
    await console.ended(turn)
    assert await text_of(turn) == tokens(100)


async def test_the_stop_button_ends_the_turn(console: Console) -> None:
    """It is there while something runs; what was said stays."""
    turn = await console.say("/tokens 2000 20")
    await console.sees(turn, "tok5 ")
    await console.page.get_by_role("button", name="Stop").click()
    await console.ended(turn, "canceled")
    await console.sees(turn, "tok5 ")
    await expect(console.page.get_by_role("button", name="Stop")).to_be_hidden()


async def test_hostile_text_stays_text(console: Console) -> None:
    """Whatever an agent says, calls or fails with is shown as it is: no element comes of it, no script runs."""
    page = console.page
    turn = await console.say(HOSTILE)
    await console.ended(turn)
    assert await text_of(turn) == f"You said: {HOSTILE}"
    failed = await console.say(f"/fail {HOSTILE}")
    await console.ended(failed, "failed")
    await console.sees(failed.locator(".state"), HOSTILE)
    for link in ("javascript:alert(1)", "data:text/html,<script>1</script>", "data:image/svg+xml,<svg/>"):
        shown = await console.say(f"/image {link}")
        await console.ended(shown)
        await expect(shown.locator("img, a")).to_have_count(0)
    for link in ("https://[", "https://", "http://pictures.invalid:port/"):
        shown = await console.say(f"/image {link}")
        await console.ended(shown)
        await console.sees(shown, f"Image: {link}")
        await expect(shown.locator("img, a, .aside button")).to_have_count(0)
    far = await console.say("/image https://pictures.invalid/secret.png")
    await console.ended(far)
    await expect(far.get_by_role("button", name="Load image from pictures.invalid")).to_be_visible()
    called = await console.say('/call f {"x": "<b onmouseover=1>"}')
    await console.sees(called.locator(".ask pre"), '"<b onmouseover=1>"')
    await expect(page.locator("#log script, #log iframe, #log b, #log [onerror], #log img")).to_have_count(0)
    assert "pwned" not in await page.title()
    await console.picture("hostile")


async def test_a_phone(tabs: Tabs, stack: Stack) -> None:
    """At 390 pixels nothing is cut off or scrolls sideways, and the conversations are behind a button."""
    for scheme in ("light", "dark"):
        console = await tabs.tab(viewport={"width": 390, "height": 844}, color_scheme=scheme, has_touch=True)
        await console.add_key(stack.key)
        await console.ended(await console.say("/tool add 1 2"))
        turn = await console.say("/approve " + "a-long-word-without-any-break" * 5)
        await console.sees(turn.locator(".ask"), "Allow delete_everything?")
        await console.picture(f"phone-{scheme}")
        inside = "document.documentElement.scrollWidth <= innerWidth && document.querySelector('#log').scrollWidth <= innerWidth"
        assert await console.page.evaluate(inside)
        await expect(turn.get_by_role("button", name="Approve")).to_be_in_viewport()
        await expect(console.page.get_by_role("button", name="Send")).to_be_in_viewport()
        await console.page.get_by_role("button", name="Conversations").click()
        await expect(console.page.get_by_role("button", name="New conversation")).to_be_in_viewport()
        assert console.complaints == []


async def test_an_image_is_sent_and_shown(console: Console) -> None:
    """It is attached, can be removed again, and goes with the message."""
    picture = FilePayload(name="dot.png", mimeType="image/png", buffer=PIXEL)
    await console.page.set_input_files("#attach", [picture, picture])
    await console.page.get_by_role("button", name="Remove image 2").click()
    turn = await console.say("look")
    await console.ended(turn)
    await expect(turn.locator(".said img")).to_have_count(1)
    assert await text_of(turn) == "You said: look (an attachment)"
    await expect(console.page.locator("#thumbs img")).to_have_count(0)


async def test_a_conversation_is_found_again(tabs: Tabs, stack: Stack) -> None:
    """With a key that is remembered, another tab lists the conversation, shows it whole, and sees new turns."""
    window = await tabs.window()
    first = await tabs.tab(window)
    await first.add_key(stack.key, keep=True)
    await first.ended(await first.say("the first words"))
    second = await tabs.tab(window)
    await second.page.get_by_role("button", name="the first words").click()
    turn = second.page.locator(".turn").first
    await second.ended(turn)
    await second.sees(turn.locator(".said"), "the first words")
    assert await text_of(turn) == "You said: the first words"
    await first.say("the second words")
    await second.sees(second.page.locator(".turn").nth(1).locator(".said"), "the second words")
    await second.ended(second.page.locator(".turn").nth(1))
    first.page.on("dialog", lambda dialog: dialog.accept())
    await first.page.get_by_role("button", name="Delete").click()
    await expect(first.page.locator(".turn")).to_have_count(0, timeout=PATIENCE_MS)
    await second.sees(second.page.locator(".notice"), "no longer kept by the server")


async def test_a_wrong_key_is_told_in_words(tabs: Tabs) -> None:
    """The dialog says what is wrong and stays; no key is shown in the page or its address."""
    console = await tabs.tab()
    await console.page.get_by_role("button", name="Keys").click()
    await console.page.get_by_label("API key").fill("sk-00000000000000000000000000000000")
    await console.page.get_by_role("button", name="Add key").click()
    await console.sees(console.page.locator("#key-error"), re.compile("not known here"))
    assert "sk-0000" not in await console.page.inner_text("body")
    assert "sk-" not in console.page.url


async def test_a_removed_key_leaves_nothing(console: Console, stack: Stack) -> None:
    """Neither the key nor what was said with it stays in the browser."""
    page = console.page
    await console.ended(await console.say("a secret of mine"))
    kept = "JSON.stringify([{...sessionStorage}, {...localStorage}])"
    await page.get_by_label("Message").fill("a secret draft")
    for secret in ("a secret of mine", "a secret draft"):
        await page.wait_for_function(f"() => {kept}.includes('{secret}')")
    await page.get_by_role("button", name="Keys").click()
    await page.get_by_role("button", name="Remove").click()
    await expect(page.locator("#key-list li")).to_have_count(0, timeout=PATIENCE_MS)
    await page.reload()
    await console.sees(page.locator("#log"), "Add an API key to begin.")
    left = await page.evaluate(kept)
    assert stack.key not in left
    assert "a secret" not in left


@pytest.mark.parametrize("taken", [True, False])
async def test_a_new_conversation_while_a_message_is_on_its_way(console: Console, taken: bool) -> None:
    """What becomes of the message happens in the conversation that it was said in."""
    page = console.page
    came, release = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        if route.request.method == "POST" and not came.is_set():
            came.set()
            await release.wait()
            if not taken:
                await route.fulfill(status=422, json={"code": "invalid_body", "message": "No."})
                return
        await route.continue_()

    await page.route(re.compile(r"/process($|\?)"), hold)
    await console.say("the first words")
    await came.wait()
    await page.get_by_role("button", name="New conversation").click()
    async with page.expect_response(lambda answer: answer.request.method == "POST"):
        release.set()
    turn = await console.say("the second words")
    await console.ended(turn)
    await expect(page.locator(".turn")).to_have_count(1)
    assert await text_of(turn) == "You said: the second words"
    told = [] if taken else ["What you said in another conversation was not sent: No."]
    assert await page.locator(".notice").all_inner_texts() == told
    assert await page.get_by_label("Message").input_value() == ""
    followed = [each.url for each in console.requests if each.method == "GET" and "/process" in each.url]
    assert [url for url in followed if "session_id=" not in url] == []
    await page.get_by_role("button", name="the first words").click()
    if taken:
        await console.sees(page.locator(".turn"), "You said: the first words")


async def test_large_and_many_events_keep_the_page_alive(console: Console) -> None:
    """Two thousand pieces, as fast as they come, are all there."""
    turn = await console.say("/tokens 2000")
    await console.ended(turn)
    assert await text_of(turn) == tokens(2000)
