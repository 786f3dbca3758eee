"""What Prometheus reads from front ends and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.client import calls_of
from turnstream.shared import metrics

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack

# What a metric is called once it is told, by its kind.
SAMPLE = {metrics.Count: "_total", metrics.Counts: "_total", metrics.Times: "_count"}


def samples(text: str) -> dict[str, float]:
    """All samples by name, with the value of their label in brackets."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, f"{family.name} is not explained"
        for sample in family.samples:
            if "le" not in sample.labels:
                found[sample.name + "".join(f"[{value}]" for value in sample.labels.values())] = sample.value
    return found


async def scrape(client: Client) -> dict[str, float]:
    """The samples of a front end."""
    answer = await client.http.get("/metrics", headers={"Authorization": ""})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return samples(answer.text)


async def test_a_front_end_tells_what_it_did(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns, callbacks, stops, streams and bytes are counted; followers and tasks are told as they are."""
    monkeypatch.setattr("turnstream.shared.session.deployment_stats.FRESH_SECONDS", 0.0)
    before = await scrape(client)
    await client.turn("s1", "/tokens 20", id="t1")
    async with client.process("s2", "/call f {}", id="t2") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        during = await scrape(client)
        await client.callback("s2", call["call_id"], "x")
        await client.callback("s2", call["call_id"], "x")
        await stream.all()
    async with client.process("s3", "/tokens 100000 5", id="t3") as stopped:
        await stopped.until(lambda frames: len(frames) > 3)
        await client.stop("s3", "t3")
        sent = len((await stopped.all())[0].raw)
    after = await scrape(client)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grown("turnstream_turns_submitted_total") == 3
    assert grown("turnstream_turns_ended_total[completed]") == 2
    assert grown("turnstream_turns_ended_total[canceled]") == 1
    assert grown("turnstream_callbacks_total[first]") == 1
    assert grown("turnstream_callbacks_total[repeat]") == 1
    assert grown("turnstream_stop_seconds_count") == 1
    assert grown("turnstream_streams_opened_total") == 3
    assert grown("turnstream_stream_bytes_total") > sent
    assert during["turnstream_followers"] == 1
    assert during["turnstream_tasks[running]"] + during["turnstream_tasks[parked]"] == 1
    assert after["turnstream_followers"] == 0
    assert after["turnstream_tasks[parked]"] == 0
    assert after["process_resident_memory_bytes"] > 2**20


async def test_a_worker_tells_what_it_did_and_whether_it_can_work(stack: Stack) -> None:
    """Attempts, appends and waits are counted; a worker is ready, and holds what runs."""
    worker = await stack.worker(metrics_port=0, max_jobs=7)
    client = await stack.front_end()
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{worker.status.port}", trust_env=False
    ) as watcher:
        assert (await watcher.get("/healthz")).json() == {"status": "up"}
        assert (await watcher.get("/readyz")).json() == {"status": "ready"}
        before = samples((await watcher.get("/metrics")).text)
        async with client.process("s1", "/tokens 100000 5", id="t1") as stream:
            await stream.until(lambda frames: len(frames) > 20)
            during = samples((await watcher.get("/metrics")).text)
            await client.stop("s1", "t1")
            await stream.all()
    assert during["turnstream_turns_held"] == 1
    assert during["turnstream_slots"] == 7
    for name in ("turnstream_attempts_total[first]", "turnstream_queue_wait_seconds_count"):
        assert during[name] - before.get(name, 0.0) == 1
    assert during["turnstream_events_appended_total"] - before["turnstream_events_appended_total"] > 15
    assert during["turnstream_append_seconds_count"] > before["turnstream_append_seconds_count"]
    assert during["turnstream_append_seconds_sum"] > before["turnstream_append_seconds_sum"]


async def test_metrics_can_want_an_admin_key(stack: Stack) -> None:
    """Where the operator says so, nobody else reads them."""
    client = await stack.front_end(metrics_open=False)
    admin = stack.client(client.base_url, stack.admin)
    assert (await client.http.get("/metrics", headers={"Authorization": ""})).status_code == 401
    assert (await client.http.get("/metrics")).status_code == 403
    assert (await admin.http.get("/metrics")).status_code == 200


@pytest.mark.parametrize("each", [*metrics.COUNTED, *metrics.GAUGES], ids=lambda each: each.name)
def test_names_are_as_prometheus_wants_them(each: metrics.Count | metrics.Gauge) -> None:
    """Our prefix, base units, and no ending that the library adds by itself."""
    assert each.name.startswith("turnstream_")
    assert not each.name.endswith(("_total", "_count", "_ms"))
    assert each.help.endswith(".")
    if isinstance(each, metrics.Times):
        assert each.name.endswith("_seconds")
