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
        errors_of: how it writes those of a path, where its addresses have several shapes.
        opt_in: it is served only where the operator names it.
        in_browsers: pages of the origins that the operator names may use it.
        beside: paths of its routes that its specification wants elsewhere.
    """

    prefix: str
    make_routes: Callable[[Services], Routes]
    operations: tuple[Operation, ...]
    parameters: Mapping[str, Json] = field(default_factory=dict)
    errors: ErrorShape = CODE_AND_MESSAGE
    errors_of: Callable[[str], ErrorShape] | None = None
    opt_in: bool = False
    in_browsers: bool = False
    beside: tuple[str, ...] = ()

    def shape(self, path: str) -> ErrorShape:
        """How it writes errors of requests to this path."""
        return self.errors_of(path) if self.errors_of else self.errors

    def has(self, path: str) -> bool:
        """Whether requests to this path are the protocol's."""
        return path == self.prefix or path.startswith(f"{self.prefix}/") or path in self.beside
