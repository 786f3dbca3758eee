"""A broker's URL: one server, or several that stand in for each other.

``redis://`` and ``rediss://`` (TLS) name one server, ``unix://`` its socket, ``memory://`` the embedded broker.
``redis+sentinel://user:password@host:port,host:port/name`` names the Sentinels that know where the primary called
``name`` is. User, password, database (``/name/0``) and options are those of the servers.
``redis+cluster://user:password@host:port,host:port`` names some nodes of a Redis Cluster, which know the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit

MEMORY = "memory"
SENTINEL = "sentinel"
CLUSTER = "cluster"

_PORTS = {SENTINEL: 26379, CLUSTER: 6379}
_FORMS = "redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, redis+cluster://, rediss+cluster:// or memory://"


@dataclass(frozen=True)
class BrokerUrl:
    """A broker's URL, parsed.

    Attributes:
        text: the whole of it, password and all.
        kind: ``memory``, ``sentinel``, ``cluster``, or empty: one server.
        tls: whether connections are encrypted.
    """

    text: str = field(repr=False)
    kind: str
    tls: bool

    @classmethod
    def parse(cls, text: str) -> BrokerUrl:
        """Read it.

        Raises:
            ValueError: it is none; the message has the reason.
        """
        scheme, _, kind = text.partition("://")[0].partition("+")
        if text.startswith("memory://"):
            kind = MEMORY
        elif scheme not in {"redis", "rediss"} | ({"unix"} if not kind else set()) or kind not in {
            "",
            *_PORTS,
        }:
            raise ValueError(f"must be {_FORMS}")
        url = cls(text, kind, scheme == "rediss")
        # What is wrong shows when it is read.
        if kind != MEMORY:
            _ = url.options
            if not url.hosts and not text.startswith("unix://"):
                raise ValueError("names no host")
        if kind == SENTINEL and not url.name:
            raise ValueError("names no primary: redis+sentinel://host:26379,host:26379/NAME")
        if kind == CLUSTER and urlsplit(text).path.strip("/") not in {"", "0"}:
            raise ValueError("names a database: a cluster has only one")
        return url

    @cached_property
    def hosts(self) -> list[tuple[str, int]]:
        """The addresses that it names."""
        found = []
        for each in urlsplit(self.text).netloc.rpartition("@")[2].split(","):
            one = urlsplit(f"//{each}")
            if one.hostname:
                found.append((one.hostname, one.port or _PORTS.get(self.kind, 6379)))
        return found

    @cached_property
    def name(self) -> str:
        """What Sentinels call the primary."""
        return unquote(urlsplit(self.text).path.strip("/").partition("/")[0]) if self.kind == SENTINEL else ""

    @cached_property
    def user(self) -> str:
        """The user name in it; empty: none."""
        return unquote(urlsplit(self.text).netloc.rpartition("@")[0].partition(":")[0])

    @property
    def here(self) -> bool:
        """Whether all that it names is on this machine."""
        return all(host in {"localhost", "127.0.0.1", "::1"} for host, _ in self.hosts)

    @property
    def shown(self) -> str:
        """As it may be shown: without password and options."""
        parts = urlsplit(self.text)
        at = f"{self.user}@" if self.user else ""
        return f"{parts.scheme}://{at}{parts.netloc.rpartition('@')[2]}{parts.path}"

    @cached_property
    def options(self) -> dict[str, Any]:
        """User, password, database and the options of its query, as the client library takes them; without addresses."""
        # Read by the library itself; not loaded by commands that need no broker.
        from redis.asyncio.connection import parse_url

        if not self.kind:
            found = dict(parse_url(self.text))
        else:
            parts = urlsplit(self.text)
            who, at, _ = parts.netloc.rpartition("@")
            database = parts.path.strip("/").partition("/")[2]
            if database and not database.isdigit():
                raise ValueError(f"the database must be a number, not {database!r}")
            found = dict(parse_url(f"redis://{who}{at}host/{database}?{parts.query}"))
        return {
            name: value for name, value in found.items() if name not in {"host", "port", "connection_class"}
        }
