"""Checks of a front end through the address that clients use, proxies and all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import httpx
import orjson

from turnstream.doctor.findings import Level, ok, skipped, warning, wrong

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from turnstream.doctor.findings import Finding

# What is asked: the demo agent says twenty words at this pace; any other should take a while, too.
PACED = "/tokens 20 100"

# A turn that is over sooner than this tells nothing about buffers.
LEAST_SECONDS = 0.8
# By when, as a part of the turn's time, a stream that nobody buffers has begun to arrive, and how much of
# the time passes between its first and its last piece.
BEGUN_BY = 0.6
SPREAD = 0.4

SILENCE_SECONDS = 60.0

_BY_STATUS = {
    401: "something on the way wants a password: have it let this address through",
    403: "something on the way refuses: have it let this address through",
    404: "nothing of Turnstream is there: give the front ends' address, with the proxy's prefix if it has one",
    405: "the proxy does not let this method through: have it forward everything",
    413: "the proxy takes small bodies only: see client_max_body_size in deploy/nginx.conf",
    429: "a limit is reached: try again in a minute, or from another address",
    502: "the proxy reaches no front end: see whether they run, and whether it has their addresses",
    503: "the broker is away, a front end shuts down, or none is left: see above, and its log",
    504: "the front end did not answer the proxy in time: see its log",
}
_OF_THE_KEY = {
    401: "set TURNSTREAM_KEY to a key that is known here (turnstream keys list)",
    403: "set TURNSTREAM_KEY to a chat key whose agent is configured",
    429: "the key's limits are reached: set TURNSTREAM_KEY to another one, or try again in a minute",
}


async def examine(url: str, key: str) -> AsyncIterator[Finding]:
    """Ask as a load balancer, as a stranger and, with a key, as a client."""
    try:
        client = httpx.AsyncClient(base_url=url, timeout=SILENCE_SECONDS)
    except (httpx.InvalidURL, ValueError) as error:
        yield wrong("front end", f"{url}: {error}", "give its address, as --url http://127.0.0.1:8090")
        return
    async with client:
        finding = await _ready(client, url)
        yield finding
        if finding.level is not Level.OK:
            return
        yield await _closed_to_strangers(client)
        if not key:
            yield skipped(
                "streaming", "no key to ask with", "set TURNSTREAM_KEY to a chat key, best of the demo agent"
            )
            return
        yield await _stream(client, key)


async def _ready(client: httpx.AsyncClient, url: str) -> Finding:
    try:
        ready = await client.get("/readyz")
    except httpx.HTTPError as error:
        return wrong("front end", f"{url}: {type(error).__name__}: {error}", "start it, or give its --url")
    if ready.status_code != 200:
        return wrong("front end", f"{url}: {ready.status_code} {ready.text[:100]}", _advice(ready))
    if not ready.headers.get("content-type", "").startswith("application/json"):
        return wrong("front end", f"{url}: 200, but not as a front end says it", _BY_STATUS[404])
    return ok("front end", f"{url} is ready")


def _advice(answer: httpx.Response, first: dict[int, str] | None = None) -> str:
    """What to do about an answer that is not 200."""
    if answer.is_redirect:
        return f"give the address that it redirects to: {answer.headers.get('location', '?')}"
    known = _BY_STATUS | (first or {})
    return known.get(answer.status_code, "see the logs of proxy and front end")


async def _closed_to_strangers(client: httpx.AsyncClient) -> Finding:
    here = client.base_url.host in ("127.0.0.1", "localhost", "::1")
    try:
        told = await client.get("/metrics")
    except httpx.HTTPError as error:
        return skipped("metrics", f"{type(error).__name__}: {error}", "see the logs of proxy and front end")
    if told.status_code == 200 and not here:
        return warning(
            "metrics", "anybody can read /metrics here",
            "do not forward /metrics at the proxy (deploy/nginx.conf), or set TURNSTREAM_METRICS_OPEN=false",
        )  # fmt: skip
    return ok("metrics", "open on this machine" if told.status_code == 200 else "not open to strangers")


async def _stream(client: httpx.AsyncClient, key: str) -> Finding:
    body = {"input": [{"role": "user", "content": PACED}]}
    begun = time.monotonic()
    arrived: list[float] = []
    text = b""
    try:
        async with client.stream(
            "POST", "/process", json=body, headers={"Authorization": f"Bearer {key}"}
        ) as answer:
            if answer.status_code != 200:
                told = (await answer.aread())[:200].decode(errors="replace")
                return wrong("streaming", f"{answer.status_code} {told}", _advice(answer, _OF_THE_KEY))
            async for piece in answer.aiter_raw():
                arrived.append(time.monotonic() - begun)
                text += piece
            coding = answer.headers.get("content-encoding", "")
    except httpx.HTTPError as error:
        return wrong(
            "streaming", f"broke off after {time.monotonic() - begun:.1f} s: {type(error).__name__}",
            "let the proxy hold connections for as long as turns take (deploy/nginx.conf: proxy_read_timeout)",
        )  # fmt: skip
    if coding:
        return wrong(
            "streaming", f"compressed ({coding}) on its way", "switch compression off for text/event-stream"
        )
    return _judged(arrived, text)


def _judged(arrived: list[float], text: bytes) -> Finding:
    try:
        events = [orjson.loads(line[6:]) for line in text.split(b"\n") if line.startswith(b"data: ")]
    except orjson.JSONDecodeError:
        return wrong(
            "streaming", "it broke off within an event, or was changed on its way", "see the proxy's log"
        )
    if not events or events[-1].get("status") not in ("completed", "failed", "canceled"):
        return wrong("streaming", "it ended without the turn's end", "see the logs of proxy and front end")
    if events[-1]["status"] == "failed":
        code = (events[-1].get("error") or {}).get("code", "?")
        return wrong("streaming", f"the turn failed: {code}", "see the worker's log")
    took = arrived[-1]
    if took < LEAST_SECONDS:
        return skipped("streaming", f"the turn took {took:.1f} s only", "ask with a key of the demo agent")
    spread = took - arrived[0]
    seen = f"first bytes after {arrived[0]:.1f} s, last after {took:.1f} s, in {len(arrived)} pieces"
    if arrived[0] > BEGUN_BY * took or spread < SPREAD * took:
        return wrong(
            "streaming", f"{seen}: something on the way gathers the answer before it passes it on",
            "switch buffering off at the proxy (nginx: proxy_buffering off, gzip off; others: flush at once)",
        )  # fmt: skip
    return ok("streaming", seen)
