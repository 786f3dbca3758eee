"""A turn's input as the model's library takes it."""

from __future__ import annotations

import base64
import os

import pytest
from pydantic_ai import BinaryContent

from turnstream.worker.agents.memory import read_input

RAW = os.urandom(700_000)
# Not whole quanta of four letters, so that it ends in padding.
DATA = base64.b64encode(RAW[:-1]).decode()
# Padding right where one step of the decoder ends.
PADDED_WITHIN = DATA[: 256 * 1024 - 2] + "==" + DATA


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (DATA, RAW[:-1]),
        (base64.b64encode(RAW[:786_432]).decode(), RAW[:786_432]),
        (DATA[:-2], None),
        (PADDED_WITHIN, None),
        (DATA[:400_000] + "!" + DATA[400_001:], None),
        (DATA[:400_000] + "\u00e9" + DATA[400_001:], None),
        ("", None),
    ],
)
def test_large_data_is_decoded_whole_or_not_at_all(data: str, content: bytes | None) -> None:
    """It is decoded in steps; what is not base64 somewhere is an attachment that cannot be read."""
    part = {"type": "image", "image_url": f"data:image/gif;base64,{data}"}
    _, prompt = read_input([{"role": "user", "content": [part, {"type": "text", "text": "look"}]}])
    if content is None:
        assert prompt == "(an attachment that could not be read)look"
    else:
        assert prompt == [BinaryContent(data=content, media_type="image/gif"), "look"]
