"""How long the console's page keeps its user waiting while a long answer comes: real Chromium, full Markdown.

A timer that should fire every few milliseconds tells by how much the main thread was late for it.
"""

from __future__ import annotations

import shutil
import statistics
from typing import TYPE_CHECKING

from playwright.sync_api import expect, sync_playwright

from bench.agents import PIECES
from bench.table import Row, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scale import Scale
    from bench.topology import Topology

TOKENS = 20_000
PER_SECOND = 400

EVERY_MS = 10

# More than the tokens need to come.
PATIENCE_MS = 300_000

_WATCH = f"""() => {{
    window.late = [];
    let last = performance.now();
    setInterval(() => {{ const now = performance.now(); late.push(now - last - {EVERY_MS}); last = now; }}, {EVERY_MS});
}}"""


def run(built: Topology, scale: Scale) -> Iterator[Row]:
    """The main thread's lag, and what of the answer is on the page.

    Raises:
        FileNotFoundError: there is no Chromium.
        AssertionError: the page does not show the whole answer.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise FileNotFoundError("There is no Chromium here: apt-get install chromium")
    tokens, key = scale.count(TOKENS), built.key("markdown")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"http://127.0.0.1:{built.port}/console#key={key}")
        field = page.get_by_label("Message")
        expect(field).to_be_enabled(timeout=PATIENCE_MS)
        page.evaluate(_WATCH)
        field.fill(f"{tokens} {PER_SECOND}")
        field.press("Enter")
        expect(page.locator(".turn")).to_have_attribute("data-status", "completed", timeout=PATIENCE_MS)
        late = page.evaluate("late")
        ends = page.locator(".answer p", has_text="part-end").count()
        browser.close()
    assert ends >= tokens // len(PIECES), f"{ends} parts are shown of {tokens // len(PIECES)}"
    hundredths = statistics.quantiles(late, n=100)
    note = f"p50 {number(max(0, hundredths[49]))} ms, p99 {number(hundredths[98])} ms, longest {number(max(late))} ms"
    yield Row(
        f"console: main thread's lag while {tokens:,} tokens of Markdown come at {PER_SECOND}/s, p95",
        hundredths[94],
        "ms",
        note=note,
    ).at_most(50)
