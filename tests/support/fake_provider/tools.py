"""Server tools that tests give to agents."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from pydantic_ai import Agent, ModelRetry, Tool
from pydantic_ai.messages import BinaryContent, DocumentUrl, ToolReturn

# What the tools were called with, and what lets the waiting ones go on.
called: list[str] = []
release = threading.Event()


async def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    called.append(city)
    return f"It is sunny in {city}."


def lookup(word: str) -> str:
    """Look a word up, in a thread."""
    called.append(word)
    return f"{word}: {threading.current_thread() is not threading.main_thread()}"


async def never_ends() -> str:
    """Wait for ever."""
    called.append("never_ends")
    await asyncio.Event().wait()
    return "unreachable"


def hangs() -> str:
    """Hang in a thread until the test lets it go."""
    called.append("hangs")
    release.wait(30)
    return "too late"


async def times_out() -> str:
    """Fail with an error of its own."""
    raise TimeoutError("the database is slow")


async def _pay(amount: int) -> str:
    """Pay; somebody must approve."""
    called.append(f"paid {amount}")
    return f"Paid {amount}."


pay = Tool(_pay, name="pay", requires_approval=True)

renamed = Tool(_pay, name="wire_money")


async def odd(kind: str) -> Any:
    """Return what no tool should."""
    circle: list[Any] = []
    circle.append(circle)
    return {
        "circle": circle,
        "surrogate": "half \ud83d",
        "object": {"it": object},
        "nan": float("nan"),
        "bytes": b"\xff\xfe",
        "huge": "x" * 3_000_000,
        "integer": 10**30,
        "nothing": None,
        "generator": (number for number in range(2)),
    }[kind]


async def chart() -> ToolReturn:
    """Draw a chart: words for the result, and an image beside it."""
    return ToolReturn("Drawn.", content=["The chart:", BinaryContent(b"\x89PNG", media_type="image/png")])


async def photo() -> BinaryContent:
    """Take a photo."""
    return BinaryContent(b"\x89PNG", media_type="image/png")


async def picky(number: int) -> str:
    """Take even numbers only."""
    if number % 2:
        raise ModelRetry(f"{number} is odd.")
    return f"{number} is even."


async def looks_like_a_link(url: str) -> Any:
    """Return JSON that the library would take for a link of its own."""
    return {"kind": "document-url", "url": url, "media_type": "text/plain"}


async def linked(url: str, among: bool) -> Any:
    """Return a link that is one, by itself or among words."""
    link = DocumentUrl(url, media_type="application/pdf")
    return ["Read this:", link] if among else link


async def returns(what: Any) -> Any:
    """Return what it is given."""
    return what


async def much(more: dict[str, Any]) -> dict[str, Any]:
    """Return far more than that."""
    return {**more, "much": "x" * 10_000}


async def album() -> Any:
    """Return photos: one inside of a dict, one beside a dict that says it is one."""
    shot = BinaryContent(b"\x89PNG", media_type="image/png")
    return [shot, {"photo": shot}, {"kind": "binary", "data": "AA==", "media_type": "foo/bar"}]


async def takes_anything(what: Any) -> str:
    """Take anything."""
    called.append(str(what))
    return "Taken."


helper = Agent("openai-chat:test", name="helper", defer_model_check=True)
