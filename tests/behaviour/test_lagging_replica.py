"""While a failover goes on a replica may answer reads that lags: what it has is not taken for all that was said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import calls_of, check_whole, terminal, text_of
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.session.event_log import META, Log

if TYPE_CHECKING:
    from tests.support.client import Client, Frame

# How often it answers before the primary does.
TIMES = 3


class Replica:
    """Answers the next reads, as one that has no more than so many entries of a session's log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answered = 0
        self._seq: int | None = None
        ask = Log._rows

        async def rows(log: Log, keys: SessionKeys, stream: str, *place: Any) -> list[Any]:
            reply: list[Any] = await ask(log, keys, stream, *place)
            if self._seq is None or self.answered == TIMES or stream != self._stream:
                return reply
            self.answered += 1
            known, written, entries, *more = reply
            known[META.index("seq")] = b"%d" % self._seq
            return [
                known,
                written,
                [entry for entry in entries if int(entry[0].partition(b"-")[2]) <= self._seq],
                *more,
            ]

        monkeypatch.setattr(Log, "_rows", rows)

    def lag(self, stream: str, seq: int) -> None:
        """From now on it answers who reads this stream."""
        self._stream, self._seq = stream, seq


@pytest.fixture
def replica(monkeypatch: pytest.MonkeyPatch) -> Replica:
    """A replica."""
    return Replica(monkeypatch)


def _told(frames: list[Frame]) -> list[str]:
    """Ids of the messages that were told, in the order in which they were begun."""
    messages = [frame.data for frame in frames if frame.data["object"] == "message"]
    return [each["id"] for each in messages if each["status"] == "created"]


async def test_a_turn_that_goes_on_elsewhere_ends_with_all_that_it_said(
    client: Client, replica: Replica
) -> None:
    """Its second attempt reads what the first one said; the replica lacks what it has said itself."""
    keys = SessionKeys("dev", "s1")
    async with client.process("s1", "/call f {}", id="t1") as stream:
        (call,) = calls_of(frames := await stream.until(calls_of))
        replica.lag(keys.history, frames[-1].seq)
        assert (await client.callback("s1", call["call_id"], "yes")).status_code == 200
        frames = await stream.all()
    assert replica.answered == TIMES
    check_whole(frames)
    assert text_of(frames) == "The result is yes."
    assert [each["id"] for each in frames[-1].data["output"]] == _told(frames)


@pytest.mark.parametrize("stream_name", ["history", "log"])
async def test_a_turn_that_is_stopped_ends_with_all_that_it_said(
    client: Client, replica: Replica, stream_name: str
) -> None:
    """Messages that were closed stand in the history, and the open one in the log."""
    keys = SessionKeys("dev", "s1")
    async with client.process("s1", "/dispatch /tokens 1000 10", id="t1") as stream:
        await stream.until(lambda frames: "tok3 " in text_of(frames))
        replica.lag(getattr(keys, stream_name), 3)
        assert (await client.stop("s1")).status_code == 200
        frames = await stream.all()
    assert replica.answered == TIMES
    check_whole(frames)
    end = terminal(frames)
    assert end is not None
    assert [each["id"] for each in end["output"]] == _told(frames)
    assert "".join(each["content"][0].get("text", "") for each in end["output"]) == text_of(frames)
