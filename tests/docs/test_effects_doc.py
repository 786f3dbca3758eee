"""docs/effects.md: its example is accepted as it is printed, and does what the page says."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from turnstream.agents import check
from turnstream.worker.agents.calls import declared

if TYPE_CHECKING:
    import pytest

PAGE = (Path(__file__).parent.parent.parent / "docs" / "effects.md").read_text()

AGENTS = """
[agents.shop]
model = "demo"
tools = ["pay:pay", "pay:balance"]
[agents.shop.on_lost]
balance = "pay:find_payment"
"""


def test_its_example_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions declare what the page says of them, and the configuration may name the one that finds out."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "pay.py").write_text(code)
    (tmp_path / "agents.toml").write_text(AGENTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "warning" not in check(tmp_path / "agents.toml")
    pay = importlib.import_module("pay")
    policies = [declared(pay.pay), declared(pay.balance)]
    del sys.modules["pay"]
    assert [(policy.on_lost, policy.read_only) for policy in policies if policy] == [
        (pay.find_payment, False),
        ("rerun", True),
    ]
