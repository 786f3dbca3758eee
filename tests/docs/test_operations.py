"""The operators' page lists every setting and every metric, and dashboards read none that is not there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from turnstream.shared import metrics
from turnstream.shared.settings import PREFIX, Settings

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "operations.md").read_text()
SERVICE, AGENTS = DASHBOARDS = [
    json.loads((ROOT / "deploy" / "grafana" / name).read_text())
    for name in ("turnstream.json", "agents.json")
]


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


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each["uid"])
def test_dashboards_read_metrics_that_there_are(dashboard: dict[str, Any]) -> None:
    """Every query reads ours, by labels that these have; every panel says what it shows."""
    labels = {name: found for each in (*metrics.COUNTED, *metrics.GAUGES) for name, found in series(each)}
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert panel["description"]
        for target in panel["targets"]:
            query = target["expr"]
            read = set(re.findall(r"\bturnstream_[a-z_]+", query))
            # Of a process, Prometheus' own library tells the rest.
            assert read or "process_" in query, query
            assert read <= labels.keys(), query
            grouped = re.findall(r"\b(?:by|without) \(([^)]*)\)", query)
            asked = {word for words in grouped for word in words.split(", ")}
            asked |= set(re.findall(r"\b(\w+)[=!]~?\"", query)) | set(
                re.findall(r"{{(\w+)}}", target["legendFormat"])
            )
            for name in read:
                assert asked <= {*labels[name], "job", "instance"}, query


# What is drawn with the unit of its panel, by what its name holds.
UNITS = {"_seconds_bucket": "s", "_usd": "currencyUSD", "_bytes": ""}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each["uid"])
def test_a_panel_has_one_axis(dashboard: dict[str, Any]) -> None:
    """All that it draws is of one unit, and times and money are drawn as such; a legend names what the query keeps."""
    for panel in dashboard["panels"]:
        kinds = set()
        for target in panel["targets"]:
            read = " ".join(re.findall(r"\bturnstream_[a-z_]+", target["expr"]))
            kinds.add(next((kind for kind in UNITS if kind in read), "number"))
            kept = {
                word for words in re.findall(r"by \(([^)]*)\)", target["expr"]) for word in words.split(", ")
            }
            assert not kept or set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, target
        assert len(kinds) == 1, panel["title"]
        if unit := UNITS.get(kinds.pop()):
            assert panel["fieldConfig"]["defaults"]["unit"] == unit, panel["title"]


def series(metric: metrics.Counted | metrics.Gauge) -> list[tuple[str, set[str]]]:
    """The names of a metric's series, with their labels."""
    labels = set(getattr(metric, "labels", ())) or {getattr(metric, "label", "")} - {""}
    if isinstance(metric, metrics.Times | metrics.TimesBy):
        return [
            (f"{metric.name}_bucket", {*labels, "le"}),
            *((f"{metric.name}_{part}", labels) for part in ("sum", "count")),
        ]
    return [(told(metric).partition("{")[0], labels)]


def test_the_agents_dashboard_leaves_no_metric_of_agents_out() -> None:
    """Each that has an agent or an owner as a label is in one of its queries."""
    queries = str(AGENTS["panels"])
    for each in metrics.COUNTED:
        if {"agent", "owner"} & set(getattr(each, "labels", ())):
            assert each.name in queries
