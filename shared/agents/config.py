"""What an agent is, as configured: ``agents.toml`` read into specs.

Both sides read it: the front end for busy mode, limits and overrides, the worker to build the agent.
Nothing here imports an agent library.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from turnstream.shared.agents import json_schema
from turnstream.shared.agents.toml_lines import Lines
from turnstream.shared.errors import AgentFieldError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from pydantic_core import ErrorDetails

DEMO = "demo"

_NAME = r"^[A-Za-z0-9_.-]{1,64}$"
_VERSION = r"^[A-Za-z0-9_.+-]{1,64}$"
_REFERENCE = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
_VARIABLE = r"^[A-Z_][A-Z0-9_]*$"
_ADDRESS = r"^https?://"
_ON_LOST = r"^(rerun|tell|ask|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$"

# How the parser's errors end; before Python 3.14 they tell the place in no other way.
_SYNTAX_PLACE = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")

# What a wrong text is told, which never quotes it: it may be a key that stands in the wrong place.
_PATTERNS = {
    _NAME: "must be a name of letters, digits, '_', '.' and '-', at most 64 of them",
    _VERSION: "must be letters, digits, '_', '.', '+' and '-', at most 64 of them",
    _REFERENCE: "must be of the form 'module:name', as 'shop:discount' for discount in shop.py",
    _VARIABLE: "must be the name of an environment variable, in capital letters; the value itself never stands in a file",
    _ADDRESS: "must begin with http:// or https://",
    _ON_LOST: "must be 'rerun', 'tell', 'ask', or the 'module:name' of a function that finds out",
}

Name = Annotated[str, Field(pattern=_NAME)]

# "module:attribute", as Python's own entry points spell it.
Reference = Annotated[str, Field(pattern=_REFERENCE)]

Variable = Annotated[str, Field(pattern=_VARIABLE)]

# What is done about a call whose worker was lost: run again, tell the model, ask the client, or ask a function.
OnLost = Annotated[str, Field(pattern=_ON_LOST)]


# What a request may ask of the model, where the agent allows it.
Override = Literal[
    "model",
    "temperature",
    "top_p",
    "frequency_penalty",
    "presence_penalty",
    "max_tokens",
    "stop",
    "seed",
    "tools",
]
OVERRIDES: tuple[Override, ...] = get_args(Override)

# What every client of the protocol may expect to be honoured. Another model is another bill: the agent's to allow.
USUAL_OVERRIDES: tuple[Override, ...] = tuple(name for name in OVERRIDES if name != "model")


# Only some protocols' requests have it: a JSON Schema that the answer is to fit.
OUTPUT_SCHEMA: Literal["output_schema"] = "output_schema"

# What one word stands for.
SAMPLING = "sampling"
_SAMPLING: tuple[Override, ...] = tuple(name for name in OVERRIDES if name not in ("model", "tools"))


def _overrides(given: Any) -> Any:
    if isinstance(given, bool):
        return (*OVERRIDES, OUTPUT_SCHEMA) if given else ()
    if not isinstance(given, list | tuple) or SAMPLING not in given:
        return given
    return tuple(dict.fromkeys(one for each in given for one in (_SAMPLING if each == SAMPLING else (each,))))


def _check_json(given: Any) -> None:
    """See to it that what TOML can say is JSON, too: every request to the model is.

    Raises:
        ValueError: it is not; says why.
    """
    try:
        json.dumps(given, allow_nan=False)
    except TypeError:
        raise ValueError("dates and times are no JSON: write them as text") from None
    except ValueError:
        raise ValueError("nan and inf are no JSON") from None


def model_name(model: str, base_url: str | None) -> str:
    """The name by which operators know a model: as it is configured, and where it is if it has an address of its own."""
    return f"{model}@{urlsplit(base_url).netloc.rpartition('@')[2]}" if base_url else model


Attachment = Literal["image", "audio", "video", "file"]


class MemoryLimits(BaseModel):
    """How much of earlier turns the model sees. Whole turns are dropped, the oldest first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    turns: int = Field(1000, ge=0, le=100_000, description="Turns kept at most; 0 forgets each turn.")
    tokens: int | None = Field(
        None, ge=1, description="Tokens of earlier turns at most, taken as four characters each."
    )


class ClientTool(BaseModel):
    """A function that the client runs: the model calls it, the turn parks, ``/callback`` answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    description: str = ""
    parameters: dict[str, Any] = Field(
        default_factory=lambda: {"type": "object", "properties": {}},
        description="JSON Schema of its arguments.",
    )

    @field_validator("parameters")
    @classmethod
    def _json_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        json_schema.check(schema)
        _check_json(schema)
        return schema


class McpApprovals(BaseModel):
    """Which tools of an MCP server need the client's consent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tools: tuple[str, ...]


class McpServer(BaseModel):
    """One ``[[agents.NAME.mcp]]`` table: a server that is started (``command``) or reached (``url``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: Name = Field(description="What the client is told as `server_label`.")
    command: str | None = Field(None, description="The program of a stdio server.")
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict, description="Variables for the program.")
    env_from: tuple[Variable, ...] = Field(
        (), description="Variables of the worker that the program gets too; it gets no others."
    )
    url: str | None = Field(None, pattern=_ADDRESS, description="A streamable HTTP server.")
    headers_env: dict[str, Variable] = Field(
        default_factory=dict, description="Header → the environment variable that holds its value."
    )
    approval: Literal["never", "always"] | McpApprovals = "never"
    on_lost: dict[str, OnLost] = Field(
        default_factory=dict, description="Tool → what is done about a lost call; else its hints decide."
    )
    start_deadline: float = Field(30, gt=0, le=600, description="For starting, or reaching, the server.")

    @model_validator(mode="after")
    def _one_way(self) -> McpServer:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either command or url")
        wrong = self.model_fields_set & (_HTTP_ONLY if self.command else _STDIO_ONLY)
        if wrong:
            raise ValueError(f"{', '.join(sorted(wrong))}: not for a server given by {self.way}")
        return self

    @property
    def way(self) -> str:
        """How the server is reached: ``command`` or ``url``."""
        return "command" if self.command else "url"

    def needs_approval(self, tool: str) -> bool:
        """Whether the client must consent to a call of that tool."""
        if isinstance(self.approval, McpApprovals):
            return tool in self.approval.tools
        return self.approval == "always"


_STDIO_ONLY = frozenset({"args", "env", "env_from"})
_HTTP_ONLY = frozenset({"headers_env"})


class A2aSkill(BaseModel):
    """One ``[[agents.NAME.a2a.skills]]`` table: something that the agent's card says it can do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Name
    name: str = Field(min_length=1)
    description: str = Field(min_length=1)
    tags: tuple[str, ...] = Field(min_length=1)
    examples: tuple[str, ...] = ()


class A2aCard(BaseModel):
    """The ``[agents.NAME.a2a]`` table: that the agent is published through A2A, and what its card says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str = Field("", description="Its name for people; left out, the agent's.")
    description: str = Field("", description="What it is for; left out, the agent's.")
    skills: tuple[A2aSkill, ...] = Field(
        (), description="What it can do; left out, one that is the agent itself."
    )
    organization: str = Field("", description="Who provides it.")
    organization_url: str | None = Field(None, pattern=_ADDRESS, description="The provider's site.")
    documentation_url: str | None = Field(None, pattern=_ADDRESS, description="Where to read more.")
    icon_url: str | None = Field(None, pattern=_ADDRESS, description="A picture.")
    push_notifications: bool = Field(
        True, description="Whether clients may have webhooks told of their tasks."
    )

    @model_validator(mode="after")
    def _whole_provider(self) -> A2aCard:
        if bool(self.organization) != bool(self.organization_url):
            raise ValueError("organization and organization_url: give both, or neither")
        return self


class Fallback(BaseModel):
    """A model that stands in for an agent's own; written as its name, if that says all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1, description="`openai:…`, or any pydantic-ai model string.")
    base_url: str | None = Field(None, pattern=_ADDRESS, description="An OpenAI-compatible endpoint.")
    api_key_env: Variable | None = Field(
        None, description="The environment variable that holds the provider's key."
    )


def _by_name(given: Any) -> Any:
    if not isinstance(given, list | tuple):
        return given
    return tuple({"model": each} if isinstance(each, str) else each for each in given)


class AgentSpec(BaseModel):
    """One ``[agents.NAME]`` table. Times are seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    model: str = Field("", description="`openai:…`, any pydantic-ai model string, or `demo`.")
    python: Reference | None = Field(
        None, description="A coded agent: an async generator function, or a pydantic-ai Agent."
    )
    version: str | None = Field(
        None,
        pattern=_VERSION,
        description="Its version; left out, a digest of its table and those of its helpers.",
    )
    on_version: Literal["wait", "move", "fail"] = Field(
        "move",
        description="What becomes of a turn whose version no worker serves any more: it waits for one, goes on with this "
        "version, or fails.",
    )
    version_wait: float = Field(
        600, ge=0, le=7 * 86_400, description="For a worker with the turn's version; then it fails."
    )
    deps: Reference | None = Field(
        None, description="A function that makes what a pydantic-ai Agent's runs are given as `deps`."
    )
    base_url: str | None = Field(None, pattern=_ADDRESS, description="An OpenAI-compatible endpoint.")
    api_key_env: Variable | None = Field(
        None, description="The environment variable that holds the provider's key."
    )
    fallback: Annotated[tuple[Fallback, ...], BeforeValidator(_by_name, json_schema_input_type=Any)] = Field(
        (),
        description="Models that stand in, the first that may be asked, while its own is held, left alone by the breaker, or "
        "has its retries spent.",
    )
    description: str = Field("", description="What other agents are told of it, when it is their sub-agent.")
    instructions: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict, description="pydantic-ai model settings.")
    output_schema: dict[str, Any] | None = Field(
        None, description="JSON Schema of what it answers with, as data instead of text."
    )
    tools: tuple[Reference, ...] = ()
    on_lost: dict[str, OnLost] = Field(
        default_factory=dict,
        description="Server tool → what is done about a lost call; else what its code declares.",
    )
    client_tools: tuple[ClientTool, ...] = ()
    mcp: tuple[McpServer, ...] = Field((), description="MCP servers whose tools the model is offered.")
    subagents: tuple[Name, ...] = ()
    max_dispatches: int = Field(
        32, ge=1, le=1000, description="Sub-agents run at most in one turn, at all depths together."
    )
    critics: tuple[Name, ...] = ()
    pass_score: int = Field(8, ge=0, le=10, description="A draft passes at this score of each critic.")
    max_count: int = Field(10, ge=1, le=100, description="Rounds of reflection at most.")
    stream_drafts: bool = Field(
        False, description="Show drafts as they are written; otherwise text is said once it is final."
    )
    busy: Literal["serial", "parallel", "reject", "interrupt"] = "serial"
    parked: Literal["block", "supersede"] = "block"
    on_park: Literal["follow", "complete"] = Field(
        "follow",
        description="Agent API: `follow` keeps a turn's stream open while its client is asked; `complete` ends it there, and an "
        "answer through `/process` is a response of its own.",
    )
    on_disconnect: Literal["stop", "go_on"] = Field(
        "stop",
        description="Chat Completions: what becomes of a turn without a session when its client leaves, to which nobody can come "
        "back: stopped after ten seconds, or not. Turns of sessions always go on.",
    )
    a2a: A2aCard | None = Field(
        None, description="That it is published through A2A: its card, and its routes under `/a2a`."
    )
    deadline: float = Field(3600, gt=0, le=7 * 86_400, description="For the whole turn, parking included.")
    retry_for: float = Field(
        600,
        ge=0,
        le=86_400,
        description="How long a turn waits, without a worker, for a model whose provider is away or overloaded; 0: it fails "
        "at once.",
    )
    tool_deadline: float = Field(600, gt=0, le=86_400, description="For one server tool.")
    callback_deadline: float = Field(3600, gt=0, le=7 * 86_400, description="For the client's answers.")
    memory: MemoryLimits = MemoryLimits()
    allow_overrides: Annotated[
        tuple[Literal[Override, "output_schema"], ...],
        BeforeValidator(_overrides, json_schema_input_type=Any),
    ] = Field(
        USUAL_OVERRIDES,
        description="What a request may set, `sampling` for all that is about that; true for all of it, false for nothing.",
    )
    strict_overrides: bool = Field(
        False,
        description="Refuse (422) a request that sets anything else; else that is not applied, and named "
        "in the response's `metadata.ignored`.",
    )
    fetch_links: bool = Field(
        False, description="Have links downloaded for a model that reads none; else they are told as text."
    )
    simple: bool = Field(
        False, description="One-shot: LiteAgent's chat needs no session, and there is nothing to clear."
    )
    system_messages: bool = Field(
        False,
        description="Whether a client's `system` messages reach the model as such; else as the user's words.",
    )
    file_ids: bool = Field(
        False, description="Whether a request may name files of the provider's account by their id."
    )
    images: bool = Field(False, description="Whether larger bodies, with images in them, are accepted.")
    attachments: tuple[Attachment, ...] = Field(
        get_args(Attachment),
        description="What a user's message may have beside text, as its model understands it.",
    )

    @field_validator("settings")
    @classmethod
    def _json_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        for name, value in settings.items():
            try:
                _check_json(value)
            except ValueError as error:
                raise ValueError(f"{name!r}: {error}") from None
        return settings

    @field_validator("output_schema")
    @classmethod
    def _object(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema is None:
            return None
        if schema.get("type") != "object":
            raise ValueError('the output is an object: "type" must be "object"')
        json_schema.check(schema)
        _check_json(schema)
        return schema

    @field_validator("mcp")
    @classmethod
    def _own_labels(cls, servers: tuple[McpServer, ...]) -> tuple[McpServer, ...]:
        labels = [server.label for server in servers]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"labels must differ: {', '.join(twice)}")
        return servers

    @field_validator("client_tools", "subagents", "critics")
    @classmethod
    def _own_names(cls, given: tuple[Any, ...]) -> tuple[Any, ...]:
        names = [getattr(each, "name", each) for each in given]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"named twice: {', '.join(twice)}")
        return given

    @model_validator(mode="after")
    def _one_kind(self) -> AgentSpec:
        if bool(self.model) == bool(self.python):
            raise ValueError("give either model or python")
        if self.python:
            extra = self.model_fields_set & _CONFIGURED_ONLY
            if extra:
                raise ValueError(f"python agents bring their own {', '.join(sorted(extra))}")
        elif self.deps:
            raise ValueError("deps are for python agents: tools named here have none")
        both = sorted({tool.name for tool in self.client_tools} & set(self.subagents))
        if both:
            raise ValueError(f"the name of a client tool and of a sub-agent: {', '.join(both)}")
        return self

    @property
    def model_name(self) -> str:
        """The name of its model (`model_name`); empty where code brings it."""
        return model_name(self.model, self.base_url)


# What only makes sense for an agent that is built from its table.
_CONFIGURED_ONLY = frozenset(
    {"base_url", "api_key_env", "instructions", "settings", "output_schema", "tools"}
)


class ModelLimits(BaseModel):
    """One ``[models."NAME"]`` table, for the model of that name, whichever agents have it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_concurrent: int = Field(ge=1, le=100_000, description="Requests at once, over all workers.")


_BUILT_IN = (
    AgentSpec(
        name=DEMO,
        model=DEMO,
        tools=(
            "turnstream.worker.agents.demo:add",
            "turnstream.worker.agents.demo:slow",
            "turnstream.worker.agents.demo:delete_everything",
            "turnstream.worker.agents.demo:show_image",
        ),
        subagents=("demo-researcher",),
        critics=("demo-critic",),
        images=True,
    ),
    AgentSpec(name="demo-researcher", model=DEMO),
    AgentSpec(name="demo-critic", model=DEMO),
)


class Agents:
    """The agents of one deployment, by name.

    Attributes:
        limits: model → requests at once, where their number is limited.
    """

    def __init__(
        self,
        specs: dict[str, AgentSpec],
        file: AgentsFile | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self._specs = specs
        self._file = file
        self.limits: Mapping[str, int] = limits or {}

    def __iter__(self) -> Any:
        return iter(self._specs.values())

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def get(self, name: str) -> AgentSpec | None:
        """The spec of that name, if there is one."""
        return self._specs.get(name)

    def __getitem__(self, name: str) -> AgentSpec:
        return self._specs[name]

    def of_the_file(self) -> list[AgentSpec]:
        """The agents that the file names: all but those that are built in."""
        return [spec for spec in self if self._file is not None and self._file.has(spec.name)]

    def become(self, other: Agents) -> None:
        """Have the agents of another reading of the file from now on."""
        self._specs, self._file, self.limits = other._specs, other._file, other.limits

    @property
    def models(self) -> set[str]:
        """The names of the models that are configured; code brings others."""
        own = {spec.model_name for spec in self._specs.values() if spec.model}
        return own | {
            model_name(each.model, each.base_url) for spec in self._specs.values() for each in spec.fallback
        }

    def unused_limits(self, models: Collection[str]) -> list[str]:
        """A line for each model's table that is for none of these."""
        file = self._file
        if file is None:
            return []
        return [
            f"{file.place_of('models', name)}: no agent has this model"
            for name in self.limits
            if name not in models
        ]

    @property
    def folder(self) -> Path | None:
        """Where the agents file stands, and beside it the code that it names; None without a file."""
        return None if self._file is None else self._file.folder

    def explain(self, error: AgentFieldError) -> str:
        """What is wrong with an agent, with file and line when it stands in a file."""
        if self._file is None or not self._file.has(error.agent):
            return error.public_text
        steps = (int(step) if step.isdigit() else step for step in error.field.split("."))
        return f"{self._file.place(error.agent, *steps)}: {error.problem}"


class AgentsFile:
    """One ``agents.toml``, read but not yet believed."""

    def __init__(self, path: Path | None, text: str) -> None:
        self._path = path
        self._text = text
        self._lines = Lines(text)

    @property
    def folder(self) -> Path | None:
        """The file's folder."""
        return None if self._path is None else self._path.resolve().parent

    def has(self, agent: str) -> bool:
        """Whether the agent stands in the file."""
        return self._lines.find(("agents", agent)) is not None

    def place(self, *field: str | int) -> str:
        """``FILE:LINE: agents.NAME.FIELD``, the line as far as it is known."""
        name = ".".join(map(str, ("agents", *field)))
        line = self._lines.find(("agents", *field))
        return name if line is None else f"{self._path}:{line}: {name}"

    def read(self) -> tuple[list[AgentSpec], dict[str, int], list[str]]:
        """The agents that are right, the models' limits, and what is wrong, a line each.

        Raises:
            ConfigurationError: it is no TOML; names the line.
        """
        try:
            document = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(self._syntax_error(str(error))) from None
        unknown = [
            f'{self.place_of(key)}: only tables of the form [agents.NAME] and [models."NAME"] are known'
            for key in document
            if key not in ("agents", "models")
        ]
        specs, wrong = self._specs(document.get("agents", {}))
        limits, wrong_limits = self._limits(document.get("models", {}))
        return specs, limits, [*unknown, *wrong, *wrong_limits]

    def place_of(self, *field: str | int) -> str:
        """``FILE:LINE: FIELD`` of something at the file's top."""
        return f"{self._path}:{self._lines.find(field) or 1}: {'.'.join(map(str, field))}"

    def _syntax_error(self, text: str) -> str:
        """``FILE:LINE: TEXT`` of what the parser says; as it is, if it does not end with a place."""
        found = _SYNTAX_PLACE.search(text)
        if found is None:
            return f"{self._path}: {text}"
        what, line, column = text[: found.start()], found["line"], found["column"]
        if line is None:
            return f"{self._path}:{self._text.rstrip().count(chr(10)) + 1}: {what} (at the end of the file)"
        return f"{self._path}:{line}: {what} (column {column})"

    def _limits(self, tables: Any) -> tuple[dict[str, int], list[str]]:
        if not isinstance(tables, dict):
            return {}, [f'{self.place_of("models")}: must be tables of the form [models."NAME"]']
        limits: dict[str, int] = {}
        wrong: list[str] = []
        for name, table in tables.items():
            try:
                limits[name] = ModelLimits.model_validate(table).max_concurrent
            except ValidationError as error:
                wrong += [
                    f"{self.place_of('models', name, *each['loc'])}: {_in_words(each, ModelLimits)}"
                    for each in error.errors()
                ]
        return limits, wrong

    def _specs(self, tables: Any) -> tuple[list[AgentSpec], list[str]]:
        if not isinstance(tables, dict):
            return [], [f"{self.place()}: must be tables of the form [agents.NAME]"]
        specs: list[AgentSpec] = []
        wrong: list[str] = []
        for name, table in tables.items():
            if not isinstance(table, dict):
                wrong.append(f"{self.place(name)}: must be a table of the form [agents.{name}]")
                continue
            try:
                specs.append(AgentSpec.model_validate({**table, "name": name}))
            except ValidationError as error:
                wrong += [f"{self.place(name, *each['loc'])}: {_in_words(each)}" for each in error.errors()]
        return specs, wrong


def _in_words(error: ErrorDetails, table: type[BaseModel] = AgentSpec) -> str:
    """What is wrong with a field, for somebody who writes TOML."""
    field = str(error["loc"][-1]) if error["loc"] else ""
    match error["type"]:
        case "extra_forbidden":
            near = difflib.get_close_matches(field, _fields_at(error["loc"], table), 1)
            return f"there is no such field; did you mean {near[0]!r}?" if near else "there is no such field"
        case "missing":
            return "is missing"
        case "tuple_type":
            return "must be a list, in brackets"
        case "dict_type":
            return "must be a table"
        case "model_type":
            fields = ", ".join(_fields_at((*error["loc"], ""), table))
            return f"must be a table, with some of the fields {fields}"
        case "value_error":
            return str(error["ctx"]["error"])
        case "string_pattern_mismatch":
            return _PATTERNS.get(error["ctx"]["pattern"], error["msg"])
    return error["msg"]


def _fields_at(place: tuple[int | str, ...], table: type[BaseModel]) -> list[str]:
    """The fields that a table knows in which something stands."""
    tables: dict[str, type[BaseModel]] = {
        "client_tools": ClientTool,
        "mcp": McpServer,
        "memory": MemoryLimits,
        "approval": McpApprovals,
        "fallback": Fallback,
        "a2a": A2aCard,
        "skills": A2aSkill,
    }
    known = next((tables[step] for step in reversed(place[:-1]) if step in tables), table)
    return list(known.model_fields)


def load(path: Path | None) -> Agents:
    """The built-in demo agents and those of the file.

    Raises:
        ConfigurationError: all that is wrong, a line each: file, line, field, and what is wrong with it.
    """
    specs = {spec.name: spec for spec in _BUILT_IN}
    if path is None:
        return Agents(specs)
    try:
        file = AgentsFile(path, path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"{path}: the agents file cannot be read: {reason}") from None
    mine, limits, wrong = file.read()
    specs |= {spec.name: spec for spec in mine}
    if not wrong:
        wrong = [
            f"{file.place(spec.name, field)}: there is no agent {other!r}"
            for spec in mine
            for field in ("subagents", "critics")
            for other in getattr(spec, field)
            if other not in specs
        ]
    if wrong:
        raise ConfigurationError("\n".join(wrong))
    return Agents(specs, file, limits)
