"""Webhooks: addresses of clients that are told of their tasks. Where we may send anything at all is decided here."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

Networks = tuple[IPv4Network | IPv6Network, ...]

MOST_URL = 2048

# Bytes of a secret.
LEAST_SECRET = 16
MOST_SECRET = 64

_URL = re.compile(r"[\x21-\x7e]+", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,253}", re.ASCII)

# The prefix behind which translators find IPv4 addresses.
_TRANSLATED = IPv6Network("64:ff9b::/96")

# Global unicast, and networks within it and IPv4's that have no hosts: Python's tables differ by version.
_UNICAST = IPv6Network("2000::/3")
_NO_HOSTS = (IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20"))

# How the secrets of the Standard Webhooks specification begin, with which is signed and which are never sent; the rest is base64.
SECRET = "whsec_"  # noqa: S105 - no secret


class Address(NamedTuple):
    """Where a webhook's URL leads.

    Attributes:
        tls: it is ``https``.
        host: a name or an IP address.
        target: path and query.
    """

    tls: bool
    host: str
    port: int
    target: str

    @classmethod
    def parse(cls, url: str, networks: Networks) -> Address:
        """Read a URL. What a name resolves to is not looked at: see `is_reachable`.

        Raises:
            ValueError: nothing is sent there; says why.
        """
        if len(url) > MOST_URL or not _URL.fullmatch(url):
            raise ValueError(f"must be a URL of at most {MOST_URL} printable ASCII characters")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ValueError("must be a URL") from None
        host = parts.hostname or ""
        if parts.scheme not in ("https", "http") or not _HOST.fullmatch(host) or port == 0:
            raise ValueError("must be an https:// URL with a host")
        if "@" in parts.netloc or parts.fragment:
            raise ValueError("must have neither a user nor a fragment; credentials go into authentication")
        tls = parts.scheme == "https"
        if not tls and not networks:
            raise ValueError("must be an https:// URL")
        literal = _ip(host)
        if literal is not None and not is_reachable(host, networks, tls=tls):
            raise ValueError("must lead to a public address")
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(tls, host, port or (443 if tls else 80), target)

    @property
    def authority(self) -> str:
        """The ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def is_reachable(address: str, networks: Networks, *, tls: bool) -> bool:
    """Whether something may be sent to an IP address: a public one, with TLS; or one of the operator's ``networks``."""
    ip = _ip(address)
    if ip is None:
        return False
    if any(ip in network for network in networks if network.version == ip.version):
        return True
    if any(ip in network for network in _NO_HOSTS if network.version == ip.version):
        return False
    if isinstance(ip, IPv6Address) and ip not in _UNICAST:
        return False
    return tls and ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


def networks_of(text: str) -> Networks:
    """The networks that a setting names, with commas between them.

    Raises:
        ValueError: one is none.
    """
    return tuple(ip_network(each.strip()) for each in text.split(",") if each.strip())


def signed(secret: str, name: str, at: int, body: bytes) -> dict[str, str]:
    """The headers of a message by which its receiver knows that it comes from us, as Standard Webhooks has them.

    ``at``: Unix seconds. ``name`` is the same each time the message is sent.
    """
    text = b"%b.%d.%b" % (name.encode(), at, body)
    mac = hmac.digest(_key(secret), text, hashlib.sha256)
    return {
        "webhook-id": name,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
    }


def new_secret(random: Iterable[int]) -> str:
    """A secret of these bytes."""
    return SECRET + base64.b64encode(bytes(random)).decode()


def check_token(token: str) -> None:
    """See to it that a client's token can be signed with as its receiver will.

    Raises:
        ValueError: it begins with `SECRET`, and the rest is not such a secret.
    """
    if token.startswith(SECRET):
        try:
            size = len(base64.b64decode(token.removeprefix(SECRET), validate=True))
        except binascii.Error:
            size = 0
        if not MOST_SECRET >= size >= LEAST_SECRET:
            raise ValueError(f"behind {SECRET} must be base64 of {LEAST_SECRET} to {MOST_SECRET} bytes")


def _key(secret: str) -> bytes:
    if secret.startswith(SECRET):
        try:
            return base64.b64decode(secret.removeprefix(SECRET), validate=True)
        except binascii.Error:
            pass
    return secret.encode()


def _ip(text: str) -> IPv4Address | IPv6Address | None:
    """An address as the one that is reached in the end: some IPv6 addresses hold an IPv4 one."""
    try:
        ip = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(ip, IPv6Address):
        inner = (
            ip.ipv4_mapped
            or ip.sixtofour
            or (IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _TRANSLATED else None)
        )
        return inner or ip
    return ip
