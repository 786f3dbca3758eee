"""The application under a server that is not ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import uvicorn

from api.app import create_app
from shared import agents

if TYPE_CHECKING:
    from tests.conftest import Place


async def test_it_does_not_start_where_it_could_not_serve(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so at the start, and takes no turn that it could not show."""
    app = create_app(place.settings(), agents.load(None), place.connect())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    with pytest.raises(SystemExit):
        await server.serve()
    assert "turnstream api" in caplog.text
