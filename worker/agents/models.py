"""Models: from a spec's words to what pydantic-ai talks to."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from pydantic_ai.exceptions import ModelHTTPError, SuspendedResponseExpired
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FileUrl,
    ImageUrl,
    ModelResponse,
    VideoUrl,
)
from pydantic_ai.models import CompletedStreamedResponse, Model, StreamedResponse, infer_model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import (
    OpenAIChatModel,
    OpenAIResponsesModel,
    OpenAIResponsesStreamedResponse,
)
from pydantic_ai.models.openrouter import OpenRouterModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from turnstream.shared import metrics
from turnstream.shared.agents.config import DEMO
from turnstream.shared.errors import AgentFieldError
from turnstream.worker.agents import demo
from turnstream.worker.agents.background import BackgroundStream, current_response, streamed_no_more
from turnstream.worker.agents.delta_listener import ChatStream, ResponsesStream
from turnstream.worker.agents.failures import LINK_NOT_FETCHED
from turnstream.worker.agents.openai_client import LeanProvider
from turnstream.worker.agents.run_outcome import AgentError
from turnstream.worker.agents.stream_end import cut_at_start

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from pydantic_ai.messages import UserContent
    from pydantic_ai.usage import UsageBase

    from turnstream.shared.agents.config import AgentSpec
    from turnstream.shared.session.model_calls import ModelCall
    from turnstream.worker.agents.background import BackgroundResponse
    from turnstream.worker.turn import RunningTurn

# Settings that only some providers know carry their name.
_PROVIDERS = (
    "anthropic_",
    "bedrock_",
    "cerebras_",
    "cohere_",
    "google_",
    "groq_",
    "huggingface_",
    "mistral_",
    "openai_",
    "openrouter_",
    "xai_",
)

# A background response that is not over, one that gives no answer, and the time between two looks at the former where its
# events cannot be had.
_PENDING = frozenset({"queued", "in_progress"})
_FAILED = frozenset({"failed", "cancelled"})
POLL_SECONDS = 2.0

# Links that OpenAI itself does not read.
_FETCHED = (AudioUrl, DocumentUrl)

_FORMATS = {"audio/mpeg": "mp3", "audio/wav": "wav", "audio/x-wav": "wav"}


def model_of(spec: AgentSpec) -> Model:
    """The model that a spec names.

    Raises:
        AgentFieldError: names the field that is wrong.
    """
    if spec.model == DEMO:
        return demo.model(spec.name)
    if spec.base_url is not None or spec.api_key_env is not None:
        return _compatible(spec)
    if ":" not in spec.model and spec.model != "test":
        raise AgentFieldError(
            spec.name,
            "model",
            f"{spec.model!r} does not name its provider: write 'openai:{spec.model}', or what serves it",
        )
    try:
        model = infer_model(spec.model)
    except Exception as error:
        # The library's guess is of any of its providers' models.
        why = str(error).partition(" Did you mean")[0]
        raise AgentFieldError(spec.name, "model", f"{spec.model!r} cannot be used: {why}") from None
    if type(model) is OpenAIChatModel:
        return CompatibleModel(model.model_name, provider=_lean(model.provider, spec), fetch=spec.fetch_links)
    if type(model) is OpenAIResponsesModel:
        return ResponsesModel(model.model_name, provider=_lean(model.provider, spec))
    return model


def check_background(spec: AgentSpec, model: Model) -> None:
    """See to it that a model has the background responses that its settings ask for.

    Raises:
        AgentFieldError: it has not.
    """
    if spec.settings.get("openai_background") and not isinstance(model, OpenAIResponsesModel):
        raise AgentFieldError(
            spec.name,
            "settings",
            f"'openai_background' needs the Responses API ('openai-responses:NAME'), which {spec.model!r} is not asked by",
        )


def _lean(provider: Any, spec: AgentSpec) -> Any:
    """The same provider with a client that costs less; one of its own kind, or that is to tell all it got, as it is."""
    everything = spec.settings.get("openai_include_unmapped_response_data")
    return LeanProvider(provider) if type(provider) is OpenAIProvider and not everything else provider


@with_config(ConfigDict(strict=True, extra="allow", arbitrary_types_allowed=True))
class _Settings(ModelSettings, total=False):
    """The library's settings, with the types that it gives them; those of one provider are not looked at."""

    # Endpoints take fractions, too.
    logit_bias: dict[str, float]  # type: ignore[misc]


_SETTINGS = TypeAdapter(_Settings)

# Settings that are whole numbers, however they are written.
_WHOLE = frozenset({"max_retries", "max_tokens", "seed", "top_k"})

# Models that are given every link as it is, and providers that are given links to images, to PDF files
# and to YouTube so. What no model or provider is given is downloaded by the library.
_ALL_LINKS = (FunctionModel, OpenAIResponsesModel, TestModel)
_IMAGE_LINKS = frozenset({"anthropic", "groq", "huggingface", "mistral", "xai"})
_PDF_LINKS = frozenset({"anthropic", "mistral"})
_YOUTUBE_LINKS = frozenset({"google", "google-cloud"})

# How many links one turn may have downloaded, 50 MiB each: they are all held at once.
MOST_LINKS = 8


def readable(
    content: str | Sequence[UserContent], model: Model | str, *, fetch: bool = False
) -> str | list[UserContent]:
    """What a user said, with those links as text that this model is not given.

    Those are links that the library would download for it, unless it is to ``fetch`` them.
    """
    if isinstance(content, str):
        return content
    model = _innermost(model)
    return [
        _as_text(part) if _refused(part, model) or (_downloaded(part, model) and not fetch) else part
        for part in content
    ]


def links_to_fetch(content: str | Sequence[UserContent], model: Model | str) -> int:
    """How many links of what a user said the library downloads for this model."""
    model = _innermost(model)
    return 0 if isinstance(content, str) else sum(_downloaded(part, model) for part in content)


def _innermost(model: Model | str) -> Model:
    model = infer_model(model)
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return model


def _refused(part: UserContent, model: Model) -> bool:
    """Whether the library raises for such a link instead of passing it on."""
    if isinstance(model, FallbackModel):
        return any(_refused(part, _innermost(each)) for each in model.models)
    return isinstance(part, VideoUrl) and isinstance(model, OpenAIResponsesModel)


def _downloaded(part: UserContent, model: Model) -> bool:
    if isinstance(model, FallbackModel):
        return any(_downloaded(part, _innermost(each)) for each in model.models)
    if not isinstance(part, FileUrl):
        return False
    if part.force_download:
        return True
    if isinstance(model, CompatibleModel):
        return model.fetch and isinstance(part, _FETCHED)
    return not _passed_on(part, model)


def _passed_on(part: FileUrl, model: Model) -> bool:
    match part:
        case _ if isinstance(model, _ALL_LINKS):
            return True
        case ImageUrl():
            return isinstance(model, OpenAIChatModel) or model.system in _IMAGE_LINKS
        case DocumentUrl() if part.media_type == "application/pdf" and model.system in _PDF_LINKS:
            return True
        case DocumentUrl():
            return bool(model.profile.get("openai_chat_supports_file_urls"))
        case VideoUrl():
            youtube = part.is_youtube and model.system in _YOUTUBE_LINKS
            return youtube or isinstance(model, OpenRouterModel)
    return False


def _as_text(part: UserContent) -> str:
    return f"(attached: {part.url})" if isinstance(part, FileUrl) else ""


def settings_of(spec: AgentSpec) -> ModelSettings | None:
    """The model settings of a spec.

    Raises:
        AgentFieldError: a setting is unknown, which the library would ignore, or not of its kind, which
            every provider would refuse.
    """
    for name in spec.settings:
        if name not in ModelSettings.__annotations__ and not name.startswith(_PROVIDERS):
            raise AgentFieldError(spec.name, "settings", f"{name!r} is no model setting")
    settings = {
        name: int(value) if name in _WHOLE and isinstance(value, float) and value.is_integer() else value
        for name, value in spec.settings.items()
    }
    if isinstance(stop := settings.get("stop_sequences"), str):
        settings["stop_sequences"] = [stop]
    try:
        _SETTINGS.validate_python(settings)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise AgentFieldError(spec.name, "settings", f"{wrong['loc'][0]!r}: {wrong['msg']}") from None
    return ModelSettings(**settings) if settings else None  # type: ignore[typeddict-item]


def count(turn: RunningTurn, agent: str, model: str, usage: UsageBase, call: ModelCall | None = None) -> None:
    """Count what an agent's answers from a model took, by what the provider says, for the turn, its ``call``, and in metrics.

    The library has looked the price up once for each answer; None: it knows none.
    """
    cost = None if usage.cost is None else float(usage.cost)
    label = turn.models.label(model)
    metrics.tokens.add(agent, label, "input", n=usage.input_tokens)
    metrics.tokens.add(agent, label, "output", n=usage.output_tokens)
    if cost is not None:
        metrics.cost.add(agent, label, n=cost)
    if call is not None and (usage.input_tokens or usage.output_tokens):
        call.input_tokens, call.output_tokens = usage.input_tokens, usage.output_tokens
        turn.note_calls()
    turn.spent(usage.input_tokens, usage.output_tokens, cost, **_details_of(usage))


def _details_of(usage: UsageBase) -> dict[str, int]:
    return {
        "cached_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.details.get("reasoning_tokens", 0),
    }


def sibling(spec: AgentSpec, model: Model, name: str) -> Model:
    """Another model of the same provider, behind the same address and key.

    ``name`` is never read as ``provider:name``: a request must not choose where our keys are sent, and
    names may have colons in them (``qwen3:8b``). The spec's own prefix may be repeated.
    """
    prefix = spec.model.partition(":")[0] + ":"
    name = name.removeprefix(prefix)
    if isinstance(model, CompatibleModel):
        return CompatibleModel(name, provider=model.provider, fetch=model.fetch)
    if isinstance(model, ResponsesModel):
        return ResponsesModel(name, provider=model.provider)  # type: ignore[arg-type]
    return infer_model(prefix + name, provider_factory=lambda _: model.provider)  # type: ignore[arg-type, return-value]


def _compatible(spec: AgentSpec) -> Model:
    """A model behind an endpoint of its own, or with a key of its own."""
    provider, _, name = spec.model.partition(":")
    if provider not in {"openai", "openai-chat", "openai-responses"} or not name:
        raise AgentFieldError(
            spec.name,
            "model",
            "base_url and api_key_env need a model of the form 'openai:NAME' (chat completions) or "
            f"'openai-responses:NAME', not {spec.model!r}",
        )
    api_key = "unused"
    if spec.api_key_env is not None:
        api_key = os.environ.get(spec.api_key_env, "")
        if not api_key:
            raise AgentFieldError(
                spec.name, "api_key_env", f"the environment variable {spec.api_key_env} is not set"
            )
    plain = OpenAIProvider(base_url=spec.base_url, api_key=api_key)
    if provider == "openai-responses":
        return ResponsesModel(name, provider=_lean(plain, spec))
    return CompatibleModel(name, provider=_lean(plain, spec), fetch=spec.fetch_links)


@dataclass(init=False)
class CompatibleModel(OpenAIChatModel):
    """Chat completions as OpenAI-compatible endpoints speak them.

    The library would download linked sound and files, since OpenAI itself reads no such links. Here a
    link is passed on as it is, for endpoints that do; with ``fetch`` the library downloads it, and
    refuses addresses inside our network.
    """

    def __init__(self, name: str, *, provider: Any, fetch: bool = False) -> None:
        super().__init__(name, provider=provider)
        self.fetch = fetch

    @property
    def _streamed_response_cls(self) -> type[ChatStream]:
        return ChatStream

    async def _process_streamed_response(self, response: Any, *given: Any, **more: Any) -> Any:
        with cut_at_start(self.model_name, response):
            return await super()._process_streamed_response(response, *given, **more)

    async def _map_user_prompt_content_item(self, item: UserContent, content: list[Any]) -> None:
        if self.fetch and isinstance(item, _FETCHED):
            try:
                await super()._map_user_prompt_content_item(item, content)
            except Exception as error:
                raise AgentError(*LINK_NOT_FETCHED) from error
            return
        part = _part(item)
        if part is None:
            await super()._map_user_prompt_content_item(item, content)
        else:
            content.append(part)


@dataclass(init=False)
class ResponsesModel(OpenAIResponsesModel):
    """The Responses API, with deltas that are listened to, and background responses that are read on (`background`)."""

    @asynccontextmanager
    async def request_stream(self, *given: Any, **more: Any) -> AsyncIterator[StreamedResponse]:
        """Stream an answer; one that came as a whole has events, too."""
        async with super().request_stream(*given, **more) as stream:
            if isinstance(stream, OpenAIResponsesStreamedResponse):
                yield stream
                return
            asked = stream.model_request_parameters
            yield CompletedStreamedResponse(stream.get(), model_request_parameters=asked, replay_events=True)

    async def _responses_create(self, *given: Any, **more: Any) -> Any:
        kept, settings = current_response(), more["model_settings"]
        if kept is None or not (more["stream"] and settings.get("openai_background")):
            return await super()._responses_create(*given, **more)
        if not kept.id or (stream := await self._reread(kept, more)) is None:
            headers = {**settings.get("extra_headers", {}), "Idempotency-Key": kept.key}
            begin = {**more, "model_settings": {**settings, "extra_headers": headers}}
            stream = await super()._responses_create(*given, **begin)
        if isinstance(stream, ModelResponse):
            return stream
        return BackgroundStream(stream, kept, self.model_name, partial(self._events, settings))

    async def _reread(self, kept: BackgroundResponse, more: Mapping[str, Any]) -> Any:
        """What an earlier attempt has begun: its whole answer, or a stream of it; None if there is no answer in it."""
        settings = more["model_settings"]
        try:
            while (whole := await self._responses_retrieve(kept.id, settings)).status in _PENDING:
                try:
                    return await self._events(settings, kept.id)
                except (ModelHTTPError, SuspendedResponseExpired) as error:
                    if not streamed_no_more(error):
                        raise
                await asyncio.sleep(POLL_SECONDS)
        except SuspendedResponseExpired:
            kept.failed()
            return None
        if whole.status in _FAILED:
            kept.failed()
            return None
        return self._process_response(whole, settings, more["model_request_parameters"])

    async def _events(self, settings: Any, response: str, after: int | None = None) -> Any:
        return await self._responses_retrieve(response, settings, stream=True, starting_after=after)

    async def cancel_response(self, response: str) -> None:
        """Have the provider cancel a background response; one that has ended stays as it is."""
        await self.client.responses.cancel(response)

    async def cancel_suspended_response(self, response: ModelResponse) -> None:
        """Not when the library asks for it: a cut, a drain and a lost lease are no reason to, and a turn's end is seen to."""
        if current_response() is None:
            await super().cancel_suspended_response(response)

    async def _process_streamed_response(self, response: Any, *given: Any, **more: Any) -> ResponsesStream:
        with cut_at_start(self.model_name, response):
            made: Any = await super()._process_streamed_response(response, *given, **more)
        # The library offers no choice of the class here, as it does for chat completions; the fields are the same.
        made.__class__ = ResponsesStream
        stream: ResponsesStream = made
        return stream


def _part(item: UserContent) -> dict[str, Any] | None:
    """A sound, file or film in the provider's form; None for what the library passes on by itself."""
    match item:
        case AudioUrl():
            return _audio(item.url, item.media_type)
        case DocumentUrl():
            return _file(item.url, _name_of(item.url))
        case VideoUrl():
            return {"type": "video_url", "video_url": {"url": item.url}}
        case BinaryContent() if item.is_audio:
            return _audio(item.base64, item.media_type)
        case BinaryContent() if item.is_video:
            return {"type": "video_url", "video_url": {"url": item.data_uri}}
        case BinaryContent() if item.is_document or item.media_type == "application/octet-stream":
            named = (item.vendor_metadata or {}).get("filename")
            return _file(item.data_uri, named or "file")
    return None


def _audio(data: str, media_type: str) -> dict[str, Any]:
    encoding = _FORMATS.get(media_type) or media_type.rpartition("/")[2]
    return {"type": "input_audio", "input_audio": {"data": data, "format": encoding}}


def _file(data: str, name: str) -> dict[str, Any]:
    return {"type": "file", "file": {"file_data": data, "filename": name}}


def _name_of(url: str) -> str:
    return PurePosixPath(unquote(urlsplit(url).path)).name or "file"
