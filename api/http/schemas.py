"""Answers that routes of several packages give: these models build the responses, and describe them in the OpenAPI document."""

from __future__ import annotations

from pydantic import Field

from turnstream.api.http.answers import Described


class Version(Described):
    """The server's version."""

    version: str = Field(pattern=r"^\d+\.\d+\.\d+$")
