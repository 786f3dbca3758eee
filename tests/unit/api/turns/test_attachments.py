"""What an agent takes beside text: by what a part is called, and by what its data are."""

from __future__ import annotations

from typing import Any

import pytest

from turnstream.api.turns.attachments import refusal
from turnstream.shared.agents.config import AgentSpec
from turnstream.shared.protocol import Message

PNG, PDF = "data:image/png;base64,iVBORw0KGgo=", "data:application/pdf;base64,JVBERi0="


def refused(taken: tuple[str, ...], part: dict[str, Any], **message: Any) -> str | None:
    """Why an agent that takes these does not take the part."""
    spec = AgentSpec.model_validate({"name": "a", "model": "demo", "attachments": taken})
    return refusal(spec, [Message.model_validate({"type": "message", "content": [part], **message})])


@pytest.mark.parametrize(
    ("taken", "part", "kind"),
    [
        (("image",), {"type": "image", "image_url": PNG}, ""),
        (("image",), {"type": "image", "image_url": "iVBORw0KGgo="}, ""),
        (("image",), {"type": "image", "image_url": "https://x.example/a.pdf"}, ""),
        (("image",), {"type": "text", "text": PDF}, ""),
        (("image",), {"type": "data", "data": {"data": PDF}}, ""),
        (("image",), {"type": "image", "image_url": PDF}, "file"),
        (("image", "file"), {"type": "file", "file_data": "data:Audio/wav;base64,AA=="}, "audio"),
        (("image", "audio"), {"type": "audio", "data": "AA==", "format": "wav"}, ""),
        (("file",), {"type": "video", "video_url": "https://x.example/a.mp4"}, "video"),
        ((), {"type": "file", "file_id": "file-1"}, "file"),
        (("image", "audio", "video", "file"), {"type": "image", "image_url": PDF}, ""),
    ],
)
def test_names_and_data_count(taken: tuple[str, ...], part: dict[str, Any], kind: str) -> None:
    """A part has to be called what is taken, and its data to be of such a kind; links are not looked at."""
    why = refused(taken, part, role="user")
    assert why == (
        f"input: a part of type {kind!r} is not taken by this agent, which takes {', '.join(('text', *taken))}"
        if kind
        else None
    )


def test_all_but_the_agents_own_words_count() -> None:
    """Who names no role is the user, and what an application says may become the user's words."""
    part = {"type": "file", "file_data": PDF}
    for spoken in ({}, {"type": "user"}, {"role": "user"}, {"role": "system"}):
        assert refused((), part, **spoken)
    for spoken in ({"role": "assistant"}, {"type": "assistant"}):
        assert refused((), part, **spoken) is None
