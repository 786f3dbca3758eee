"""A turn on a terminal: what is settled is printed and scrolls away, what still grows is drawn live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.padding import Padding
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from turnstream.client.speech import Voice

if TYPE_CHECKING:
    from types import TracebackType

REDRAWS_PER_SECOND = 12

# Lines of the terminal that a live drawing leaves free, so that it never scrolls what it has to redraw.
FREE_LINES = 3

_STYLES = {Voice.THOUGHT: "dim italic", Voice.SUBAGENT: "dim"}


class Screen:
    """Shows turns on a terminal.

    Duties:
        1. draw the growing end of what is said, a few times a second, as Markdown;
        2. print whole paragraphs once they are settled, so that long answers scroll as text does;
        3. give the terminal away while a question is asked, and take it back.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._live: Live | None = None
        self._voice = Voice.ANSWER
        self._message = ""
        self._open = ""
        self._waiting = ""

    def begin(self) -> None:
        """A turn begins."""
        self._waiting = "…"
        self._take_terminal()

    def end(self) -> None:
        """A turn has ended."""
        self._settle_all()
        self._waiting = ""
        self.give_terminal()
        self._print(Text(""))

    def say(self, voice: Voice, message: str, text: str) -> None:
        """More of a message's text."""
        if message != self._message:
            self._settle_all()
            self._message, self._voice = message, voice
        settled, self._open = settle(self._open + text)
        if settled.strip():
            self._print(Group(self._spoken(settled), Text("")))
        self._draw()

    def close(self, message: str) -> None:
        """The message is complete."""
        if message == self._message:
            self._settle_all()
            self._draw()

    def line(self, mark: str, text: str) -> None:
        """Something that happened, in a line."""
        self._settle_all()
        self._print(Text.assemble((f"  {mark} ", "cyan"), (text, "dim")))

    def note(self, text: str, style: str) -> None:
        """Something about the connection or the turn itself."""
        self._settle_all()
        self._print(Text(f"  {text}", style=style))

    def give_terminal(self) -> None:
        """Stop drawing, for a question to be asked."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def take_terminal(self) -> None:
        """Draw again, after a question."""
        self._take_terminal()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_terminal()

    # ── within ──

    def _take_terminal(self) -> None:
        if self._live is None:
            self._live = Live(
                self._growing(),
                console=self.console,
                refresh_per_second=REDRAWS_PER_SECOND,
                transient=True,
                # Prints of other code would be drawn over.
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def _settle_all(self) -> None:
        text, self._open, self._message = self._open, "", ""
        if text.strip():
            self._draw()
            self._print(self._spoken(text))

    def _print(self, what: RenderableType) -> None:
        self.console.print(what)

    def _draw(self) -> None:
        if self._live is not None:
            self._live.update(self._growing())

    def _growing(self) -> RenderableType:
        if not self._open.strip():
            return Spinner("dots", style="cyan") if self._waiting else Text("")
        return Group(_Tail(self._spoken(self._open)), Spinner("dots", style="cyan"))

    def _spoken(self, text: str) -> RenderableType:
        if self._voice is Voice.ANSWER:
            return Markdown(text, hyperlinks=False, code_theme="ansi_dark")
        indent = 2 if self._voice is Voice.THOUGHT else 4
        return Padding(Text(text.strip(), style=_STYLES[self._voice]), (0, 0, 0, indent))


class _Tail:
    """The last lines of something, as many as fit: what is above has to be redrawn and must not scroll."""

    def __init__(self, whole: RenderableType) -> None:
        self._whole = whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._whole, options, pad=False)
        for line in lines[-max(1, console.height - FREE_LINES) :]:
            yield from line
            yield Segment.line()


def settle(text: str) -> tuple[str, str]:
    """The paragraphs of a growing text that nothing can change any more, and the rest.

    Only an empty line outside of a fenced block settles what is before it.
    """
    fence, at, settled = "", 0, 0
    for line in text.splitlines(keepends=True):
        mark = line.lstrip(" ")[:3]
        if mark in ("```", "~~~") and (not fence or mark == fence):
            fence = "" if fence else mark
        at += len(line)
        if not fence and line == "\n":
            settled = at
    return text[:settled], text[settled:]
