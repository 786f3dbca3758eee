"""Large data by reference: what a session says, remembers and checkpoints again and again stands once at its broker.

Base64 from `LARGE_BYTES` on are taken out of JSON texts on their way to the broker, and put back when these are read,
byte for byte. A reference holds what no JSON text can: a raw control character. Base64 has two
alphabets, that of clients and that of the agent library; data in both stands once, in that of clients.

Long data is several files of `PIECE_BYTES`, a reference for each, and goes to the broker and comes from there a few
files at a time: a broker serves no other client while it reads or writes one command's bytes.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from turnstream.shared.broker.client import command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from redis.asyncio import Redis

# Smaller, and a turn's icons are looked up one by one; larger, and small images are kept three times.
LARGE_BYTES = 32 * 1024

# Bytes of one file at most. Larger, and one command holds up the broker for longer; smaller, and an image has too many.
PIECE_BYTES = 256 * 1024

# Files that one command gives.
FETCHED_AT_ONCE = 4

# What stands where data was that the broker lost. It is no base64, so it is never taken for data.
GONE = "(an attachment that is no longer kept)"

# Where data stands: in a ``data:`` URL, or in a field of the protocol or of the agent library that may be base64 by itself.
# Text that happens to be of such letters only stays what it is.
_DATA = re.compile(
    rb'(;base64,|"(?:data|file_data|image_url|file_url|video_url)":")([A-Za-z0-9+/_-]{%d,}={0,2})'
    % LARGE_BYTES
)
# A quick check: any match of `LARGE_BYTES` covers a whole window of half that size at a multiple of `_HALF`.
_HALF = LARGE_BYTES // 2
_WITHIN = re.compile(rb"[A-Za-z0-9+/_-]{%d}" % _HALF)

# As lua/_session.lua reads it: which alphabet, and the SHA-256 of the data in that of clients.
_MARK = b"\x1a"
_REFERENCE = re.compile(rb"\x1a([su])([0-9a-f]{64})\x1a")
# One after the other, these are of the same data.
_REFERENCES = re.compile(rb"(?:\x1a[su][0-9a-f]{64}\x1a)+")
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_TO_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def cut(text: bytes, files: dict[str, bytes]) -> bytes:
    """A JSON text with references instead of its large data, which is put into ``files`` by digest."""
    if len(text) < LARGE_BYTES or not any(_WITHIN.match(text, at) for at in range(0, len(text), _HALF)):
        return text
    return _DATA.sub(lambda found: found[1] + _put(found[2], files), text)


def _put(data: bytes, files: dict[str, bytes]) -> bytes:
    url_safe = (b"-" in data or b"_" in data) and b"+" not in data and b"/" not in data
    if url_safe:
        data = data.translate(_TO_STANDARD)
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
    digests = [hashlib.sha256(piece).hexdigest() for piece in pieces]
    files.update(zip(digests, pieces, strict=True))
    alphabet = b"u" if url_safe else b"s"
    return b"".join([b"%b%b%b%b" % (_MARK, alphabet, digest.encode(), _MARK) for digest in digests])


def fill(text: bytes, files: Mapping[str, bytes]) -> bytes:
    """The text that was cut; `GONE` stands where data was of which a file is not among the ``files``."""

    def data(run: re.Match[bytes]) -> bytes:
        references = _REFERENCE.findall(run[0])
        found = [files.get(digest.decode(), b"") for _, digest in references]
        if not all(found):
            return GONE.encode()
        whole = b"".join(found)
        return whole.translate(_TO_URL_SAFE) if references[0][0] == b"u" else whole

    return _REFERENCES.sub(data, text) if _MARK in text else text


async def fetch(redis: Redis, key: str, digests: Sequence[bytes]) -> dict[str, bytes]:
    """A session's files by digest, which stand at ``key``; those that are gone are left out.

    Raises:
        redis.exceptions.RedisError, OSError: the broker's trouble.
    """
    files = {}
    for at in range(0, len(digests), FETCHED_AT_ONCE):
        some = digests[at : at + FETCHED_AT_ONCE]
        # One after the other: commands that come together are carried out together.
        found = await command(redis, "HMGET", key, *some, large=True)
        files.update({digest.decode(): data for digest, data in zip(some, found, strict=True) if data})
    return files
