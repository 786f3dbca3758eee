"""What a wire protocol is to the rest of the front end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from turnstream.api.http.error_shape import CODE_AND_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.routing import Route

    from turnstream.api.http.error_shape import ErrorShape
    from turnstream.api.http.operation import Json, Operation
    from turnstream.api.services import Services


class Routes(Protocol):
    """The endpoints of a protocol."""

    def routes(self) -> list[Route]:
        """Its routes, each for its own methods."""
        ...


@dataclass(frozen=True, slots=True)
class WireProtocol:
    """A wire protocol: one folder of `turnstream.api.protocols`.

    Attributes:
        prefix: the path that its routes have, or are below; unknown addresses there are its own, too.
        make_routes: makes its endpoints, from what all routes of a front end work with.
        operations: each of its routes as /openapi.json describes it.
        parameters: those of its operations that no other protocol has, by name.
        errors: how it writes errors.
    """

    prefix: str
    make_routes: Callable[[Services], Routes]
    operations: tuple[Operation, ...]
    parameters: Mapping[str, Json] = field(default_factory=dict)
    errors: ErrorShape = CODE_AND_MESSAGE

    def has(self, path: str) -> bool:
        """Whether requests to this path are the protocol's."""
        return path == self.prefix or path.startswith(f"{self.prefix}/")
