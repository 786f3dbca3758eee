"""OpenAI's own client, at the deployment of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai import AsyncOpenAI

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.client import Client


@pytest.fixture
async def openai_at() -> AsyncIterator[Any]:
    """Makes a client of the front end that another client speaks to."""
    made: list[AsyncOpenAI] = []

    def at(client: Client, key: str = "", **more: Any) -> AsyncOpenAI:
        openai = AsyncOpenAI(
            base_url=f"{client.base_url}/v1", api_key=key or client.key, **{"max_retries": 0, **more}
        )
        made.append(openai)
        return openai

    yield at
    for openai in made:
        await openai.close()


@pytest.fixture
async def openai(client: Client, openai_at: Any) -> Any:
    """A client of a deployment with one front end and one worker."""
    return openai_at(client)
