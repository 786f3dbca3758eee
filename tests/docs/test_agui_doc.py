"""What docs/ag-ui.md shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import javascript

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack

PAGE = Path(__file__).parent.parent.parent / "docs" / "ag-ui.md"


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_the_first_program_runs(client: Client, stack: Stack) -> None:
    """Copied from the page, with a URL and a key that exist."""
    javascript.install(javascript.AG_UI)
    (program, *_) = re.findall(r"```js\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = program.replace("http://127.0.0.1:8090", client.base_url).replace("sk-…", stack.key)
    printed = await javascript.node(
        "--input-type=module", "--eval", program, package=javascript.AG_UI, seconds=60
    )
    assert printed == "tok0 tok1 tok2 \n[ '/tokens 3', 'tok0 tok1 tok2 ' ]\n"
