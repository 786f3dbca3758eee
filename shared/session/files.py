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

# What data stands behind: in a ``data:`` URL, or in a field of the protocol or of the agent library that may be base64 by
# itself. Text that happens to be of such letters only stays what it is.
_BEFORE = (
    b";base64,",
    *(b'"%b":"' % name for name in (b"data", b"file_data", b"image_url", b"file_url", b"video_url")),
)
_MOST_BEFORE = max(map(len, _BEFORE))

_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"
_RUN = re.compile(rb"[A-Za-z0-9+/_-]*")
_PADDING = re.compile(rb"={0,2}")
# Any run of `LARGE_BYTES` covers a whole window of half that size at a multiple of `_HALF`.
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
    """A JSON text with references instead of its large data, which is put into ``files`` by digest.

    In steps of some 256 KiB: in a thread, it holds the interpreter for no longer than one of them takes.
    """
    if len(text) < LARGE_BYTES:
        return text
    parts: list[bytes] = []
    done = at = 0
    while at + _HALF <= len(text):
        if not _WITHIN.match(text, at):
            at += _HALF
            continue
        lead = max(at - _HALF, 0)
        start, end = lead + len(text[lead:at].rstrip(_LETTERS)), _end_of_run(text, at)
        if end - start >= LARGE_BYTES and text[max(start - _MOST_BEFORE, 0) : start].endswith(_BEFORE):
            end = _matched(_PADDING, text, end)
            parts += (text[done:start], _put(text, start, end, files))
            done = end
        at = -(-end // _HALF) * _HALF
    return b"".join([*parts, text[done:]]) if parts else text


def _end_of_run(text: bytes, at: int) -> int:
    """Where the letters of base64 end that stand at ``at``."""
    while piece := text[at : at + PIECE_BYTES]:
        # Many times faster than the pattern, which tells where.
        if piece.translate(None, _LETTERS):
            return _matched(_RUN, text, at)
        at += len(piece)
    return at


def _matched(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _put(text: bytes, start: int, end: int, files: dict[str, bytes]) -> bytes:
    """The references to the data from ``start`` to ``end``, which is put into ``files``."""
    url_safe = _any(b"-_", text, start, end) and not _any(b"+/", text, start, end)
    alphabet = b"u" if url_safe else b"s"
    references = []
    for at in range(start, end, PIECE_BYTES):
        piece = text[at : min(at + PIECE_BYTES, end)]
        if url_safe:
            piece = piece.translate(_TO_STANDARD)
        digest = hashlib.sha256(piece).hexdigest()
        files[digest] = piece
        references.append(b"%b%b%b%b" % (_MARK, alphabet, digest.encode(), _MARK))
    return b"".join(references)


def _any(letters: bytes, text: bytes, start: int, end: int) -> bool:
    return any(text.find(letter, start, end) >= 0 for letter in letters)


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


def references(text: bytes) -> list[str]:
    """The digests of the files that a text refers to, as often as it does."""
    return [digest.decode() for _, digest in _REFERENCE.findall(text)] if _MARK in text else []


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
