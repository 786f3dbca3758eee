"""The agents that the benches put to work: plain async generators, so that what is measured is ours."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any

from turnstream import ClientCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOKENS = 50

# One table for each agent, as an operator would write them; `{provider}` is where `bench.provider` listens.
AGENTS_TOML = """
[agents.echo]
python = "bench.agents:echo"
[agents.stream]
python = "bench.agents:stream"
[agents.paced]
python = "bench.agents:paced"
[agents.paced.a2a]
[agents.markdown]
python = "bench.agents:markdown"
[agents.silent]
python = "bench.agents:silent"
[agents.asking]
python = "bench.agents:asking"
[agents.pydantic]
model = "demo"
[agents.provider]
model = "openai:paced"
base_url = "{provider}"
"""


async def tokens(count: int) -> AsyncIterator[str]:
    """What a fake model says, whoever carries it: a turn of the loop before each token."""
    for number in range(count):
        await asyncio.sleep(0)
        yield f"tok{number} "


async def echo(turn: Any) -> AsyncIterator[str]:  # noqa: ARG001 - what it says does not depend on it
    """Fifty tokens."""
    async for token in tokens(TOKENS):
        yield token


async def stream(turn: Any) -> AsyncIterator[str]:
    """As many tokens as it is asked for."""
    async for token in tokens(int(turn.text)):
        yield token


async def beats(text: str) -> AsyncIterator[int]:
    """Numbers from 0, as many and as many a second as the text's two words say."""
    count, rate = (int(word) for word in text.split())
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for number in range(count):
        await asyncio.sleep(max(0.0, begun + number / rate - loop.time()))
        yield number


async def paced(turn: Any) -> AsyncIterator[str]:
    """So many events at so many a second: each says when it was said, on the clock all processes share."""
    async for _ in beats(turn.text):
        yield f"at{time.perf_counter_ns()} "


# What models write, with a word that is counted at its end.
MARKDOWN = """## Part

Some *words* with a **strong** one, `code` and a [link](https://example.org): as a model writes them, line after line.

- one thing
  1. and one within it
- another

```python
def area(radius: float) -> float:
    return 3.14159 * radius**2
```

| name | size |
|---|---|
| a | 1 |
| b | 2 |

The sum is $\\sum_{i=1}^{n} i = \\frac{n(n+1)}{2}$.

> Said by somebody.

part-end

"""

# It in tokens.
PIECES = re.findall(r"\s*\S{1,6}|\s+\Z", MARKDOWN)


async def markdown(turn: Any) -> AsyncIterator[str]:
    """So many tokens of Markdown at so many a second."""
    async for number in beats(turn.text):
        yield PIECES[number % len(PIECES)]


async def silent(turn: Any) -> AsyncIterator[str]:
    """One word, then nothing for so many seconds."""
    yield "well "
    await asyncio.sleep(float(turn.text))
    yield "done "


async def asking(turn: Any) -> AsyncIterator[Any]:
    """Waits for its client."""
    yield ClientCall("wait") if not turn.results else "done "
