"""What this process counted, as Prometheus reads it. The library is loaded when somebody asks first."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from operator import add, itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from turnstream.shared import metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Readings: TypeAlias = "Mapping[metrics.Gauge, float | Mapping[str, float]]"


def exposition(readings: Readings) -> str:
    """All counts of this process, its memory and time, and these readings of gauges."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(readings))
    return generate_latest(registry).decode()


def merged(expositions: Sequence[str], *, counted_only: bool = False) -> str:
    """The expositions of several processes as one: what they counted added up, gauges by their meaning.

    With ``counted_only`` gauges are left out: what is left of processes that have ended.
    """
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(expositions, counted_only=counted_only))
    return generate_latest(registry).decode()


# Gauges that are not added up: what each process says of the whole deployment, and what is one process's by its meaning.
# A start that is the latest one shows that a process was started again.
_LARGEST = {each.name for each in metrics.GAUGES if each.shared} | {
    "process_max_fds", "process_start_time_seconds", "python_info",
}  # fmt: skip


class _Merged:
    """Hands the sum of expositions to the library."""

    def __init__(self, expositions: Sequence[str], *, counted_only: bool) -> None:
        self._expositions = expositions
        self._counted_only = counted_only

    def collect(self) -> Iterable[Any]:
        """The metrics."""
        from prometheus_client.core import Metric
        from prometheus_client.parser import text_string_to_metric_families

        families: dict[str, Metric] = {}
        values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
        for text in self._expositions:
            for family in text_string_to_metric_families(text):
                if self._counted_only and family.type == "gauge":
                    continue
                families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                combine = max if family.name in _LARGEST else add
                held = values.setdefault(family.name, {})
                for sample in family.samples:
                    at = sample.name, tuple(sample.labels.items())
                    held[at] = combine(held[at], sample.value) if at in held else sample.value
        for name, family in families.items():
            for (sample_name, labels), value in values[name].items():
                family.add_sample(sample_name, dict(labels), value)
        return families.values()


class _Collector:
    """Hands what was counted to the library."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Any]:
        """The metrics."""
        for each in metrics.COUNTED:
            yield _counted(each)
        for gauge, reading in self._readings.items():
            yield _gauge(gauge, reading)
        for collector in _process_collectors():
            yield from collector.collect()


def _counted(each: metrics.Counted) -> Any:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    match each:
        case metrics.Count():
            return CounterMetricFamily(each.name, each.help, value=each.n)
        case metrics.Times():
            return HistogramMetricFamily(each.name, each.help, buckets=_buckets(each), sum_value=each.total)
        case metrics.TimesBy():
            histogram = HistogramMetricFamily(each.name, each.help, labels=each.labels)
            for values, times in sorted(each.by.items(), key=itemgetter(0)):
                histogram.add_metric(values, _buckets(times), times.total)
            return histogram
    labels = each.labels if isinstance(each, metrics.Sums) else (each.label,)
    counter = CounterMetricFamily(each.name, each.help, labels=labels)
    for value, n in sorted(each.by.items()):
        counter.add_metric((value,) if isinstance(value, str) else value, n)
    return counter


def _buckets(times: metrics.Times) -> list[tuple[str, int]]:
    bounds = (*map(str, times.bounds), "+Inf")
    return list(zip(bounds, accumulate(times.buckets), strict=True))


def _gauge(gauge: metrics.Gauge, reading: float | Mapping[str, float]) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    if isinstance(reading, int | float):
        return GaugeMetricFamily(gauge.name, gauge.help, value=reading)
    family = GaugeMetricFamily(gauge.name, gauge.help, labels=[gauge.label])
    for value, n in sorted(reading.items()):
        family.add_metric([value], n)
    return family


@lru_cache(maxsize=1)
def _process_collectors() -> tuple[Any, ...]:
    from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

    registry = CollectorRegistry()
    return ProcessCollector(registry=registry), PlatformCollector(registry=registry)
