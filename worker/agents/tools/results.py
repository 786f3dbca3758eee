"""What tools return: kept as JSON, given to the model the same whether fresh or kept, and shown to the client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pydantic_core
from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import (
    MULTI_MODAL_CONTENT_TYPES,
    BinaryContent,
    MultiModalContent,
    ToolReturn,
    UserContent,
)

from turnstream.shared.agents.json_depth import MOST_LEVELS, too_deep

# Larger ones would fill the model's context many times over, and the log with it.
MOST_CHARACTERS = 2**20
MOST_BYTES = 8 * 2**20

_CONTENT: TypeAdapter[Any] = TypeAdapter(Sequence[UserContent])
_FILE: TypeAdapter[Any] = TypeAdapter(MultiModalContent)

# What the library's own files say they are, where they stand in JSON.
FILE_KINDS = frozenset({"binary", "uploaded-file", "image-url", "audio-url", "document-url", "video-url"})

Kept = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """One tool's result.

    Attributes:
        kept: as JSON.
        given: as the model gets it.
        shown: as the client reads it: images and other files by their kind and size only.
    """

    kept: Kept
    given: Any
    shown: str


def result_of(returned: Any) -> Result:
    """What a tool returned; what cannot be JSON, or is too large, becomes words that say so."""
    try:
        kept = _kept(returned)
        size = len(pydantic_core.to_json(kept))
        shown = _shown(given(kept))
    except Exception as error:
        return _words(f"its result cannot be written as JSON: {type(error).__name__}")
    if size > MOST_BYTES or len(shown) > MOST_CHARACTERS:
        return _words("its result is too large: ask for less")
    if too_deep(kept, MOST_LEVELS + 2):
        return _words(f"its result is nested deeper than {MOST_LEVELS} levels")
    return Result(kept, given(kept), shown)


def given(kept: Kept) -> Any:
    """What the model gets, the same from a kept result as from a fresh one.

    Only what was an image or file becomes one again: the same words in somebody's JSON could name an
    address inside our network.
    """
    output = kept["output"]
    files = kept["files"] if "files" in kept else _unmarked(output)
    if files is True:
        output = _FILE.validate_python(output)
    elif files:
        output = [
            _FILE.validate_python(each) if at in files else never_a_file(each)
            for at, each in enumerate(output)
        ]
    else:
        output = never_a_file(output)
    if "content" in kept:
        return ToolReturn(output, content=_CONTENT.validate_python(kept["content"]))
    return output


def _unmarked(output: Any) -> bool | list[int]:
    """What is a file in a result of an older worker, which did not note that; links are left as words."""
    if isinstance(output, list):
        return [at for at, each in enumerate(output) if _is_binary(each)]
    return _is_binary(output)


def _is_binary(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("kind") != "binary":
        return False
    try:
        _FILE.validate_python(value)
    except ValidationError:
        return False
    return True


def never_a_file(returned: Any) -> Any:
    """JSON that stays what it is when the model's messages are read back.

    The library would then make a file of a mapping that says it is one, however deep it stands. As JSON
    text the model reads the same words.
    """
    return pydantic_core.to_json(returned).decode() if _says_it_is_a_file(returned) else returned


def _says_it_is_a_file(returned: Any) -> bool:
    left = [returned]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            kind = each.get("kind")
            if isinstance(kind, str) and kind in FILE_KINDS:
                return True
            left += each.values()
        elif isinstance(each, list):
            left += each
    return False


def _words(text: str) -> Result:
    said = f"(The tool ran, but {text}.)"
    return Result({"output": said, "files": False}, said, said)


def _kept(result: Any) -> Kept:
    if not isinstance(result, ToolReturn):
        return _output(result)
    kept = _output(result.return_value)
    if content := result.content:
        kept["content"] = _CONTENT.dump_python(
            [content] if isinstance(content, str) else content, mode="json"
        )
    return kept


def _output(result: Any) -> Kept:
    # Always noted: a result without it is an older worker's.
    kept: Kept = {"output": _plain(result), "files": False}
    if isinstance(result, MULTI_MODAL_CONTENT_TYPES):
        kept["files"] = True
    elif isinstance(result, list | tuple):
        files = [at for at, each in enumerate(result) if isinstance(each, MULTI_MODAL_CONTENT_TYPES)]
        if files:
            kept["files"] = files
    return kept


def _shown(result: Any) -> str:
    if isinstance(result, ToolReturn):
        result = result.return_value
    if isinstance(result, str):
        return result
    if isinstance(result, BinaryContent):
        return f"({result.media_type}, {len(result.data)} bytes)"
    if isinstance(result, list) and any(isinstance(each, BinaryContent) for each in result):
        return "\n".join(_shown(each) for each in result)
    return pydantic_core.to_json(result).decode()


def _plain(result: Any) -> Any:
    plain = pydantic_core.to_jsonable_python(result, serialize_unknown=True, bytes_mode="base64")
    try:
        pydantic_core.to_json(plain)
    except pydantic_core.PydanticSerializationError:
        # Half of a character, from text that was cut in the wrong place.
        return json.loads(json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace"))
    return plain
