"""What a client is told when an agent fails: a stable code, and a text that holds no secret.

    model_timeout            the provider did not answer in time
    model_rate_limited       it wants fewer requests
    model_quota_exceeded     the account has nothing left
    model_unavailable        it is down, overloaded, or out of reach
    model_held, model_busy   an operator holds it, or it has as many requests as it may have: what a turn waits for
    agent_held               an operator holds the agent: the same
    model_authentication     it does not take our key
    model_not_found          it does not know the model
    model_rejected           it does not take the request as it is
    model_misbehaved         the model keeps answering what cannot be used
    context_too_long         the conversation is longer than the model takes
    output_too_long          the answer ran into the limit of tokens
    content_filtered         the provider's filter stopped the answer
    too_many_model_calls     the agent went round and round
    link_not_fetched         a link in the input could not be downloaded
    too_many_links           the input has more links than one turn may have downloaded
    agent_error              the agent's own code raised something else

Providers' texts, addresses and bodies are never passed on: they may quote keys, and users' words.
Their SDK has retried by then, as far as it does. A failure that passes (`is_transient`) ends the turn only when it
lasts: until then the runner releases the attempt, and the turn waits without a worker (`seconds_to_wait`).
"""

from __future__ import annotations

import random
import traceback
from typing import Any

from pydantic_ai import exceptions as library
from pydantic_ai.models import download_item

from turnstream.shared.agents import places
from turnstream.worker.agents.run_outcome import AgentError, AgentMistake, NotNow

# The first class that fits gives code and text, so a special one stands before its base.
_FAILURES: tuple[tuple[type[Exception], str, str], ...] = (
    (library.ModelRequestTimeout, "model_timeout", "The model took too long to answer."),
    (library.ModelTimeoutError, "model_timeout", "The model took too long to answer."),
    (
        library.ModelRateLimitError,
        "model_rate_limited",
        "The model's provider takes no more requests at the moment.",
    ),
    (
        library.ModelQuotaExceededError,
        "model_quota_exceeded",
        "The quota at the model's provider is used up.",
    ),
    (
        library.ModelContextWindowExceededError,
        "context_too_long",
        "The conversation is longer than the model takes.",
    ),
    (
        library.ModelAuthenticationError,
        "model_authentication",
        "The model's provider does not accept our credentials.",
    ),
    (library.ModelNotFoundError, "model_not_found", "The model's provider does not know this model."),
    (library.ModelRequestRejectedError, "model_rejected", "The model's provider rejected the request."),
    (library.ContentFilterError, "content_filtered", "The model's provider filtered the answer out."),
    (library.OutputTokenLimitExceeded, "output_too_long", "The answer ran into the limit of its tokens."),
    (
        library.UsageLimitExceeded,
        "too_many_model_calls",
        "The agent called its model too often without an answer.",
    ),
    (
        library.UnexpectedModelBehavior,
        "model_misbehaved",
        "The model kept answering what the agent cannot use.",
    ),
)

# Statuses that pass, though they are said to be the request's fault.
_PASSING = frozenset({408, 409, 425, 429})

# The first retry comes within this time, then within twice that, up to this. Providers that come back must not find all
# that waited for them at once, so each wait is random.
FIRST_RETRY_SECONDS = 0.5
MOST_RETRY_SECONDS = 60.0

# The longest wait that a provider may ask for.
MOST_ASKED_SECONDS = 3600.0

# Characters of a traceback that is kept with its turn; the error itself stands at the end.
_MOST_TRACEBACK = 16_384

LINK_NOT_FETCHED = ("link_not_fetched", "A link in the input could not be fetched.")
_UNAVAILABLE = ("model_unavailable", "The model is not available at the moment.")
_REJECTED = ("model_rejected", "The model's provider rejected the request.")
_TIMEOUT = ("model_timeout", "The model took too long to answer.")

# Of a model, or an agent, that was not asked.
_NOT_NOW = {
    "agent_held": "The agent is held by an operator.",
    "model_held": "The model is held by an operator.",
    "model_busy": "The model has as many requests as it may have at once.",
}


def explain(error: BaseException) -> tuple[str, str]:
    """The code and public text of what an agent raised."""
    error = _decisive(error)
    if isinstance(error, AgentError):
        return error.code, error.text
    if isinstance(error, NotNow):
        return error.code, _NOT_NOW.get(error.code, _UNAVAILABLE[1])
    if isinstance(error, AgentMistake):
        return "agent_error", f"The agent failed: {error}"
    if any(map(_is_of_a_download, (error, error.__cause__))):
        return LINK_NOT_FETCHED
    if isinstance(error, library.ModelHTTPError) and error.status_code in (409, 425):
        return _UNAVAILABLE
    for kind, code, text in _FAILURES:
        if isinstance(error, kind):
            return code, text
    if isinstance(error, library.ModelHTTPError):
        if error.status_code == 408:
            return _TIMEOUT
        return _REJECTED if 400 <= error.status_code < 500 else _UNAVAILABLE
    if isinstance(error, library.ModelAPIError):
        return _UNAVAILABLE
    return "agent_error", f"The agent failed ({type(error).__name__})."


def is_transient(error: BaseException) -> bool:
    """Whether the same request may be answered later: the model's provider is away, or has too much to do.

    What is raised for a connection, a stream or a response of a provider, by pydantic-ai; never what a tool raises.
    """
    error = _decisive(error)
    if isinstance(error, NotNow):
        return True
    if not isinstance(error, library.ModelAPIError) or isinstance(error, library.ModelQuotaExceededError):
        return False
    if isinstance(error, library.ModelUnavailableError):
        return True
    if isinstance(error, library.ModelHTTPError):
        return error.status_code in _PASSING or error.status_code >= 500
    return not isinstance(error, library.ModelRequestRejectedError)


def retry_seconds(error: BaseException, retry_for: float) -> float | None:
    """For how long a turn is retried after an error, where the agent's ``retry_for`` is that; None: not at all.

    0: for any time. The model did not fail, but was not to be asked.
    """
    error = _decisive(error)
    if isinstance(error, NotNow) and not error.failed:
        return 0
    return retry_for if retry_for and is_transient(error) else None


def seconds_to_wait(error: BaseException, retries: int) -> float:
    """How long to wait before the next of so many retries: no less than the provider asks for."""
    error = _decisive(error)
    if isinstance(error, NotNow):
        return error.seconds
    most = min(MOST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(retries, 10))
    return asked_seconds(error) + random.uniform(0, most)  # noqa: S311 - it is no secret


def asked_seconds(error: BaseException) -> float:
    """How long the provider wants to be left alone (``Retry-After``), an hour at most."""
    return float(min(getattr(error, "retry_after", None) or 0.0, MOST_ASKED_SECONDS))


def _decisive(error: BaseException) -> BaseException:
    """Of several errors (parallel tools, models that were tried in turn) one that passes, or the last one."""
    while isinstance(error, BaseExceptionGroup):
        error = next(filter(is_transient, error.exceptions), error.exceptions[-1])
    return error


def _is_of_a_download(error: BaseException | None) -> bool:
    """Whether it was raised while the library downloaded a link: it has no class of its own for that."""
    if error is None:
        return False
    code = download_item.__code__
    return any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))


def for_operators(error: BaseException) -> dict[str, Any]:
    """What a log line says beside the code: where it was raised, and the provider's status and code.

    No text but our own, no values: they may hold secrets, and users' words.
    """
    known = {
        "error": type(error).__name__,
        "text": str(error) if isinstance(error, AgentMistake) else None,
        "at": _places(error),
        "status": getattr(error, "status_code", None),
        "provider_code": getattr(error, "provider_error_code", None),
    }
    return {name: value for name, value in known.items() if value is not None}


def place_in_their_code(error: BaseException) -> str:
    """``FILE:LINE`` of the innermost place in the code of agents' authors; empty when none of it was running."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith((*places.NOT_THEIRS, "<"))]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""


def full_traceback(error: BaseException) -> str:
    """The traceback as Python prints it, its end where it is long: with the errors' texts, so only for debugging."""
    text = "".join(traceback.format_exception(error))
    return text if len(text) <= _MOST_TRACEBACK else "…" + text[-_MOST_TRACEBACK:]


def _places(error: BaseException) -> list[str]:
    """The innermost places of the traceback, and those in the code that agents' authors wrote, as they were called."""
    frames = traceback.extract_tb(error.__traceback__)
    return places.chosen((frame.filename, frame.lineno, frame.name) for frame in frames)
