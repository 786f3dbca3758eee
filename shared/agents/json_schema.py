"""JSON Schema of a function's arguments: checked when it is given, applied to what a model makes up.

Clients and MCP servers write schemas, and may steer the model that fills them in. Three things that the
library does by itself would let them hold up a process, or reach into our network, so they are not done:

    1. download what a ``$ref`` names: references go into the schema itself, or nowhere;
    2. match patterns with backtracking, which may never end: patterns run in linear time;
    3. go through as many alternatives as the schema has: the steps of one check are counted.
"""

from __future__ import annotations

import json
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend
from jsonschema_specifications import REGISTRY
from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema
from referencing.exceptions import Unresolvable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Larger ones cost the front end too long to check, and a model too many tokens to read.
MOST_BYTES = 32 * 1024

# Schemas within a schema: looking one over against the specification takes a tenth of a millisecond.
MOST_SCHEMAS = 1_500

# A pattern is compiled when it is looked over, which costs milliseconds, and megabytes for as long as it is kept.
MOST_PATTERNS = 16
PATTERN_CHARACTERS = 200

# Steps of one check, a keyword each. What people write takes some hundreds; these take a third of a second.
MOST_STEPS = 10_000

# What a model is told about one call: enough to mend it.
MOST_REASONS = 5
REASON_CHARACTERS = 300


class TooMuch(Exception):  # noqa: N818 - it says what the check is
    """The check takes more steps than it may."""


_steps: ContextVar[list[int]] = ContextVar("json_schema_steps")


def check(schema: Mapping[str, Any]) -> None:
    """Look a function's schema over.

    Raises:
        ValueError: it is no JSON Schema of an object, or asks for what is not done here; says where.
    """
    try:
        text = orjson.dumps(schema)
    except orjson.JSONEncodeError:
        raise ValueError("too deep, or no JSON") from None
    if len(text) > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES // 1024} KiB")
    if text.count(b"{") > MOST_SCHEMAS:
        raise ValueError("too deep, or too complicated")
    if wrong := _wrong(text):
        raise ValueError(wrong)


@lru_cache(maxsize=512)
def _wrong(text: bytes) -> str:
    """What is wrong, or empty. Clients send the same schemas turn by turn, those that are refused as well."""
    try:
        _check(text)
    except ValueError as error:
        return str(error)
    return ""


def _check(text: bytes) -> None:
    schema = orjson.loads(text)
    try:
        if schema.get("type") != "object":
            raise ValueError('a function takes an object: "type" must be "object"')
        if wrong := _errors(_Validator.META_SCHEMA, schema, MOST_STEPS, most=1):
            raise ValueError(f"not a JSON Schema: {wrong[0].json_path}: {_brief(wrong[0])}")
        resolver = _Validator(schema, registry=REGISTRY)._resolver  # noqa: SLF001 - as the library looks them up
        _count_patterns(schema)
        for reference in _look_through(schema, "$", 0):
            resolver.lookup(reference)
    except (TooMuch, RecursionError):
        raise ValueError("too deep, or too complicated") from None
    except Unresolvable as error:
        raise ValueError(f"$ref {error.ref!r} leads nowhere within the schema") from None


def misfits(schema: Mapping[str, Any], arguments: Any) -> list[str]:
    """How the arguments do not fit the schema, in words for the model; empty when they do."""
    try:
        wrong = _errors(schema, arguments, MOST_STEPS, most=MOST_REASONS)
    except (TooMuch, RecursionError):
        return ["$: too deep, or too long to be checked against the schema"]
    except (Unresolvable, PatternError, ArithmeticError, ValueError):
        # The last two: what is no number for the library, multiples of something in an infinity for example.
        return ["$: the function's schema cannot be applied to them"]
    return [f"{error.json_path}: {_brief(error)}" for error in wrong]


def _errors(schema: Mapping[str, Any], given: Any, steps: int, *, most: int) -> list[ValidationError]:
    token = _steps.set([steps])
    try:
        return list(islice(_Validator(schema, registry=REGISTRY).iter_errors(given), most))
    finally:
        _steps.reset(token)


def _brief(error: ValidationError) -> str:
    # The library quotes what is wrong, however long it is.
    text = str(error.message)
    return text if len(text) <= REASON_CHARACTERS else text[:REASON_CHARACTERS] + "…"


# ── what strangers may not do ───────────────────────────────────────────────────────────────────────

# Where schemas stand in a schema.
_ONE = ("items", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")

_DEEPEST = 64


def patterns(schema: Mapping[str, Any]) -> int:
    """How many patterns a schema has that was looked over."""
    return sum(1 for _ in _patterns(schema, 0))


def _count_patterns(schema: Any) -> None:
    """Before any is compiled."""
    found = list(_patterns(schema, 0))
    if len(found) > MOST_PATTERNS:
        raise ValueError(f"more than {MOST_PATTERNS} patterns")
    if any(len(str(pattern)) > PATTERN_CHARACTERS for pattern in found):
        raise ValueError(f"a pattern of more than {PATTERN_CHARACTERS} characters")


def _patterns(schema: Any, depth: int) -> Iterator[Any]:
    if depth > _DEEPEST:
        raise TooMuch
    if isinstance(schema, dict):
        if "pattern" in schema:
            yield schema["pattern"]
        yield from schema.get("patternProperties", ())
        for _, inner in _inner(schema):
            yield from _patterns(inner, depth + 1)


def _look_through(schema: Any, path: str, depth: int) -> Iterator[str]:
    """All references; raises ValueError for those to elsewhere, and for patterns without linear time."""
    if depth > _DEEPEST:
        raise TooMuch
    if not isinstance(schema, dict):
        return
    patterns = [schema["pattern"]] if "pattern" in schema else []
    for pattern in [*patterns, *schema.get("patternProperties", ())]:
        try:
            _pattern(pattern)
        except PatternError:
            raise ValueError(
                f"{path}: the pattern {pattern[:100]!r} cannot be used; it is wrong, or has look-around or "
                "back-references"
            ) from None
    for unknown in ("$dynamicRef", *(("$id",) if depth else ())):
        if unknown in schema:
            raise ValueError(f"{path}: {unknown} is not supported here")
    if "$ref" in schema:
        if not str(schema["$ref"]).startswith("#"):
            raise ValueError(f"{path}: $ref must begin with '#'; other documents are not fetched")
        yield str(schema["$ref"])
    for place, inner in _inner(schema):
        yield from _look_through(inner, f"{path}.{place}", depth + 1)


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((name, schema[name]) for name in _ONE if name in schema)
    for name in _LISTS:
        yield from ((f"{name}[{at}]", each) for at, each in enumerate(schema.get(name, ())))
    for name in _NAMED:
        yield from ((f"{name}.{key}", each) for key, each in schema.get(name, {}).items())


# ── the library's validator, without them ───────────────────────────────────────────────────────────


@lru_cache(maxsize=64)
def _pattern(pattern: str) -> SchemaValidator:
    """A pattern in an engine without backtracking."""
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def _matches(pattern: str, text: str) -> bool:
    return _pattern(pattern).isinstance_python(text)


def _check_pattern(validator: Any, pattern: str, given: Any, schema: Any) -> Iterator[ValidationError]:  # noqa: ARG001
    if validator.is_type(given, "string") and not _matches(pattern, given):
        yield ValidationError(f"{given!r} does not match {pattern!r}")


def _check_pattern_properties(
    validator: Any,
    patterns: Mapping[str, Any],
    given: Any,
    schema: Any,  # noqa: ARG001
) -> Iterator[ValidationError]:
    if validator.is_type(given, "object"):
        for pattern, inner in patterns.items():
            for name, value in given.items():
                if _matches(pattern, name):
                    yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _check_additional(validator: Any, inner: Any, given: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(given, "object"):
        return
    patterns = schema.get("patternProperties", {})
    for name, value in given.items():
        if name in schema.get("properties", {}) or any(_matches(each, name) for each in patterns):
            continue
        if inner is False:
            yield ValidationError(f"Additional properties are not allowed ({name!r} was unexpected)")
        else:
            yield from validator.descend(value, inner, path=name)


def _check_unique(validator: Any, wanted: Any, given: Any, schema: Any) -> Iterator[ValidationError]:  # noqa: ARG001
    if wanted and validator.is_type(given, "array"):
        seen = {json.dumps(each, sort_keys=True) for each in given}
        if len(seen) < len(given):
            yield ValidationError("has non-unique elements")


def _counted(keyword: Any) -> Any:
    def check(validator: Any, value: Any, given: Any, schema: Any) -> Iterator[ValidationError]:
        left = _steps.get()
        left[0] -= 1
        if left[0] < 0:
            raise TooMuch
        yield from keyword(validator, value, given, schema) or ()

    return check


def _unchecked(*_: Any) -> None:
    """What depends on all that was evaluated before; its cost cannot be counted from here."""


_Validator: Any = extend(
    Draft202012Validator,
    {
        name: _counted(keyword)
        for name, keyword in {
            **Draft202012Validator.VALIDATORS,
            "pattern": _check_pattern,
            "patternProperties": _check_pattern_properties,
            "additionalProperties": _check_additional,
            "uniqueItems": _check_unique,
            "unevaluatedProperties": _unchecked,
            "unevaluatedItems": _unchecked,
        }.items()
    },
)
