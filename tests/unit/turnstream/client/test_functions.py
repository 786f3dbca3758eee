"""The client's functions answer the agent's calls, and its people the requests for approval."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from turnstream.client import Conflict, FunctionError, UnansweredCall

if TYPE_CHECKING:
    from tests.support.link import Link
    from tests.unit.turnstream.client.conftest import Clients
    from turnstream import AsyncClient
    from turnstream.client import Approval, Call


async def test_functions_answer_by_name(ours: AsyncClient) -> None:
    """Plain functions run in a thread of their own, coroutine functions in the loop; both get keywords."""
    threads = []

    @ours.function("weather")
    def weather(city: str, unit: str = "°C") -> dict[str, str]:
        threads.append(threading.current_thread())
        return {"sky": f"clear over {city}", "unit": unit}

    @ours.function("clock")
    async def clock() -> str:
        return "noon"

    assert await ours.chat('/call weather {"city": "Bern"}').text() == (
        'The result is {"sky":"clear over Bern","unit":"°C"}.'
    )
    assert threads != [threading.main_thread()]
    assert await ours.chat("/call clock {}").text() == "The result is noon."


async def test_one_function_for_all_others(ours: AsyncClient) -> None:
    """It gets the call itself; parallel calls are answered side by side."""

    @ours.other_functions
    async def anything(call: Call) -> list[Any]:
        return [call.name, call.arguments["number"]]

    text = await ours.chat("/calls 3").text()
    assert text == 'The result is ["client_function",0], ["client_function",1], ["client_function",2].'


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        (True, "The result is everything is gone."),
        ((True, "fine"), "The result is everything is gone."),
        (False, "denied"),
        ((False, "not today"), "not today"),
        ("yes", "denied"),
    ],
)
async def test_approvals_are_decided_by_a_handler(ours: AsyncClient, decision: Any, told: str) -> None:
    """True or false, with a reason that the agent gets to read; anything but true is a refusal."""
    asked: list[Approval] = []

    @ours.approval
    def decide(approval: Approval) -> Any:
        asked.append(approval)
        return decision

    assert told in await ours.chat("/approve").text()
    assert [(each.name, each.arguments) for each in asked] == [("delete_everything", {"what": "everything"})]


async def test_a_function_that_fails_is_told_to_the_agent(ours: AsyncClient) -> None:
    """The turn goes on: the agent learns what went wrong, in chosen words or by the exception's name."""

    @ours.function("fussy")
    def fussy(*, mood: str) -> object:
        if mood == "bad":
            raise FunctionError("not in the mood")
        return object() if mood == "odd" else 1 / 0

    for arguments, told in (
        ('{"mood": "bad"}', "not in the mood"),
        ('{"mood": "odd"}', "cannot be written as JSON"),
        ('{"mood": "worse"}', "fussy failed: ZeroDivisionError"),
        ('{"temper": 1}', "fussy failed: TypeError"),
    ):
        assert told in await ours.chat(f"/call fussy {arguments}").text()


async def test_a_call_that_nobody_answers_is_an_error_not_a_silence(ours: AsyncClient) -> None:
    """Whoever wants the text learns what is missing; whoever reads events may answer by hand, from anywhere."""
    with pytest.raises(
        UnansweredCall, match=r"calls 'weather'.*@client\.function\('weather'\).*reply\.stop\(\)"
    ):
        await ours.chat("/call weather {}").text()
    with pytest.raises(UnansweredCall, match=r"approval of 'delete_everything'.*@client\.approval"):
        await ours.chat("/approve").text()
    reply = ours.chat("/call weather {}", id="turn")
    async for _ in reply:
        if reply.open_calls:
            break
    (call,) = reply.open_calls
    await reply.answer(call, "fog")
    assert await reply.text() == "The result is fog."
    await reply.answer(call, "a repeat changes nothing")
    # A turn of the past holds calls that were answered long ago: none of them is missing.
    assert await reply.session.follow("turn").text() == "The result is fog."


async def test_calls_of_the_past_are_not_run_again(ours: AsyncClient) -> None:
    """Following a finished turn anew, or sending it again, calls no function a second time."""
    ran = []

    @ours.function("once")
    def once() -> str:
        ran.append(1)
        return "done"

    session = ours.session()
    assert await session.chat("/call once {}", id="turn").text() == "The result is done."
    assert await session.follow("turn").text() == "The result is done."
    assert await session.chat("/call once {}", id="turn").text() == "The result is done."
    assert ran == [1]


async def test_a_late_answer_is_refused(ours: AsyncClient) -> None:
    """A call whose turn was stopped takes no answer, and says so."""
    reply = ours.chat("/call weather {}")
    async for _ in reply:
        if reply.open_calls:
            await reply.stop()
    (call,) = reply.open_calls
    with pytest.raises(Conflict, match="has ended"):
        await reply.answer(call, 1)


async def test_functions_run_once_though_connections_break(clients: Clients, proxy: Link) -> None:
    """The call comes once, its answer is repeated until it is taken, and the result is used once."""
    ran = []
    ours = clients.make(proxy.url)
    proxy.cuts = iter([1300, 0, 600, 0, 900, 0, 700, 0, 0, 1200])

    @ours.function("count")
    def count() -> int:
        ran.append(1)
        proxy.cut_all()
        return len(ran)

    assert await ours.chat("/call count {}").text() == "The result is 1."
    assert ran == [1]
