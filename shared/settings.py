"""The settings: one frozen model, read once from ``TURNSTREAM_*`` variables, checked before anything starts."""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from turnstream.shared.broker.urls import CLUSTER, BrokerUrl
from turnstream.shared.errors import ConfigurationError
from turnstream.shared.webhooks import networks_of

MEMORY_URL = "memory://"

PREFIX = "TURNSTREAM_"

# Names a folder, as /run/secrets, whose files are settings too: turnstream_redis_password and the like.
SECRETS_DIR = PREFIX + "SECRETS_DIR"


# As browsers send it: no path, no capital letters. Pages of apps have schemes of their own.
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[a-z0-9.\[\]:_-]+")


class Settings(BaseSettings):
    """What an operator may set. Times are seconds and sizes bytes unless a name says otherwise."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    redis_url: SecretStr = Field(
        SecretStr(MEMORY_URL),
        description="The broker: redis://, rediss:// or unix://; redis+sentinel:// or rediss+sentinel://, with the Sentinels' addresses "
        "and the name of their primary; memory:// is the embedded one of `serve`.",
    )
    session_redis_url: SecretStr | None = Field(
        None,
        description="A second broker that holds the sessions; launches, keys and hints stay on the first. redis+cluster:// or "
        "rediss+cluster://, with the addresses of some nodes, is a Redis Cluster.",
    )
    redis_password: SecretStr | None = Field(
        None,
        description="The password at both brokers, when their URLs name only the user: redis://api@host.",
    )
    sentinel_password: SecretStr | None = Field(
        None, description="The Sentinels' own password, if they have one."
    )
    redis_ca: Path | None = Field(
        None,
        description="File of the certificate authorities trusted for rediss:// brokers and their Sentinels, beside the system's.",
    )
    host: str = Field("127.0.0.1", description="Address the front end listens on.")
    port: int = Field(8090, ge=0, le=65535, description="Port the front end listens on; 0 takes a free one.")
    dev_key: SecretStr | None = Field(None, description="A chat key registered at start, for owner `dev`.")
    dev_agent: str = Field("demo", description="The agent that the dev key speaks to.")
    admin_key: SecretStr | None = Field(
        None, description="An admin key registered at start; 32 characters or more."
    )
    agents: Path | None = Field(
        None, description="Path of agents.toml; without it only the demo agent exists."
    )

    protocols: str | None = Field(
        None,
        description="Protocols that the front end serves, their names with commas between them: `liteagent`, `agent_api`, "
        "`openai`, `ai_sdk`, `a2a`, `ag_ui`, `copilotkit`; `default`, as without this, are all of them but `a2a` and "
        "`copilotkit`.",
    )
    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s?#]+$",
        description="Where clients reach the front ends, for what tells it (A2A's agent cards): https://agents.example. Without it, the "
        "address at which the request arrived.",
    )
    webhook_networks: str | None = Field(
        None,
        description="Networks that webhooks of clients may lead to, and without TLS, beside public addresses: 10.1.0.0/16, with "
        "commas between them. For front ends and workers.",
    )
    cors_origins: str | None = Field(
        None,
        description="Origins whose pages browsers let use the protocols for browsers (`openai`, `ai_sdk`, `ag_ui`, `copilotkit`), with "
        "commas between them: "
        "https://chat.example; `*` is any. Without it, only pages of the front end's own origin.",
    )
    processes: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = Field(
        1,
        description="Processes of `api`, `worker` and `serve`, under one supervisor from 2 on; `auto`: one for each core that "
        "may be used. All that is said of one front end or worker is of each process.",
    )
    max_jobs: int = Field(100, ge=1, le=10_000, description="Turns one worker runs at once.")
    worker_max_bytes: int = Field(
        64 * 2**20,
        ge=2**20,
        le=2**40,
        description="Bytes that the turns of one worker are given together (requests, memory, results); others wait, and one "
        "that is larger runs alone. A process needs about eight times as much.",
    )
    owner_share: float = Field(
        0.8,
        gt=0,
        le=1,
        description="Share of a worker's slots that are free or its own that one owner may hold; the rest is for others. "
        "1 lets each owner take all.",
    )
    retiring: bool = Field(
        False,
        description="The worker takes nothing from the queue, only turns of its agents' versions that other workers offer it: "
        "for the old workers of an upgrade of agents.",
    )
    drain_seconds: float = Field(30, ge=0, le=3600, description="Time that running turns get at a shutdown.")
    flush_seconds: float = Field(
        0.04,
        ge=0,
        le=1,
        description="How long a busy worker lets text wait for more of it, before it reads more of a model's stream and before it appends; an idle one sends each piece at once. 0: never waits.",
    )
    lease_seconds: float = Field(
        10,
        ge=1,
        le=300,
        description="How long a silent worker keeps its tasks; one that is frozen or cut off is noticed after it, a killed one before.",
    )
    session_ttl: float = Field(
        86_400, ge=10, le=31_536_000, description="How long a session is kept after the last sign of life."
    )
    log_max_events: int = Field(20_000, ge=100, le=10_000_000, description="Entries kept per session's log.")
    log_max_bytes: int = Field(
        16 * 2**20,
        ge=65_536,
        le=2**31,
        description="Bytes of events kept per session's log, and as many of its history; a tenth more before they are cut.",
    )
    memory_max_bytes: int = Field(
        16 * 2**20,
        ge=4096,
        le=2**31,
        description="Bytes of earlier turns that a session remembers for its agent; the oldest are forgotten first.",
    )
    log_grace_seconds: float = Field(
        3600,
        ge=0,
        le=604_800,
        description="How long an ended turn's events stay in the log; after that its messages stand in the history.",
    )
    turn_max_bytes: int = Field(
        8 * 2**20,
        ge=65_536,
        le=2**31,
        description="Bytes of events that one turn may make; more ends it as failed.",
    )
    max_waiting: int = Field(50, ge=0, le=100_000, description="Turns that may wait in one serial session.")
    max_live: int = Field(
        1000,
        ge=1,
        le=100_000,
        description="Turns of one session that run, wait or are parked at once; more are refused.",
    )
    max_queued: int = Field(
        50_000,
        ge=0,
        le=10_000_000,
        description="Launches of all owners that may wait for a worker before new turns are refused; 0 is any number.",
    )
    # Of 1 GiB, the shipped limit of a front end: see "Sizing" in docs/operations.md.
    max_followers: int = Field(
        15_000, ge=1, le=1_000_000, description="Streams that one front end holds at once."
    )
    max_followers_per_owner: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Streams of one owner that one front end holds at once; keys can have a lower limit of their own.",
    )
    max_body: int = Field(2**20, ge=1024, le=2**30, description="Largest request body.")
    max_image_body: int = Field(
        10 * 2**20, ge=1024, le=2**30, description="Largest request body for agents that take images."
    )
    stream_seconds: float = Field(
        3600,
        ge=1,
        le=86_400,
        description="How long a stream that follows a whole session is held before it is ended.",
    )
    heartbeat_seconds: float = Field(
        10,
        ge=0.05,
        le=60,
        description="Silence after which a follower gets a heartbeat; proxies cut quieter streams.",
    )
    send_seconds: float = Field(
        20,
        ge=0.1,
        le=300,
        description="How long one write to a client may take before the connection is ended.",
    )
    debug: bool | None = Field(
        None,
        description="Whether logs and operators are shown tracebacks of what agents raise, with the errors' texts, which may "
        "hold secrets and users' words. Unset: only by `serve` with the embedded broker on a loopback address.",
    )
    otel: bool = Field(
        False,
        description="Whether traces are exported with OpenTelemetry, to where OTEL_EXPORTER_OTLP_ENDPOINT and its like "
        "say; needs the extra `otel`.",
    )
    metrics_open: bool = Field(
        True,
        description="Whether the front end's /metrics answers without an admin key. It names no session or key, and "
        "owners only with TURNSTREAM_METRICS_OWNERS.",
    )
    metrics_owners: int = Field(
        0,
        ge=0,
        le=200,
        description="How many owners metrics name: those with most turns, for each process; all others are `other`.",
    )
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port on which a worker answers /metrics, /healthz and /readyz, at the address of "
        "TURNSTREAM_HOST; 0 takes a free one, none is opened without it.",
    )
    wait_replicas: int = Field(
        0, ge=0, le=10, description="Replicas that must have a submit or callback before it is acknowledged."
    )
    wait_replicas_ms: int = Field(
        1000,
        ge=10,
        le=60_000,
        description="How long to wait for those replicas; the answer's `Turnstream-Replicas` then says how many have it.",
    )

    @field_validator("redis_url", "session_redis_url")
    @classmethod
    def _known_scheme(cls, url: SecretStr | None) -> SecretStr | None:
        if url is None:
            return None
        # Before anything is started with it.
        BrokerUrl.parse(url.get_secret_value())
        return url

    @field_validator("redis_url")
    @classmethod
    def _one_server(cls, url: SecretStr) -> SecretStr:
        if BrokerUrl.parse(url.get_secret_value()).kind == CLUSTER:
            raise ValueError("cannot be a cluster, only TURNSTREAM_SESSION_REDIS_URL can")
        return url

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, text: str | None) -> str | None:
        for origin in (text or "").split(","):
            if origin.strip() and not _ORIGIN.fullmatch(origin.strip()):
                raise ValueError(f"{origin.strip()!r} is no origin: https://host, http://host:port, or *")
        return text

    @field_validator("webhook_networks")
    @classmethod
    def _networks(cls, text: str | None) -> str | None:
        networks_of(text or "")
        return text

    @field_validator("redis_ca")
    @classmethod
    def _readable(cls, path: Path | None) -> Path | None:
        if path is not None:
            try:
                ssl.create_default_context(cafile=path)
            except OSError as error:
                raise ValueError(f"must be a PEM file of certificates: {error.strerror or error}") from None
        return path

    @property
    def embedded(self) -> bool:
        """Whether the broker is the one inside this process."""
        return self.redis_url.get_secret_value().startswith(MEMORY_URL)

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds, as the scripts take it."""
        return int(self.lease_seconds * 1000)

    @property
    def ttl_ms(self) -> int:
        """The session's time to live in milliseconds."""
        return int(self.session_ttl * 1000)


def load(**given: Any) -> Settings:
    """Read the settings; ``given`` (from the command line) wins over the environment, that over secret files.

    Raises:
        ConfigurationError: names each wrong variable, its value (unless secret) and what is allowed.
    """
    folder = os.environ.get(SECRETS_DIR)
    if folder is not None and not Path(folder).is_dir():
        raise ConfigurationError(f"{SECRETS_DIR} = {folder!r}: there is no such folder")
    try:
        return Settings(
            _secrets_dir=folder,
            **{name: value for name, value in given.items() if value is not None},
        )
    except ValidationError as error:
        raise ConfigurationError("\n".join(_explain(each, given) for each in error.errors())) from None


def _explain(error: Any, given: dict[str, Any]) -> str:
    field = str(error["loc"][0]) if error["loc"] else "?"
    secret = field.endswith(("url", "key", "password"))
    shown = "(value hidden)" if secret else repr(error["input"])
    named = f"{option(field)}, " if given.get(field) is not None else ""
    return f"{named}{PREFIX}{field.upper()} = {shown}: {error['msg']}"


def option(field: str) -> str:
    """A setting's option on the command line, where it has one."""
    return f"--{field.replace('_', '-')}"
