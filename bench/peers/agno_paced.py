"""Agno's durable queue before a paced provider. Runs in an environment of its own.

python agno_paced.py PORT PROVIDER_PORT POSTGRES_PORT VALKEY_PORT
"""

from __future__ import annotations

import logging
import sys

import uvicorn
from agno.agent import Agent  # type: ignore[import-not-found,unused-ignore]
from agno.db.postgres import PostgresDb  # type: ignore[import-not-found,unused-ignore]
from agno.job_queue import QueueConfig, RedisCoordination  # type: ignore[import-not-found,unused-ignore]
from agno.models.openai.like import OpenAILike  # type: ignore[import-not-found,unused-ignore]
from agno.os import AgentOS  # type: ignore[import-not-found,unused-ignore]
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

HOST = "127.0.0.1"

# A follower holds a connection: with the hundred that redis-py gives, a hundred chats at once get no token at all.
CONNECTIONS = 2000

# More than there are chats at once.
SLOTS = 128

if __name__ == "__main__":
    port, provider, postgres, valkey = map(int, sys.argv[1:])
    url = f"redis://{HOST}:{valkey}/0"
    coordination = RedisCoordination(
        sync_client=Redis.from_url(url, max_connections=CONNECTIONS),
        async_client=AsyncRedis.from_url(url, max_connections=CONNECTIONS),
    )
    model = OpenAILike(id="paced", base_url=f"http://{HOST}:{provider}/v1", api_key="none")
    served = AgentOS(
        agents=[Agent(id="paced", model=model, telemetry=False)],
        db=PostgresDb(db_url=f"postgresql+psycopg://bench@{HOST}:{postgres}/postgres"),
        queue=QueueConfig(durable=True, redis=coordination, max_concurrency=SLOTS),
        telemetry=False,
    ).get_app()
    # What it says of every request is for debugging; a deployment would have it off.
    logging.disable(logging.WARNING)
    uvicorn.run(served, host=HOST, port=port, loop="uvloop", http="httptools", log_level="warning")
