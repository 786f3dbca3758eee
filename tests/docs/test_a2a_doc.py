"""What docs/a2a.md shows runs as it stands."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.stack import Stack
from turnstream.shared.agents import config

if TYPE_CHECKING:
    from tests.conftest import Place

PAGE = (Path(__file__).parent.parent.parent / "docs" / "a2a.md").read_text()


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_its_program_runs(place: Place, tmp_path: Path) -> None:
    """With the agents of the page, copied from it."""
    (table,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "agents.toml").write_text(table)
    agents = config.load(tmp_path / "agents.toml")
    stack = Stack(place, agents, protocols="default,a2a", dev_agent="helper")
    try:
        await stack.worker()
        client = await stack.front_end()
        (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        (tmp_path / ".turnstream").mkdir()
        (tmp_path / ".turnstream" / "dev_key").write_text(stack.key)
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", program.replace("http://127.0.0.1:8090", client.base_url)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
        )
        assert done.stderr == ""
        assert done.stdout == "tok0 tok1 tok2 "
    finally:
        await stack.close()
