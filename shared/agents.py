"""What an agent is, as configured: ``agents.toml`` read into specs.

Both sides read it: the front end for busy mode, limits and overrides, the worker to build the agent.
Nothing here imports an agent library.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shared.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

DEMO = "demo"

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]

# "module:attribute", as Python's own entry points spell it.
Reference = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]


class ClientTool(BaseModel):
    """A function that the client runs: the model calls it, the turn parks, ``/callback`` answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    description: str = ""
    parameters: dict[str, Any] = Field(
        default_factory=lambda: {"type": "object", "properties": {}},
        description="JSON Schema of its arguments.",
    )


class AgentSpec(BaseModel):
    """One ``[agents.NAME]`` table. Times are seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    model: str = Field("", description="`openai:…`, any pydantic-ai model string, or `demo`.")
    python: Reference | None = Field(
        None, description="A coded agent: an async generator function, or a pydantic-ai Agent."
    )
    base_url: str | None = Field(None, description="An OpenAI-compatible endpoint.")
    api_key_env: str | None = Field(
        None, description="The environment variable that holds the provider's key."
    )
    instructions: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict, description="pydantic-ai model settings.")
    tools: tuple[Reference, ...] = ()
    client_tools: tuple[ClientTool, ...] = ()
    subagents: tuple[Name, ...] = ()
    critics: tuple[Name, ...] = ()
    pass_score: int = Field(8, ge=0, le=10, description="A draft passes at this score of each critic.")
    max_count: int = Field(10, ge=1, le=100, description="Rounds of reflection at most.")
    busy: Literal["serial", "parallel", "reject", "interrupt"] = "serial"
    parked: Literal["block", "supersede"] = "block"
    deadline: float = Field(3600, gt=0, le=7 * 86_400, description="For the whole turn, parking included.")
    tool_deadline: float = Field(600, gt=0, le=86_400, description="For one server tool.")
    callback_deadline: float = Field(3600, gt=0, le=7 * 86_400, description="For the client's answers.")
    simple: bool = Field(
        False, description="One-shot: LiteAgent's chat needs no session, and there is nothing to clear."
    )
    images: bool = Field(False, description="Whether larger bodies, with images in them, are accepted.")

    @model_validator(mode="after")
    def _one_kind(self) -> AgentSpec:
        if bool(self.model) == bool(self.python):
            raise ValueError("give either model or python")
        if self.python:
            extra = self.model_fields_set & _CONFIGURED_ONLY
            if extra:
                raise ValueError(f"python agents bring their own {', '.join(sorted(extra))}")
        return self


# What only makes sense for an agent that is built from its table.
_CONFIGURED_ONLY = frozenset(
    {"base_url", "api_key_env", "instructions", "settings", "tools", "client_tools", "subagents", "critics"}
)


_BUILT_IN = (
    AgentSpec(
        name=DEMO,
        model=DEMO,
        tools=(
            "worker.agents.demo:add",
            "worker.agents.demo:slow",
            "worker.agents.demo:delete_everything",
            "worker.agents.demo:show_image",
        ),
        subagents=("demo-researcher",),
        critics=("demo-critic",),
        images=True,
    ),
    AgentSpec(name="demo-researcher", model=DEMO),
    AgentSpec(name="demo-critic", model=DEMO),
)


class Agents:
    """The agents of one deployment, by name."""

    def __init__(self, specs: dict[str, AgentSpec]) -> None:
        self._specs = specs

    def __iter__(self) -> Any:
        return iter(self._specs.values())

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def get(self, name: str) -> AgentSpec | None:
        """The spec of that name, if there is one."""
        return self._specs.get(name)

    def __getitem__(self, name: str) -> AgentSpec:
        return self._specs[name]


def load(path: Path | None) -> Agents:
    """The built-in demo agents and those of the file.

    Raises:
        ConfigurationError: names the file, the agent, the field and what is wrong.
    """
    specs = {spec.name: spec for spec in _BUILT_IN}
    if path is not None:
        for spec in _read(path):
            specs[spec.name] = spec
    for spec in specs.values():
        for other in (*spec.subagents, *spec.critics):
            if other not in specs:
                raise ConfigurationError(
                    f"{path}: agent {spec.name!r} names the agent {other!r}, which is not there"
                )
    return Agents(specs)


def _read(path: Path) -> list[AgentSpec]:
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"TURNSTREAM_AGENTS = {str(path)!r}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    tables = document.get("agents", {})
    if not isinstance(tables, dict):
        raise ConfigurationError(f"{path}: agents must be tables of the form [agents.NAME]")
    specs = []
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigurationError(f"{path}: agents.{name} must be a table of the form [agents.{name}]")
        try:
            specs.append(AgentSpec.model_validate({"name": name, **table}))
        except ValidationError as error:
            lines = [
                f"{path}: agents.{name}.{'.'.join(map(str, each['loc']))}: {each['msg']}"
                for each in error.errors()
            ]
            raise ConfigurationError("\n".join(lines)) from None
    return specs
