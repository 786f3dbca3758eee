"""Tests of one's own agents: they are served in this process, on a model that follows a script.

For pytest, ``pytest_plugins = ["turnstream.testing.plugin"]`` in ``conftest.py`` gives the fixture ``served``:

    from turnstream.testing import calls

    def test_the_price(served):
        served.script(calls("discount", a=80, b=25), "That makes 60.")
        turn = served.turn("80, and a quarter off?")
        assert turn.called("discount").result == "60.0"
        assert turn.text == "That makes 60."

Everywhere else, ``with serve("agents.toml") as served:`` does the same.
"""

from turnstream.shared import without_rich  # noqa: F401 - before structlog, whose tracebacks would take half a minute
from turnstream.testing.deployment import Served, serve
from turnstream.testing.record import RecordedCall
from turnstream.testing.script import Calls, Crash, Reply, Seen, calls, crash
from turnstream.testing.turn import Turn

__all__ = [
    "Calls",
    "Crash",
    "RecordedCall",
    "Reply",
    "Seen",
    "Served",
    "Turn",
    "calls",
    "crash",
    "serve",
]
