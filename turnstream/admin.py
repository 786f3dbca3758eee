"""The operators' routes as commands use them: one front end, asked with the admin key of the environment."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
from httpx_sse import EventSource, SSEError

from turnstream import dev_keys
from turnstream.shared.errors import ConfigurationError, TurnstreamError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from httpx_sse import ServerSentEvent

    from turnstream.shared.settings import Settings

# The longest silence of an answer that is not a stream; in a stream heartbeats come more often.
SILENCE_SECONDS = 30.0


# Front ends, and proxies whose front end just died, answer so for a moment.
PASSING = frozenset({408, 425, 429, 502, 503, 504})


class Refusal(TurnstreamError):  # noqa: N818 - as in shared/errors.py
    """The front end said no, or did not answer; the text says which and why.

    Attributes:
        passing: asking again may help.
        answered: the HTTP status of its answer; None: there was none that is a front end's.
    """

    def __init__(self, text: str, *, passing: bool = False, answered: int | None = None) -> None:
        super().__init__(text)
        self.passing = passing
        self.answered = answered


class Admin:
    """Asks a front end."""

    def __init__(self, url: str, settings: Settings) -> None:
        """Remember where and with which key: that of the settings, else the one that `serve` made in this folder.

        Raises:
            ConfigurationError: there is none.
        """
        key = settings.admin_key.get_secret_value() if settings.admin_key else dev_keys.kept("admin_key", url)
        if not key:
            raise ConfigurationError(
                "Set TURNSTREAM_ADMIN_KEY to a key with the scope admin (`turnstream keys create --scope admin`), or be in "
                "the folder of `turnstream dev`."
            )
        self._url = url
        self._client = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=SILENCE_SECONDS,
        )

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def ask(self, method: str, path: str, **given: Any) -> Any:
        """The JSON of an answer.

        Raises:
            Refusal: the answer is an error, or there is none.
        """
        try:
            answer = self._client.request(method, f"/admin/v1/{path}", **given)
        except httpx.HTTPError as error:
            raise Refusal(f"{self._url}: {type(error).__name__}: {error}") from None
        self._check(answer)
        return answer.json()

    @contextmanager
    def events(self, path: str, cursor: str) -> Iterator[Iterator[ServerSentEvent]]:
        """The events of a stream, from after the cursor on: whole ones, without heartbeats.

        Raises:
            Refusal: the answer is an error or no stream, or the connection broke.
        """
        headers = {"Last-Event-ID": cursor} if cursor else {}
        try:
            with self._client.stream("GET", f"/admin/v1/{path}", headers=headers) as answer:
                if answer.is_error:
                    answer.read()
                self._check(answer)
                yield (event for event in EventSource(answer).iter_sse() if event.data)
        except SSEError as error:
            raise Refusal(f"{self._url}: {error}: is a proxy in between?") from None
        except httpx.TransportError as error:
            raise Refusal(f"{self._url}: {type(error).__name__}: {error}", passing=True) from None

    def _check(self, answer: httpx.Response) -> None:
        if answer.is_success:
            return
        status: int | None = answer.status_code
        try:
            told = answer.json()["message"]
        except (ValueError, KeyError, TypeError):
            told, status = "this is not what a front end says: is a proxy in between?", None
        raise Refusal(
            f"{self._url}: {answer.status_code}: {told}",
            passing=answer.status_code in PASSING,
            answered=status,
        )
