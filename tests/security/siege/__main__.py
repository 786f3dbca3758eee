"""A siege for as long as one likes: ``python -m tests.security.siege --minutes 10``."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from tests.security.siege.attacks import ATTACKS
from tests.security.siege.siege import Siege


async def _run(siege: Siege, minutes: float, attacks: list[str]) -> None:
    async with siege:
        async for phase in siege.all(minutes * 60 / len(attacks), attacks):
            print(phase, flush=True)
        print("", siege.report(), sep="\n")


def main() -> int:
    """Attack in turn; 1 when a turn of the neighbour failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--minutes", type=float, default=10, help="of attacks; the time between them comes on top"
    )
    parser.add_argument("--only", nargs="*", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--log", type=Path, help="where to keep what the parts logged")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="siege-") as folder:
        siege = Siege(Path(folder), name=f"siege-{os.getpid()}")
        try:
            asyncio.run(_run(siege, given.minutes, given.only))
        finally:
            if given.log:
                given.log.write_text("\n".join(siege.heard))
    return 1 if any(phase.failures for phase in siege.phases) else 0


if __name__ == "__main__":
    sys.exit(main())
