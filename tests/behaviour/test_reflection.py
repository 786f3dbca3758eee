"""Reflection: critics score a draft before the client reads it."""

from __future__ import annotations

import json
from typing import Any

from tests.support.client import calls_of, check_whole, terminal, text_of
from tests.support.scripted import script

JUDGE = {"python": "tests.support.scripted:judge"}


def drafts(*texts: Any) -> str:
    """A prompt whose nth draft is the nth text; the judge gives the score in its brackets."""
    return json.dumps({"drafts": texts})


def verdicts(frames: Any) -> list[dict[str, Any]]:
    """What the critics said, round by round."""
    return [
        data["output"] for data in calls_of(frames, "component_call_output") if data["name"] == "reflection"
    ]


async def test_a_draft_that_passes_is_the_answer(serve: Any) -> None:
    """The first draft fails, the second passes; the client sees both verdicts, and only the final text."""
    client, _ = await serve(lead={"critics": ["critic"]}, critic=JUDGE)
    frames = await client.turn("s1", drafts("bad [7]", "good [8]", "never [10]"))
    check_whole(frames)
    assert text_of(frames) == "good [8] "
    assert [(each["isPass"], each["score"], each["count"]) for each in verdicts(frames)] == [
        (False, 7, 1),
        (True, 8, 2),
    ]
    assert verdicts(frames)[0]["messageScore"]["reflectScoreList"] == [
        {"score": 7, "description": "Worth 7."}
    ]
    ended = terminal(frames)
    assert ended is not None
    assert ended["usage"]["total_tokens"] > 0


async def test_the_best_draft_is_used_when_none_passes(serve: Any) -> None:
    """After `max_count` rounds the draft with the highest score is said, not the last one."""
    client, _ = await serve(lead={"critics": ["critic"], "max_count": 3}, critic=JUDGE)
    frames = await client.turn("s1", drafts("poor [2]", "best [6]", "worse [4]"))
    check_whole(frames)
    assert text_of(frames) == "best [6] "
    assert [each["isPass"] for each in verdicts(frames)] == [False] * 3
    assert {(each["maxCount"], each["passScore"]) for each in verdicts(frames)} == {(3, 8)}
    following = await client.turn("s1", drafts("fine [9]"))
    assert text_of(following) == "fine [9] "


async def test_every_critic_must_pass_it(serve: Any) -> None:
    """The lowest score counts; each critic's opinion is told."""
    client, _ = await serve(
        lead={"critics": ["one", "two"], "max_count": 1, "pass_score": 5}, one=JUDGE, two=JUDGE
    )
    (verdict,) = verdicts(await client.turn("s1", drafts("so so [5]")))
    assert verdict["isPass"] is True
    assert [each["score"] for each in verdict["messageScore"]["reflectScoreList"]] == [5, 5]


async def test_drafts_are_streamed_when_the_agent_says_so(serve: Any) -> None:
    """With `stream_drafts` each draft is read as it is written; the last is not said twice, a better one is."""
    client, _ = await serve(lead={"critics": ["critic"], "stream_drafts": True, "max_count": 2}, critic=JUDGE)
    assert text_of(await client.turn("s1", drafts("bad [3]", "good [9]"))) == "bad [3] good [9] "
    assert text_of(await client.turn("s2", drafts("ok [5]", "bad [3]"))) == "ok [5] bad [3] ok [5] "


async def test_a_draft_may_use_tools_and_ask_the_client(serve: Any) -> None:
    """A draft parks like any answer; the round goes on where it was."""
    ask = {"name": "where", "parameters": {"type": "object", "properties": {}}}
    client, _ = await serve(lead={"critics": ["critic"], "client_tools": [ask]}, critic=JUDGE)
    async with client.process("s1", script([("where", {})], "in {results} [9]"), id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        await client.callback("s1", call["call_id"], "Rome")
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames) == "in Rome [9] "
    assert len(verdicts(frames)) == 1


async def test_a_critic_that_fails_ends_the_turn(serve: Any) -> None:
    """A draft that nobody judged does not pass for one that was."""
    client, _ = await serve(lead={"critics": ["critic"]}, critic=JUDGE)
    frames = await client.turn("s1", drafts("no score"))
    check_whole(frames)
    assert terminal(frames)["status"] == "failed"  # type: ignore[index]
    assert text_of(frames) == ""


async def test_a_liteagent_client_reads_the_rounds(serve: Any) -> None:
    """One `reflection` message a round, then the text and what its draft cost."""
    client, _ = await serve(lead={"critics": ["critic"]}, critic=JUDGE)
    session = await client.init()
    async with client.chat(session, drafts("bad [7]", "good [8]"), stream=False) as stream:
        frames = [frame.data for frame in await stream.all()]
    rounds = [frame["content"] for frame in frames if frame["type"] == "reflection"]
    assert [(each["isPass"], each["count"]) for each in rounds] == [(False, 1), (True, 2)]
    (answer,) = [frame for frame in frames if frame["type"] == "text" and frame["role"] == "assistant"]
    assert answer["content"] == "good [8] "
    assert answer["completions"]["model"] == "scripted"
