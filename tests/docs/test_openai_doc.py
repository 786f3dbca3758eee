"""What docs/openai.md shows runs as it stands."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack

PAGE = Path(__file__).parent.parent.parent / "docs" / "openai.md"


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_its_programs_run(client: Client, stack: Stack, tmp_path: Path) -> None:
    """Copied from the page one after the other, with a front end that exists."""
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    program = program.replace("http://127.0.0.1:8090", client.base_url)
    (tmp_path / ".turnstream").mkdir()
    (tmp_path / ".turnstream" / "dev_key").write_text(stack.key)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.stderr == ""
    text = "".join(f"tok{number} " for number in range(30))
    assert done.stdout == f'tok0 tok1 tok2 \n{text}The result is {{"sky": "blue"}}.\n'
