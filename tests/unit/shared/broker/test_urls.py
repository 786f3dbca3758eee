"""A broker's URL: what each kind says, and what is wrong with one that is refused."""

from __future__ import annotations

import pytest

from turnstream.shared.broker.urls import BrokerUrl


def test_one_server() -> None:
    """Its options are as the client library reads them; a port may be left out."""
    url = BrokerUrl.parse("redis://api:a%40b@redis.example/2?socket_timeout=3")
    assert (url.kind, url.tls, url.user, url.hosts) == ("", False, "api", [("redis.example", 6379)])
    assert url.options == {"username": "api", "password": "a@b", "db": 2, "socket_timeout": 3.0}
    assert BrokerUrl.parse("unix:///run/redis.sock").options == {"path": "/run/redis.sock"}


def test_sentinels() -> None:
    """Their addresses, the primary's name, and what is for the servers."""
    url = BrokerUrl.parse("rediss+sentinel://api:secret@one:1,[::1]:2,three/my%20chat/1")
    assert (url.kind, url.tls, url.name) == ("sentinel", True, "my chat")
    assert url.hosts == [("one", 1), ("::1", 2), ("three", 26379)]
    assert url.options == {"username": "api", "password": "secret", "db": 1}


@pytest.mark.parametrize(
    ("text", "here"),
    [
        ("redis://localhost", True),
        ("unix:///run/redis.sock", True),
        ("redis+sentinel://127.0.0.1,[::1]:2/n", True),
        ("redis+sentinel://127.0.0.1,redis.example/n", False),
    ],
)
def test_whether_all_of_it_is_on_this_machine(text: str, here: bool) -> None:
    """One address elsewhere is enough."""
    assert BrokerUrl.parse(text).here is here


def test_what_is_shown_has_no_secret() -> None:
    """Neither as it is told to people, nor in a traceback."""
    url = BrokerUrl.parse("redis+sentinel://api:secret@one,two/chat/1?password=secret")
    assert url.shown == "redis+sentinel://api@one,two/chat/1"
    assert "secret" not in repr(url)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://x", "must be redis://"),
        ("redis+other://x", "must be redis://"),
        ("unix+sentinel://x/n", "must be redis://"),
        ("redis://", "names no host"),
        ("redis://x:port", "Port could not be cast"),
        ("redis+sentinel://one,two", "names no primary"),
        ("redis+sentinel:///n", "names no host"),
        ("redis+sentinel://x/n/other", "the database must be a number, not 'other'"),
    ],
)
def test_what_is_none(text: str, said: str) -> None:
    """It is refused before anything is started."""
    with pytest.raises(ValueError, match=said):
        BrokerUrl.parse(text)
