"""A turn as chunks: what cannot be seen from outside."""

from __future__ import annotations

import time

import orjson

from turnstream.api.protocols.ai_sdk.chunks import ChunkStream
from turnstream.shared.session.entry import Entry


def test_what_a_sub_agent_says_takes_linear_time() -> None:
    """Thirty thousand pieces are written in a moment: what has come is not counted anew with each."""
    stream = ChunkStream("t1")
    piece = orjson.dumps(
        {
            "sequence_number": 1,
            "object": "content",
            "type": "text",
            "msg_id": "m",
            "index": 0,
            "delta": True,
            "text": "tok ",
        }
    )
    entry = Entry(seq=1, task="t1", path="colleague", kind="message", created=1, event=piece)
    begun = time.process_time()
    frames = b"".join(stream.feed(0, entry) for _ in range(30_000))
    assert time.process_time() - begun < 3
    assert 100_000 < len(frames) < 1_000_000
