"""The bodies that LiteAgent clients send."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstream.api.protocols.liteagent.requests import parse_callback, parse_chat
from turnstream.shared.errors import InvalidBody

TEXT = {"type": "text", "message": "你是谁？"}
IMAGE = {"type": "imageUrl", "message": "data:image/jpeg;base64,AA"}


def chat(**fields: Any) -> bytes:
    """A chat body with one text part unless told otherwise."""
    return orjson.dumps({"content": [TEXT]} | fields)


def refused(body: bytes, parse: Any = parse_chat) -> str:
    """The text with which the body is refused."""
    with pytest.raises(InvalidBody) as error:
        parse(body)
    return error.value.public_text


@pytest.mark.parametrize("name", ["content", "contentList"])
def test_content_has_two_names(name: str) -> None:
    """The content list is read under the documented name and under the older one."""
    request = parse_chat(orjson.dumps({name: [TEXT, IMAGE]}))
    assert request.parts == [TEXT, IMAGE]
    assert (request.stream, request.task_id) == (False, None)


def test_documented_name_wins() -> None:
    """Of two content lists the documented one counts."""
    assert parse_chat(chat(contentList=[IMAGE])).parts == [TEXT]
    assert parse_chat(chat(content=None, contentList=[IMAGE])).parts == [IMAGE]


def test_input_is_one_canonical_message() -> None:
    """The turn becomes one user message with text and image parts."""
    assert parse_chat(chat(content=[TEXT, IMAGE])).input() == [
        {
            "role": "user",
            "type": "message",
            "content": [
                {"type": "text", "text": TEXT["message"]},
                {"type": "image", "image_url": IMAGE["message"]},
            ],
        }
    ]


def test_bare_string_is_a_text_part() -> None:
    """An item may be a string."""
    assert parse_chat(chat(content=["hi", IMAGE])).parts == [{"type": "text", "message": "hi"}, IMAGE]


@pytest.mark.parametrize(
    ("fields", "stream"),
    [
        ({}, False),
        ({"stream": True}, True),
        ({"isChunk": True}, True),
        ({"stream": False, "isChunk": True}, False),
        ({"stream": None, "isChunk": True}, True),
    ],
)
def test_stream_has_two_names(fields: dict[str, Any], stream: bool) -> None:
    """Streaming is asked for under either name and is off by default."""
    assert parse_chat(chat(**fields)).stream is stream


@pytest.mark.parametrize("task", ["t", "a" * 36, "A-Z_0.9:@x"])
def test_task_id_may_be_chosen(task: str) -> None:
    """A client may name its task."""
    assert parse_chat(chat(taskId=task)).task_id == task


def test_an_empty_task_id_is_none() -> None:
    """A client that writes every field it knows has its task named by us."""
    assert parse_chat(chat(taskId="")).task_id is parse_chat(chat(taskId=None)).task_id is None


def test_a_byte_order_mark_is_passed_over() -> None:
    """Some platforms write one before JSON without being asked."""
    assert parse_chat(b"\xef\xbb\xbf" + chat()).parts == [TEXT]


def test_unknown_fields_are_ignored() -> None:
    """Fields of later editions do no harm."""
    assert parse_chat(chat(mood="good", content=[TEXT | {"extra": 1}])).parts == [TEXT]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (chat(content=[]), "content: "),
        (orjson.dumps({"contentList": []}), "contentList: "),
        (b"{}", "content: Field required"),
        (chat(content="hi"), "content: "),
        (chat(content=[{"type": "video", "message": "secret"}]), "content[0].type: "),
        (chat(content=[TEXT, {"type": "text"}]), "content[1].message: Field required"),
        (chat(content=[{"type": "text", "message": 5}]), "content[0].message: "),
        (chat(content=[5]), "content[0]: Input should be an object"),
        (chat(stream="secret"), "stream: "),
        (chat(taskId="a" * 37), "taskId: "),
        (chat(taskId="a b"), "taskId: "),
        (chat(taskId="a\n"), "taskId: "),
        (b"[]", "The body is not a JSON object."),
        (b'"hi"', "The body is not a JSON object."),
        (b'{"content":\n ?}', "The body is not JSON in UTF-8: unexpected character"),
        (b" ", "The body is empty: send a JSON object."),
        (b'{"content":["\xff"]}', "The body is not JSON in UTF-8: "),
    ],
)
def test_refusal_names_the_field(body: bytes, field: str) -> None:
    """A wrong chat body is refused with the field's place, and without the user's words."""
    text = refused(body)
    assert text.startswith(field)
    assert "secret" not in text


def test_all_wrong_fields_are_named() -> None:
    """Two faults are told at once."""
    assert refused(chat(stream="x", content=[])).count(": ") == 2


@pytest.mark.parametrize("result", [{"status": "ok"}, {"approve": True}, [1], "done", 5, None, False])
def test_callback_takes_any_result(result: Any) -> None:
    """A result is any JSON value."""
    callback = parse_callback(orjson.dumps({"id": "call_1", "result": result, "more": 1}))
    assert (callback.id, callback.result) == ("call_1", result)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"result": {}}', "id: Field required"),
        (b'{"id": "", "result": {}}', "id: "),
        (b'{"id": 5, "result": {}}', "id: "),
        (b'{"id": "c"}', "result: Field required"),
        (b'{"id": "c", "result": NaN}', "The body is not JSON in UTF-8: "),
        (b"nonsense", "The body is not JSON in UTF-8: "),
    ],
)
def test_callback_refusal_names_the_field(body: bytes, field: str) -> None:
    """A wrong callback body is refused with the field's place."""
    assert refused(body, parse_callback).startswith(field)


@given(st.binary() | st.recursive(st.none() | st.text(), st.lists).map(lambda value: repr(value).encode()))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    """No body makes the parsers fail in another way."""
    for parse in (parse_chat, parse_callback):
        try:
            parse(body)
        except InvalidBody as error:
            assert error.public_text  # noqa: PT017 - either outcome is fine
