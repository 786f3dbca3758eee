"""The application under a server that is not ours."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvicorn

from turnstream.api.app import create_app
from turnstream.shared.agents import config

if TYPE_CHECKING:
    from tests.conftest import Place


async def test_it_does_not_start_where_it_could_not_serve(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so at the start, and takes no turn that it could not show."""
    app = create_app(place.settings(), config.load(None), place.connect())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    # Else it would serve for ever.
    with pytest.raises(SystemExit):
        async with asyncio.timeout(20):
            await server.serve()
    assert "turnstream api" in caplog.text
