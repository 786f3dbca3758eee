"""The text for Prometheus: each kind of metric as its parser reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from turnstream.shared import metrics
from turnstream.shared.metrics import Count, Counts, Gauge, Times
from turnstream.shared.prometheus import Readings, exposition

if TYPE_CHECKING:
    import pytest


def samples(text: bytes) -> dict[tuple[str, str], float]:
    """Name and the label's value → value, of the metrics that a test made."""
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name.startswith("test_")
    }


def test_every_kind_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters with and without a label, gauges with and without, and a histogram whose buckets add up."""
    times = Times("test_times", "h", (0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7):
        times.add(seconds)
    labelled = Counts("test_labelled", "h", "by")
    labelled.add('quo"te\n')
    monkeypatch.setattr(metrics, "COUNTED", (Count("test_plain", "h", 3), labelled, times))
    readings: Readings = {
        Gauge("test_gauge", "h"): 1.5,
        Gauge("test_gauges", "h", "of"): {"a": 1.0, "b": 2.0},
    }
    assert samples(exposition(readings)) == {
        ("test_plain_total", ""): 3,
        ("test_labelled_total", 'quo"te\n'): 1,
        ("test_times_bucket", "0.1"): 2,
        ("test_times_bucket", "1.0"): 3,
        ("test_times_bucket", "+Inf"): 4,
        ("test_times_count", ""): 4,
        ("test_times_sum", ""): 7.65,
        ("test_gauge", ""): 1.5,
        ("test_gauges", "a"): 1,
        ("test_gauges", "b"): 2,
    }


def test_every_metric_has_its_own_name() -> None:
    """Prometheus refuses a page on which a name stands twice."""
    names = [family.name for family in text_string_to_metric_families(exposition({}).decode())]
    assert len(names) == len(set(names))
    assert {each.name for each in metrics.COUNTED} <= set(names)
