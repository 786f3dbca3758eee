# ruff: noqa: INP001 - the documentation is no package
"""Makes the pictures of the documentation anew: ``python -m docs.pictures [FOLDER]``, by default where they are.

- ``*-dark.svg`` from ``*-light.svg``, which are drawn by hand, by PALETTE;
- ``console-*.png``: the console in Chromium, in a chat with the agent of docs/showcase.toml.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import expect, sync_playwright

from deploy.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

HERE = Path(__file__).parent

# Each colour of a light drawing, and what it is in a dark one.
PALETTE = {
    "#ffffff": "#1b1f2a",  # a box
    "#f5f6f9": "#14171f",  # a group of boxes
    "#c9cfdb": "#3a4152",  # an edge
    "#1f2430": "#e8eaf2",  # a name
    "#5b6478": "#a2aabd",  # what is beside it
    "#8a93a6": "#7d879c",  # an arrow
    "#3b5bdb": "#8aa0ff",  # towards the worker
    "#1a7f4b": "#62c98f",  # towards the client
    "#b0420e": "#f0965c",  # a client that comes back, or answers
}

SIZE = {"width": 1120, "height": 1000}
PATIENCE_MS = 120_000


def draw(folder: Path) -> None:
    """Write the dark drawings.

    Raises:
        KeyError: a drawing has a colour that PALETTE lacks.
    """
    for light in HERE.glob("*-light.svg"):
        dark = re.sub(r"#[0-9a-f]{6}\b", lambda colour: PALETTE[colour[0]], light.read_text())
        (folder / light.name.replace("-light", "-dark")).write_text(dark)


@contextmanager
def serving() -> Iterator[tuple[str, str]]:
    """``turnstream serve`` with the agent of docs/showcase.toml; its address and chat key.

    Raises:
        RuntimeError: it did not start.
    """
    port = free_port()
    variables = {"TURNSTREAM_AGENTS": str(HERE / "showcase.toml"), "TURNSTREAM_DEV_AGENT": "support"}
    with tempfile.TemporaryDirectory() as folder:
        # Its keys are kept in the folder that it runs in.
        server = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "turnstream", "serve", "--port", str(port)],
            cwd=folder, env={**os.environ, "PYTHONPATH": str(HERE.parent), **variables},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert server.stdout is not None  # noqa: S101
            key = next(
                found[1] for line in server.stdout if (found := re.search(r"chat key +(sk-\S+)", line))
            )
            yield f"http://127.0.0.1:{port}", key
        finally:
            server.terminate()
            server.communicate()


def photograph(folder: Path) -> None:
    """Take the console's pictures, in light and dark.

    Raises:
        FileNotFoundError: there is no Chromium.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise FileNotFoundError("There is no Chromium here: apt-get install chromium")
    with serving() as (url, key), sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            # Each of its own storage, so that both show one conversation.
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)  # type: ignore[arg-type]
            page.set_default_timeout(PATIENCE_MS)
            page.goto(f"{url}/console#key={key}")
            _converse(page)
            page.screenshot(path=folder / f"console-{scheme}.png")
        browser.close()


def _converse(page: Page) -> None:
    """Chat as far as to what needs an approval."""
    field = page.get_by_label("Message")
    turns = page.locator(".turn")
    field.fill("Which orders of Ada are still open?")
    field.press("Enter")
    expect(turns.nth(0)).to_have_attribute("data-status", "completed", timeout=PATIENCE_MS)
    field.fill("Refund order 1042, please.")
    field.press("Enter")
    expect(turns.nth(1).get_by_role("button", name="Approve")).to_be_visible(timeout=PATIENCE_MS)
    expect(page.get_by_text("needs you ·").first).to_be_visible(timeout=PATIENCE_MS)
    expect(page.get_by_text(re.compile("^(waiting|running) ·"))).to_have_count(0, timeout=PATIENCE_MS)
    expect(page.locator("#light")).to_have_attribute("data-state", "live", timeout=PATIENCE_MS)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    draw(target)
    photograph(target)
