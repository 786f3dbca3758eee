"""What docs/client.md shows runs as it stands."""

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

PAGE = Path(__file__).parent.parent.parent / "docs" / "client.md"


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_the_first_program_runs(client: Client, stack: Stack) -> None:
    """Copied from the page, with a URL and a key that exist."""
    (program, *_) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = program.replace("http://127.0.0.1:8090", client.base_url).replace("sk-…", stack.key)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == "You said: How warm is it in Bern?\nYou said: And in Oslo?"
