"""What a newcomer is told when the local cluster is up: where it is, who is who, and what to try."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from deploy.cluster import Cluster


async def welcome(cluster: Cluster) -> str:
    """The text."""
    url = cluster.url
    table = "\n".join(
        f"  {name:<10} pid {part.pid:<8} {f'127.0.0.1:{part.port}' if part.port else ''}".rstrip()
        for name, part in cluster.parts.items()
    )
    urls = "\n".join(f"  export {name}={url}" for name, url in cluster.broker_urls("operator").items())
    console = f"\n  console    {url}/console" if await _has_console(url) else ""
    return f"""
The cluster answers at {url} (nginx → front ends → broker ← workers)

  chat key   {cluster.key}   (agent: demo)
  admin key  {cluster.admin}{console}

{table}

In another terminal: a turn that talks for a minute, …

  KEY={cluster.key}
  curl -N {url}/process -H "Authorization: Bearer $KEY" \\
       -d '{{"session_id": "cluster", "id": "cluster-1", "input": [{{"role": "user", "content": "/tokens 600 100"}}]}}'

… in a third one, kill the worker that runs it (`attempt.began` below says which): the turn goes on at the other,

  kill -9 PID

… and stop it, or follow it again from the last `id:` you saw:

  curl -X POST '{url}/liteAgent/v1/stop?sessionId=cluster' -H "Authorization: Bearer $KEY"
  curl -N '{url}/process?session_id=cluster&response_id=cluster-1' -H "Authorization: Bearer $KEY" -H 'Last-Event-ID: ID'

`turnstream keys` and `turnstream doctor` reach the {"brokers" if cluster.nodes else "broker"} as the user that may look around:

{urls}
  export TURNSTREAM_REDIS_PASSWORD=$(cat {cluster.secret_file("redis_operator_password")})

What dies is started again. Ctrl-C ends everything.

"""


async def _has_console(url: str) -> bool:
    async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
        return (await http.get(f"{url}/console", follow_redirects=True)).status_code == 200
