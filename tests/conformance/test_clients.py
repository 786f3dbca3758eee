"""Every kind of client rebuilds the same conversation, and it is the one that the server keeps."""

from __future__ import annotations

import pytest

from tests.conformance.captures import from_entries, recorded
from tests.conformance.features import FEATURES
from tests.conformance.reducers import (
    AGENT_API_CLIENTS,
    LITEAGENT_CLIENTS,
    ClientError,
    as_liteagent,
    dart,
    dispatcher,
    history_of,
    in_common,
    java_edition,
    output_of,
    python_client,
    web_page,
    without_requests,
)

NAMES = [feature.name for feature in FEATURES]


@pytest.mark.parametrize("pings", [False, True])
@pytest.mark.parametrize("client", AGENT_API_CLIENTS)
@pytest.mark.parametrize("name", NAMES)
def test_agent_api_clients_rebuild_the_output(name: str, client: str, pings: bool) -> None:
    """Pieces add up to the terminal output, however a client adds them, heartbeats or not."""
    capture = from_entries(recorded(name), "agentscope", pings=pings)
    assert AGENT_API_CLIENTS[client](capture) == output_of(capture)


@pytest.mark.parametrize("name", NAMES)
def test_the_java_edition_says_the_same(name: str) -> None:
    """A Java client rebuilds what the Python client does, and what its own terminal output says."""
    capture = from_entries(recorded(name), "java")
    rebuilt = java_edition(capture)
    assert rebuilt == python_client(from_entries(recorded(name), "agentscope"))
    assert rebuilt == output_of(capture)


@pytest.mark.parametrize("pings", [False, True])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("client", LITEAGENT_CLIENTS)
@pytest.mark.parametrize("name", NAMES)
def test_liteagent_clients_rebuild_the_history(name: str, client: str, stream: bool, pings: bool) -> None:
    """With chunks or without, what a client heard is what the history tells it later."""
    capture = from_entries(recorded(name), "liteagent", stream=stream, pings=pings)
    assert without_requests(LITEAGENT_CLIENTS[client](capture)) == history_of(capture)


@pytest.mark.parametrize("name", NAMES)
def test_both_wires_tell_the_same_conversation(name: str) -> None:
    """What both wires have words for is said in the same order and with the same content."""
    heard = web_page(from_entries(recorded(name), "agentscope"))
    for stream in (True, False):
        told = dispatcher(from_entries(recorded(name), "liteagent", stream=stream))
        assert as_liteagent(heard) == in_common(told)


def test_clients_hear_the_functions_they_must_answer() -> None:
    """Each call and each request for approval reaches a LiteAgent client as one functionCall."""
    for name, calls in (("client_call", 1), ("parallel_calls", 3), ("approval_no", 1), ("text", 0)):
        said = dispatcher(from_entries(recorded(name), "liteagent"))
        assert [kind for _, kind, _ in said].count("functionCall") == calls


def test_the_java_client_dies_of_a_comment() -> None:
    """The heartbeat of the other wire would end a LiteAgent client: the reducers are as strict as the clients."""
    capture = from_entries(recorded("text"), "liteagent")
    with pytest.raises(ClientError):
        dispatcher(capture.read_as((b": ping\n\n", *capture.reads)))


def test_the_dart_client_loses_a_split_frame() -> None:
    """A frame that comes in two reads is lost to the Dart client: the reducers are as weak as the clients."""
    capture = from_entries(recorded("text"), "liteagent")
    first, *rest = capture.reads
    split = capture.read_as((first, rest[0][:24], rest[0][24:], *rest[1:]))
    assert split.body == capture.body
    assert dart(split) != dart(capture)
