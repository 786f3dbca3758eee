"""Chatting through the Python client: what a reply tells, and the session behind it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from turnstream.client import InvalidRequest, NotFound, TurnCanceled, TurnFailed
from turnstream.client.events import read_event
from turnstream.shared.protocol import AgentResponse, Content, Message, TextContent

if TYPE_CHECKING:
    from turnstream import AsyncClient

TOKENS = "".join(f"tok{number} " for number in range(5))


async def test_every_event_comes_typed(ours: AsyncClient) -> None:
    """Iterating gives the protocol's models in order, dense, to the terminal event."""
    reply = ours.chat("/tokens 5")
    events = [event async for event in reply]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert isinstance(events[0], AgentResponse)
    assert isinstance(events[3], Message)
    assert isinstance(events[5], TextContent)
    assert events[0].session_id == reply.session.id
    assert events[-1].status == "completed"
    assert reply.ended
    assert reply.messages_so_far[-1].get_text_content() == TOKENS


async def test_a_reply_is_had_as_pieces_as_messages_or_as_a_whole(ours: AsyncClient) -> None:
    """Deltas joined are the text; messages come whole; the terminal event has everything."""
    session = ours.session()
    pieces = [piece async for piece in session.chat("/tokens 5").deltas()]
    assert "".join(pieces) == TOKENS
    assert await session.chat("/tokens 5").text() == TOKENS
    kinds = [message.type async for message in session.chat("/think").messages()]
    assert kinds == ["reasoning", "message"]
    response = await session.chat("hi").finished()
    assert response.status == "completed"
    assert response.output is not None
    assert response.output[0].get_text_content() == "You said: hi"


async def test_a_message_may_be_a_plain_object(ours: AsyncClient) -> None:
    """As other clients' users write it; not beside parts, which have no role."""
    assert await ours.chat({"role": "user", "content": "hi"}).text() == "You said: hi"
    said: list[dict[str, Any] | Message]
    said = [{"role": "user", "content": "one"}, Message(role="user", content=[TextContent(text="two")])]
    assert await ours.chat(said).text() == "You said: two"
    with pytest.raises(ValueError, match="not both"):
        ours.chat([{"role": "user", "content": "hi"}, "there"])


async def test_what_a_sub_agent_says_is_not_the_answer(ours: AsyncClient) -> None:
    """Text and deltas are the agent's own; messages are everybody's."""
    reply = ours.chat("/dispatch")
    pieces = "".join([piece async for piece in reply.deltas()])
    assert pieces == await ours.chat("/dispatch").text()
    assert pieces.startswith("I ask a colleague. \n\nThe result is I looked into it")
    texts = [each.get_text_content() for each in reply.messages_so_far if each.type == "message"]
    assert texts[1] == "I looked into it (find out): it is as you thought."


async def test_iteration_can_be_left_and_taken_up_again(ours: AsyncClient) -> None:
    """Nothing is lost between two loops over the same reply."""
    reply = ours.chat("/tokens 5 5")
    first = []
    async for event in reply:
        first.append(event)
        if isinstance(event, TextContent):
            break
    rest = [event async for event in reply]
    assert [event.sequence_number for event in first + rest] == list(range(len(first + rest)))


async def test_a_session_remembers_and_forgets(ours: AsyncClient) -> None:
    """Turns of a session follow each other; its history names who said what; a clear empties it."""
    session = ours.session("talk")
    assert await session.chat("first").text() == "You said: first"
    assert await ours.chat("second", session="talk").text() == "You said: second"
    history = await session.history()
    assert [(each.role, each.text) for each in history] == [
        ("user", "first"),
        ("assistant", "You said: first"),
        ("user", "second"),
        ("assistant", "You said: second"),
    ]
    assert history[0].created <= history[-1].created
    await session.clear()
    assert await session.history() == []
    with pytest.raises(NotFound, match=r"No such session.*GET /liteAgent/v1/history: 404"):
        await ours.session("nobody's").history()


async def test_images_and_whole_messages_can_be_said(ours: AsyncClient) -> None:
    """A list of parts is one message; messages are taken as they are; mixing them is refused."""
    picture = {"type": "image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    assert await ours.chat(["look: ", picture]).text() == "You said: look:  (an attachment)"
    said = Message(role="user", content=[TextContent(text="whole")])
    assert await ours.chat(said).text() == "You said: whole"
    with pytest.raises(ValueError, match="not both"):
        ours.chat(["text", said])


async def test_a_turn_is_stopped(ours: AsyncClient) -> None:
    """Stop ends the turn; what was said before stands in the error's response."""
    reply = ours.chat("/tokens 1000 20")
    said = ""

    async def listen() -> None:
        nonlocal said
        async for piece in reply.deltas():
            said += piece
            if "tok3 " in piece:
                await reply.stop()

    with pytest.raises(TurnCanceled, match="was stopped") as stopped:
        await listen()
    output = stopped.value.response.output
    assert output is not None
    assert (output[0].get_text_content() or "").startswith("tok0 tok1 tok2 tok3 ")
    assert said == output[0].get_text_content()


async def test_a_failed_turn_says_why(ours: AsyncClient) -> None:
    """The error carries the agent's words; `finished` gives the response instead of raising."""
    with pytest.raises(TurnFailed, match=r"failed: no luck \(demo_failure\)"):
        await ours.chat("/fail no luck").text()
    assert (await ours.chat("/fail no luck").finished()).status == "failed"


async def test_a_turn_can_be_followed_by_its_id(ours: AsyncClient) -> None:
    """From its start, or from a cursor, by any client of the key; sending the id again begins no second turn."""
    session = ours.session()
    reply = session.chat("/tokens 5", id="turn1")
    async for event in reply:
        if isinstance(event, TextContent):
            break
    later = [event.sequence_number async for event in session.follow("turn1", cursor=reply.cursor)]
    assert later[0] == (event.sequence_number or 0) + 1
    assert await session.follow("turn1").text() == TOKENS
    assert await session.chat("/tokens 5", id="turn1").text() == TOKENS
    with pytest.raises(InvalidRequest, match="used with a different body"):
        await session.chat("something else", id="turn1").text()
    await reply.close()


async def test_a_session_is_watched_across_turns(ours: AsyncClient) -> None:
    """Watching a session shows its turns, whoever began them."""
    session = ours.session()
    await session.chat("one", id="one").text()
    ended = []
    watching = session.watch()
    async for event in watching:
        if isinstance(event, AgentResponse) and event.status == "completed":
            ended.append(event.id)
            if ended == ["one"]:
                await session.chat("two", id="two").text()
            if len(ended) == 2:
                break
    assert ended == ["one", "two"]
    await watching.close()


def test_events_of_later_editions_survive() -> None:
    """Unknown objects, part types, fields and statuses are kept, and so is what we would find malformed."""
    part = read_event('{"object": "content", "type": "hologram", "depth": 3, "status": "shimmering"}')
    assert isinstance(part, Content)
    assert part.model_extra == {"depth": 3}
    other = read_event('{"object": "telepathy", "thought": "hm"}')
    assert other.object == "telepathy"
    assert other.model_extra == {"thought": "hm"}
    changed = read_event('{"object": "message", "content": 7}')
    assert changed.object == "message"
    with pytest.raises(ValueError, match="object"):
        read_event("[]")


def test_the_client_loads_no_server_and_agents_load_no_client() -> None:
    """`from turnstream import AsyncClient, Client` brings neither workers nor front ends, and the package alone nothing."""
    program = """
import sys
import turnstream
assert not {"httpx", "pydantic"} & set(sys.modules)
from turnstream import AsyncClient, Client
print(sorted({"pydantic_ai", "arq", "redis", "starlette", "typer"} & set(sys.modules)))
print([name for name in sys.modules if name.startswith(("turnstream.api", "turnstream.worker"))])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]
