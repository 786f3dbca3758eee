"""Checks of the Sentinels that a URL names."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis.exceptions import AuthenticationError, RedisError, ResponseError

from turnstream.doctor.findings import ok, warning, wrong

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from turnstream.doctor.findings import Finding
    from turnstream.shared.broker.sentinels import SentinelPool

# Fewer, and the loss of one leaves no majority.
LEAST_SENTINELS = 3

_SEE = "see docs/operations.md, Sentinel"


async def examine(pool: SentinelPool) -> list[Finding]:
    """Whether they would notice a lost primary, agree on it, and have a replica to promote."""
    name = pool.service_name
    asked = pool.sentinels
    replies = dict(zip(asked, await asyncio.gather(*map(_masters, asked.values())), strict=True))
    silent = {address: error for address, error in replies.items() if isinstance(error, Exception)}
    answers = {address: known for address, known in replies.items() if isinstance(known, dict)}
    for error in silent.values():
        if isinstance(error, AuthenticationError):
            return [wrong("sentinels", str(error), "set TURNSTREAM_SENTINEL_PASSWORD to theirs")]
    if not answers:
        return [wrong("sentinels", f"none answers: {_listed(silent)}", "start them, or mend their addresses")]
    knowing = {address: known[name] for address, known in answers.items() if name in known}
    if not knowing:
        others = sorted({other for known in answers.values() for other in known})
        return [
            wrong(
                "sentinels", f"none watches {name!r}, only {', '.join(map(repr, others)) or 'nothing'}",
                "give the name of their primary at the end of the URL: redis+sentinel://host:26379/NAME",
            )
        ]  # fmt: skip
    found = []
    if missing := [*silent, *(address for address in answers if address not in knowing)]:
        found.append(
            wrong(
                "sentinels", f"of {len(replies)}, these do not answer, or do not watch {name!r}: {', '.join(missing)}",
                "start them, or take them off the URL",
            )
        )  # fmt: skip
    places = sorted({f"{state['ip']}:{state['port']}" for state in knowing.values()})
    if len(places) > 1:
        found.append(
            wrong("sentinels", f"they do not agree on the primary: {', '.join(places)}", "ask again; if that stays, "
                  "reset those that are wrong: SENTINEL RESET " + name)
        )  # fmt: skip
    for address, sentinel in asked.items():
        if address in knowing:
            try:
                await sentinel.execute_command("SENTINEL", "CKQUORUM", name)  # type: ignore[no-untyped-call]
            except ResponseError as error:
                found.append(wrong("sentinels", f"{address}: {error}", _SEE))
            except (RedisError, OSError):
                continue
            break
    state = next(iter(knowing.values()))
    watching = int(state["num-other-sentinels"]) + 1
    if watching < LEAST_SENTINELS:
        found.append(
            warning(
                "sentinels", f"{watching}: when one is lost, no replica is promoted", f"have three; {_SEE}"
            )
        )
    if not int(state["num-slaves"]):
        found.append(wrong("sentinels", "the primary has no replica to be promoted", f"add one; {_SEE}"))
    return found or [
        ok("sentinels", f"{watching}, of which {state['quorum']} must agree; replicas: {state['num-slaves']}")
    ]


async def _masters(sentinel: Redis) -> dict[str, Any] | Exception:
    try:
        known: dict[str, Any] = await sentinel.sentinel_masters()  # type: ignore[no-untyped-call]
    except (RedisError, OSError) as error:
        return error
    return known


def _listed(silent: dict[str, Exception]) -> str:
    return "; ".join(f"{address}: {error}" for address, error in silent.items())
