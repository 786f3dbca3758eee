"""Listening sockets: bound before anything else, so that a port that is taken is reported at once."""

from __future__ import annotations

import socket

from turnstream.shared.errors import ConfigurationError
from turnstream.shared.settings import PREFIX, option

# Connections that wait to be accepted, if the system allows as many (`net.core.somaxconn`). Smaller, and of thousands of clients that
# lost another front end and come at once, some are not heard, and try again only after 1, 3 or 7 s.
BACKLOG = 4096


def listen(host: str, port: int, setting: str) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. ``setting`` names where the port comes from.

    Raises:
        ConfigurationError: the port is taken, or the address is not one of this machine.
    """
    bound = bind(host, port, setting)
    bound.listen(BACKLOG)
    return bound


def bind(host: str, port: int, setting: str, *, shared: bool = False) -> socket.socket:
    """As `listen`, but whoever serves with it listens. ``shared``: several sockets may be bound to this port.

    Raises:
        ConfigurationError: as `listen`.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if bound.family is socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
        # Connections inherit it. asyncio's own loop would leave answers waiting for an ACK.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        bound.close()
        raise ConfigurationError(
            f"{_named(host, port, setting)}: {error.strerror or error}. Choose another one."
        ) from None
    return bound


def _named(host: str, port: int, setting: str) -> str:
    """The address by all names that it has: the commands that take metrics' port take no host."""
    field = setting.removeprefix(PREFIX).lower()
    options = f"{option('host')}, " if field == "port" else ""
    return f"{options}{PREFIX}HOST = {host!r} and {option(field)}, {setting} = {port}"
