"""The text for Prometheus: each kind of metric as its parser reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from turnstream.shared import metrics
from turnstream.shared.metrics import Count, Counts, Gauge, Sums, Times, TimesBy
from turnstream.shared.prometheus import Readings, exposition, merged

if TYPE_CHECKING:
    import pytest


def samples(text: str) -> dict[tuple[str, str], float]:
    """Name and the label's value → value, of the metrics that a test made."""
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
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
    sums = Sums("test_sums", "h", ("by", "and"))
    sums.add("c", "d", n=0.25)
    by = TimesBy("test_by", "h", (0.1,), ("by",))
    by.add(0.5, "e")
    monkeypatch.setattr(metrics, "COUNTED", (Count("test_plain", "h", 3), labelled, sums, times, by))
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
        ("test_sums_total", "d"): 0.25,
        ("test_by_bucket", "e"): 1,
        ("test_by_count", "e"): 1,
        ("test_by_sum", "e"): 0.5,
        ("test_gauge", ""): 1.5,
        ("test_gauges", "a"): 1,
        ("test_gauges", "b"): 2,
    }


def test_every_metric_has_its_own_name() -> None:
    """Prometheus refuses a page on which a name stands twice."""
    names = [family.name for family in text_string_to_metric_families(exposition({}))]
    assert len(names) == len(set(names))
    assert {each.name for each in metrics.COUNTED} <= set(names)


def test_several_processes_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters, histograms and gauges are added up, but not what each says of the whole deployment; one stays as it is."""
    times = Times("test_times", "h", (0.1,))
    labelled = Counts("test_labelled", "h", "by")
    monkeypatch.setattr(metrics, "COUNTED", (labelled, times))
    followers, deep = metrics.followers, metrics.queue_depth
    labelled.add("a")
    first = exposition({followers: 3, deep: 5, metrics.tasks: {"queued": 2}})
    labelled.add("b")
    times.add(0.05)
    second = exposition({followers: 4, deep: 6, metrics.tasks: {"queued": 1, "parked": 1}})
    assert merged([first]) == first
    both = merged([first, second])
    assert samples(both) == {
        ("test_labelled_total", "a"): 2,
        ("test_labelled_total", "b"): 1,
        ("test_times_bucket", "0.1"): 1,
        ("test_times_bucket", "+Inf"): 1,
        ("test_times_count", ""): 1,
        ("test_times_sum", ""): 0.05,
    }
    for line in (
        "followers 7.0",
        "queue_depth 6.0",
        'tasks{status="queued"} 2.0',
        'tasks{status="parked"} 1.0',
    ):
        assert f"\nturnstream_{line}\n" in both
    assert both.count("# TYPE turnstream_followers gauge") == 1
    left = merged([first, second], counted_only=True)
    assert samples(left) == samples(both)
    assert "gauge" not in left
