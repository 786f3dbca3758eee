"""What an agent may be asked to do on the wire: one conversation per feature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Part = dict[str, Any]

PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


@dataclass(frozen=True)
class Ask:
    """One turn: what the user says, what the client answers, and when it stops the turn.

    Attributes:
        parts: the content of the user's message.
        answer: what each client function returns, and each request for approval is given.
        stop_after: pieces of text after which the client stops the turn; 0: it does not.
    """

    parts: tuple[Part, ...]
    answer: Any = None
    stop_after: int = 0


@dataclass(frozen=True)
class Feature:
    """One session: its turns one after the other, how the last one ends, and the agent that answers."""

    name: str
    asks: tuple[Ask, ...]
    end: str = "completed"
    agent: str = "demo"

    @property
    def plain(self) -> bool:
        """Whether a LiteAgent client could have asked the same: text and images only."""
        return all(part["type"] in ("text", "image") for ask in self.asks for part in ask.parts)


def _text(text: str, answer: Any = None, *, stop_after: int = 0) -> Ask:
    return Ask(({"type": "text", "text": text},), answer, stop_after)


_EVERY_TYPE: tuple[Part, ...] = (
    {"type": "text", "text": "Look at\u2028these: \u4f60\u597d \u0085 \U0001f600\r\n"},
    {"type": "image", "image_url": "https://example.com/cat.png"},
    {"type": "image", "image_url": PIXEL},
    {"type": "data", "data": {"rows": [1, 2.5, None, True], "nested": {"empty": [], "none": {}}}},
    {"type": "file", "file_url": "https://example.com/a.pdf", "filename": "a.pdf"},
    {"type": "audio", "data": "UklGRg==", "format": "wav"},
)

FEATURES = (
    Feature("text", (_text("hello there, how are you"),)),
    Feature("tokens", (_text("/tokens 40"),)),
    Feature(
        "awkward_text", (_text('a\u2028b \u2029c \u0085d \x0be \x0cf \x1cg \U0001f600 "q" \\ \t\r\nend'),)
    ),
    Feature("thinking", (_text("/think it is late"),)),
    Feature("server_tool", (_text("/tool add 1 2"),)),
    Feature("client_call", (_text('/call ask {"q": [1, {"deep": null}]}', {"answer": [1, {"a": "b"}]}),)),
    Feature("client_call_text", (_text("/call ask {}", "plain words"),)),
    Feature("parallel_calls", (_text("/calls 3", {"ok": True}),)),
    Feature("approval_yes", (_text("/approve files", {"approve": True, "reason": "fine"}),)),
    Feature("approval_no", (_text("/approve files", {"approve": False, "reason": "too risky"}),)),
    Feature("dispatch", (_text("/dispatch the weather"),)),
    Feature("dispatch_client_call", (_text('/dispatch /call ask {"q": 1}', {"answer": 2}),)),
    Feature("dispatch_server_tool_unknown", (_text("/dispatch /tool add 1 2"),)),
    Feature("reflection", (_text("/reflect write well"),)),
    Feature("image", (_text("/image https://example.com/a.png"),)),
    Feature("failure", (_text("/fail on purpose"),), end="failed"),
    Feature("stop", (_text("/tokens 5000 5", stop_after=3),), end="canceled"),
    Feature("unknown_tool", (_text("/tool nosuch 1 2"),)),
    Feature("multi_turn", (_text("remember me"), _text("/tool add 2 3"), _text("and now?"))),
    Feature("stopped_then_more", (_text("/tokens 5000 5", stop_after=2), _text("go on"))),
    Feature("every_content_type", (Ask(_EVERY_TYPE),)),
    Feature("every_content_type_said", (_text("show me"),), agent="everything"),
)

BY_NAME = {feature.name: feature for feature in FEATURES}
