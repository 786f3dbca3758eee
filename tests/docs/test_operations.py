"""The operators' page lists every setting and every metric, and the dashboard reads none that is not there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from turnstream.shared import metrics
from turnstream.shared.settings import PREFIX, Settings

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "operations.md").read_text()
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "turnstream.json").read_text())


def table(head: str) -> dict[str, list[str]]:
    """The rows of the table with this head, by what stands in their first cell."""
    rows = PAGE.partition(f"| {head} |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    return {first.strip("` "): rest for first, *rest in cells}


def shown(default: Any) -> str:
    """A default as the page writes it."""
    if default is None:
        return "–"
    if isinstance(default, SecretStr):
        default = default.get_secret_value()
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def told(metric: metrics.Counted | metrics.Gauge) -> str:
    """A metric's name as Prometheus shows it."""
    labels = ",".join(getattr(metric, "labels", ())) or getattr(metric, "label", "")
    total = "_total" if isinstance(metric, metrics.Count | metrics.Counts | metrics.Sums) else ""
    return f"{metric.name}{total}" + (f"{{{labels}}}" if labels else "")


def test_every_setting_is_in_the_table() -> None:
    """Name, default and meaning are those of the code, in its order, and there is no other."""
    fields = Settings.model_fields.items()
    expected = {PREFIX + name.upper(): [shown(field.default), field.description] for name, field in fields}
    assert table("setting | default | what it does") == expected


def test_every_metric_is_in_the_table() -> None:
    """Each is explained by the same sentence that Prometheus is given."""
    expected = {told(each): [each.help] for each in (*metrics.COUNTED, *metrics.GAUGES)}
    assert table("metric | what it tells") == expected


def test_the_dashboard_reads_metrics_that_there_are() -> None:
    """Every metric in its queries is one of ours or of the process; none of the table is left unseen for long."""
    queries = " ".join(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"])
    read = set(re.findall(r"\bturnstream_[a-z_]+", queries))
    known = {told(each).partition("{")[0] for each in (*metrics.COUNTED, *metrics.GAUGES)}
    known |= {f"{each.name}_bucket" for each in metrics.COUNTED if isinstance(each, metrics.Times)}
    assert read <= known
    assert all(panel["title"] and panel["description"] for panel in DASHBOARD["panels"])
