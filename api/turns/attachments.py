"""Attachments of a turn: whether the agent takes what its user's messages hold beside text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, get_args

from turnstream.shared.agents.config import Attachment
from turnstream.shared.protocol import MessageType, Role

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turnstream.shared.agents.config import AgentSpec
    from turnstream.shared.protocol import Content, Message

# Where parts hold what is attached.
_FIELDS = ("image_url", "data", "video_url", "file_data", "file_url")

# How data of a named media type begin.
_DATA_URL = re.compile(r"data:([\w.+-]+)/", re.ASCII)


def refusal(spec: AgentSpec, messages: Sequence[Message]) -> str | None:
    """Why an agent does not take what is attached; None: it does."""
    unwanted = set(get_args(Attachment)) - set(spec.attachments)
    if not unwanted:
        return None
    for message in messages:
        # The agent's own words of before, which a client may repeat, go to the model without what is attached to them.
        if message.role == Role.ASSISTANT or (not message.role and message.type == MessageType.ASSISTANT):
            continue
        for part in message.content or ():
            for kind in _kinds(part):
                if kind in unwanted:
                    taken = ", ".join(dict.fromkeys(("text", *spec.attachments)))
                    return f"input: a part of type {kind!r} is not taken by this agent, which takes {taken}"
    return None


def _kinds(part: Content) -> Iterator[str]:
    """What the part is called, and what its data are: these decide what the model is given."""
    yield part.type
    if part.type not in get_args(Attachment):
        return
    for name in _FIELDS:
        value = getattr(part, name, None)
        if isinstance(value, str) and (found := _DATA_URL.match(value)):
            main = found[1].lower()
            yield main if main in get_args(Attachment) else "file"
