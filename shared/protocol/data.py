"""Plain JSON values: how they are copied, and how a delta grows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, from_json, to_json

# The one field of each content type that a delta continues; its other fields are replaced.
# ``data`` parts and parts of an unknown type are merged as a whole.
GROWING: dict[str, str] = {
    "text": "text",
    "image": "image_url",
    "audio": "data",
    "file": "file_data",
    "refusal": "refusal",
    "video": "video_url",
}


def scrub(text: str) -> str:
    """Valid Unicode: surrogate pairs joined, each lone surrogate replaced by U+FFFD.

    Models split emoji over tokens now and then; JSON on the wire cannot carry half of one.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def valid(text: str) -> str:
    """``text`` itself when it can be encoded, else scrubbed."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return scrub(text)
    return text


def encode(value: object) -> bytes:
    """JSON of anything that has a JSON form (models, dates, tuples …); NaN and infinity become null.

    Raises:
        PydanticSerializationError: ``value`` holds an object without one.
    """
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:
        return to_json(_scrubbed(value), inf_nan_mode="null")


def plain(value: object) -> Any:
    """A deep copy of ``value`` that holds nothing but JSON values.

    Raises:
        PydanticSerializationError: ``value`` holds an object without a JSON form.
    """
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True)
    return from_json(encode(value))


def merge(whole: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Grow ``whole`` by ``delta``, in place.

    Strings concatenate, lists extend, objects recurse, numbers add. Null says nothing about a value
    that is there. Everything else (truth values, a change of type) is replaced. Containers of
    ``delta`` that are new to ``whole`` are taken over, not copied.
    """
    for key, new in delta.items():
        old = whole.get(key)
        if old is None or new is None:
            whole[key] = old if new is None else new
        elif isinstance(old, str) and isinstance(new, str):
            whole[key] = old + new
        elif isinstance(old, list) and isinstance(new, list):
            old.extend(new)
        elif isinstance(old, dict) and isinstance(new, Mapping):
            merge(old, new)
        elif _number(old) and _number(new):
            whole[key] = old + new
        else:
            whole[key] = new


def grow(content_type: str, whole: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Grow the payload of a content part by the payload of a delta of the same type, in place."""
    field = GROWING.get(content_type)
    if field is None:
        merge(whole, delta)
        return
    for key, new in delta.items():
        if key == field:
            merge(whole, {key: new})
        elif new is not None:
            whole[key] = new


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _scrubbed(value: object) -> object:
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, Mapping):
        return {_scrubbed(key): _scrubbed(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_scrubbed(item) for item in value]
    return value
