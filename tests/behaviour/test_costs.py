"""What a turn took: tokens and cost, to its client, in lists, in the log and in metrics; no cost where a price is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from tests.admin.test_metrics import scrape
from tests.behaviour.test_on_park import outputs
from tests.support.client import calls_of, terminal
from tests.support.fake_provider import tools
from tests.support.fake_provider.responses import Refusal
from tests.support.fake_provider.server import Call, calls, says
from turnstream.shared.agents.config import model_name

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Provider

WEATHER = "tests.support.fake_provider.tools:get_weather"
MODEL = "openai:gpt-4o"
# List prices of that model: USD for a million tokens.
INPUT, OUTPUT = 2.5, 10.0

ANSWERS = [
    calls(Call("get_weather", '{"city": "Rome"}'), usage=(1000, 100)),
    says("Sunny.", usage=(2000, 200)),
]
COST = pytest.approx((3000 * INPUT + 300 * OUTPUT) / 1e6)


async def taken(
    client: Client, admin: Client, text: str = "Hi"
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What a turn's client reads of its usage, the task's row, and the line in the log."""
    with capture_logs() as lines:
        frames = await client.turn("s1", text, id="t1")
    (row,) = (await admin.http.get("/admin/v1/tasks")).json()["tasks"]
    (line,) = [line for line in lines if line["event"] == "task.ended"]
    event = terminal(frames)
    assert event is not None
    return event["usage"], row, dict(line)


async def test_a_turn_tells_what_it_cost(deploy: Deployments, provider: Provider) -> None:
    """All its answers together, at the list price of the model; and by agent, model and tool in metrics."""
    client = await deploy(model=MODEL, tools=[WEATHER], deployment={"metrics_owners": 1})
    tools.called.clear()
    before = await scrape(client)
    provider.script = [*ANSWERS]
    usage, row, line = await taken(client, deploy.stack.client(client.base_url, deploy.stack.admin))
    after = await scrape(client)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert usage["cost_usd"] == COST
    assert (row["input_tokens"], row["output_tokens"], row["cost_usd"]) == (3000, 300, COST)
    assert (line["agent"], line["tokens"], line["cost_usd"]) == ("demo", 3300, COST)
    assert 0 <= line["seconds"] < 600
    assert grown("turnstream_turn_seconds_count[demo][completed]") == 1
    of_model = f"[demo][{_name(provider)}]"
    assert grown(f"turnstream_first_token_seconds_count{of_model}") == 2
    assert grown(f"turnstream_answer_seconds_count{of_model}") == 2
    assert grown(f"turnstream_tokens_total[demo][input][{_name(provider)}]") == 3000
    assert grown(f"turnstream_tokens_total[demo][output][{_name(provider)}]") == 300
    assert grown(f"turnstream_cost_usd_total{of_model}") == COST
    assert grown("turnstream_tool_seconds_count[demo][get_weather]") == 1
    assert grown("turnstream_owner_turns_total[dev][completed]") == 1
    assert grown("turnstream_owner_tokens_total[dev]") == 3300
    assert grown("turnstream_owner_cost_usd_total[dev]") == COST


async def test_a_price_that_is_not_known_is_no_cost(deploy: Deployments, provider: Provider) -> None:
    """Not 0 either: nothing is said of it; and owners are named only where operators want that."""
    client = await deploy(model="openai:our-own", tools=[WEATHER])
    before = await scrape(client)
    provider.script = [*ANSWERS]
    usage, row, line = await taken(client, deploy.stack.client(client.base_url, deploy.stack.admin))
    after = await scrape(client)
    assert usage["total_tokens"] == line["tokens"] == 3300
    assert not any("cost_usd" in each for each in (usage, row, line))
    grown = {name for name, n in after.items() if n != before.get(name) and name.startswith("turnstream_")}
    assert not [name for name in grown if "cost" in name]
    assert "turnstream_owner_turns_total[other][completed]" in grown
    assert not [name for name in grown if "[dev]" in name]


@pytest.mark.parametrize(("known", "cost"), [("both", 0.0105), ("first", None), ("last", None)])
async def test_a_cost_of_which_a_part_is_not_known_is_not_told(
    deploy: Deployments, known: str, cost: float | None
) -> None:
    """Whichever it is: what is told is that of the whole turn. Metrics have what is known."""
    client = await deploy(python="tests.support.coded:charges")
    usage, *_ = await taken(client, deploy.stack.client(client.base_url, deploy.stack.admin), known)
    assert usage["total_tokens"] == 3300
    assert usage.get("cost_usd") == (None if cost is None else pytest.approx(cost))


async def test_a_part_of_a_turn_tells_its_own_cost(deploy: Deployments, provider: Provider) -> None:
    """A turn that waited for its client is told in two responses: each has its part of the cost."""
    client = await deploy(model=MODEL, client_tools=[{"name": "pick"}], on_park="complete")
    provider.script = [calls(Call("pick", "{}"), usage=(1000, 100)), says("Blue.", usage=(2000, 200))]
    first = await client.turn("s1", "Hi", id="t1")
    (call,) = calls_of(first)
    async with client.open(
        "POST", "/process", json={"session_id": "s1", "input": outputs(**{call["call_id"]: "x"})}
    ) as stream:
        second = await stream.all()
    assert first[-1].data["usage"]["cost_usd"] == pytest.approx((1000 * INPUT + 100 * OUTPUT) / 1e6)
    assert second[-1].data["usage"]["cost_usd"] == pytest.approx((2000 * INPUT + 200 * OUTPUT) / 1e6)


async def test_failures_are_counted_by_code(deploy: Deployments, provider: Provider) -> None:
    """Of the model and of the turn."""
    client = await deploy(model=MODEL)
    before = await scrape(client)
    provider.script = [Refusal(401, {"error": {"message": "no"}})]
    await client.turn("s1", "Hi", id="t1")
    after = await scrape(client)
    for name in (
        f"turnstream_models_failed_total[model_authentication][{_name(provider)}]",
        "turnstream_turns_failed_total[demo][model_authentication]",
    ):
        assert after[name] - before.get(name, 0) == 1


async def test_a_code_that_quotes_its_user_is_no_label(deploy: Deployments) -> None:
    """Agents' authors make codes of whatever they like: the client reads them, metrics do not."""
    client = await deploy(python="tests.support.coded:breaks")
    before = await scrape(client)
    frames = await client.turn("s1", "quote hunter2", id="t1")
    assert (terminal(frames) or {})["error"]["code"] == "no quote hunter2"
    after = await scrape(client)
    name = "turnstream_turns_failed_total[demo][other]"
    assert after[name] - before.get(name, 0) == 1
    assert not [each for each in after if "hunter2" in each]


def _name(provider: Provider) -> str:
    """The model as operators know it."""
    return model_name(MODEL, provider.base_url)
