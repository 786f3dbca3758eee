"""What this process counted, as Prometheus reads it. The library is loaded when somebody asks first."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from turnstream.shared import metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Readings: TypeAlias = "Mapping[metrics.Gauge, float | Mapping[str, float]]"


def exposition(readings: Readings) -> bytes:
    """All counts of this process, its memory and time, and these readings of gauges."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(readings))
    return generate_latest(registry)


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


def _counted(each: metrics.Count | metrics.Counts | metrics.Times) -> Any:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    if isinstance(each, metrics.Count):
        return CounterMetricFamily(each.name, each.help, value=each.n)
    if isinstance(each, metrics.Counts):
        family = CounterMetricFamily(each.name, each.help, labels=[each.label])
        for value, n in sorted(each.by.items()):
            family.add_metric([value], n)
        return family
    counted = 0
    buckets = []
    for bound, n in zip((*each.bounds, "+Inf"), each.buckets, strict=True):
        counted += n
        buckets.append((str(bound), counted))
    return HistogramMetricFamily(each.name, each.help, buckets=buckets, sum_value=each.total)


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
