"""Pages of other origins: the origins that the operator names may use the protocols for browsers, and nothing else changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from turnstream.shared.errors import ConfigurationError
from turnstream.shared.settings import load

if TYPE_CHECKING:
    import httpx

    from tests.support.client import Client
    from tests.support.stack import Stack

LET_IN = "https://chat.example"
OTHER = "https://evil.example"


def told(answer: httpx.Response) -> dict[str, str]:
    """What an answer tells the browser of another origin's page."""
    return {
        name: value
        for name, value in answer.headers.items()
        if name.startswith("access-control-") or name == "vary"
    }


async def ask(client: Client, path: str, origin: str, wanted: str = "authorization") -> httpx.Response:
    """What a browser asks before a page's request."""
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST", "Authorization": ""}
    return await client.http.options(path, headers={**headers, "Access-Control-Request-Headers": wanted})


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_pages_of_named_origins(stack: Stack) -> None:
    """They may send what clients send, and read answers, streams and errors; others get the same answers, unread."""
    await stack.worker()
    client = await stack.front_end(cors_origins=f"{LET_IN}, http://localhost:3000")
    asked = await ask(client, "/v1/chat/completions", LET_IN, "authorization,content-type, x-stainless-lang")
    assert (asked.status_code, asked.content) == (204, b"")
    assert asked.headers["x-content-type-options"] == "nosniff"
    may_read = {
        "vary": "Origin",
        "access-control-allow-origin": LET_IN,
        "access-control-expose-headers": "*",
    }
    assert told(asked) == {
        **may_read,
        "access-control-allow-methods": "GET, POST, DELETE",
        "access-control-allow-headers": "authorization,content-type, x-stainless-lang",
        "access-control-max-age": "7200",
    }
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    for key, status in ((stack.key, 200), ("sk-none", 401)):
        headers = {"Origin": LET_IN, "Authorization": f"Bearer {key}"}
        answer = await client.http.post("/v1/chat/completions", json=body, headers=headers)
        assert (answer.status_code, told(answer)) == (status, may_read)
    answer = await client.http.get("/v1/models", headers={"Origin": OTHER})
    assert (answer.status_code, told(answer)) == (200, {"vary": "Origin"})
    refused = await ask(client, "/v1/models", OTHER)
    assert (refused.status_code, told(refused)) == (405, {"vary": "Origin"})
    odd = await ask(client, "/v1/models", LET_IN, "a: b")
    assert "access-control-allow-headers" not in odd.headers


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_what_is_not_for_browsers(stack: Stack) -> None:
    """Protocols that change something by GET, and what is for operators, let in nobody."""
    client = await stack.front_end(cors_origins=f"*, {LET_IN}")
    for path in ("/liteAgent/v1/stop", "/admin/v1/keys", "/metrics", "/v1nothing"):
        asked = await ask(client, path, LET_IN)
        assert asked.status_code in (404, 405)
        assert told(asked) == told(await client.http.get(path, headers={"Origin": LET_IN})) == {}
    assert told(await ask(client, "/v1/models", OTHER))["access-control-allow-origin"] == OTHER


def test_what_is_no_origin() -> None:
    """It is said at the start, rather than by a page that is not let in."""
    for wrong in ("https://chat.example/", "chat.example", "https://Chat.example", "http://*.example"):
        with pytest.raises(ConfigurationError, match=r"TURNSTREAM_CORS_ORIGINS.*is no origin"):
            load(cors_origins=f"http://localhost:3000,{wrong}")
