"""A turn for pipes: the answer on standard output as it comes, all else on standard error."""

from __future__ import annotations

import sys

from turnstream.client.speech import Voice


class Plain:
    """Shows turns without drawing."""

    def __init__(self) -> None:
        self._last = ""

    def say(self, voice: Voice, message: str, text: str) -> None:
        """The agent's own words are the output; thoughts and sub-agents are not."""
        if voice is not Voice.ANSWER:
            return
        if self._last not in ("", message):
            sys.stdout.write("\n\n")
        self._last = message
        sys.stdout.write(text)
        sys.stdout.flush()

    def close(self, message: str) -> None:
        """Nothing is left open in a pipe."""

    def line(self, mark: str, text: str) -> None:
        """Something that happened."""
        sys.stderr.write(f"{mark} {text}\n")
        sys.stderr.flush()

    def begin(self) -> None:
        """A turn begins."""
        self._last = ""

    def end(self) -> None:
        """A turn has ended."""
        if self._last:
            sys.stdout.write("\n")
            sys.stdout.flush()
