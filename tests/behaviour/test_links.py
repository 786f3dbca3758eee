"""Links in an input: which are downloaded, how many, how often, and what becomes of those that cannot be."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_ai import _ssrf

from tests.client import terminal, text_of
from tests.models.server import KEY, says
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.client import Client
    from tests.models.deployment import Deployments
    from tests.models.server import Provider

# A model of an endpoint of its own, and one that the library knows by its provider's name.
MODELS: list[dict[str, Any]] = [{}, {"model": "ollama:test", "base_url": None, "api_key_env": None}]


@pytest.fixture(autouse=True)
def _at_ollama(monkeypatch: pytest.MonkeyPatch, provider: Provider) -> None:
    monkeypatch.setenv("OLLAMA_BASE_URL", provider.base_url)


@pytest.fixture
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider's address stands for one outside of our network."""
    monkeypatch.setattr(_ssrf, "is_private_ip", lambda _: False)


async def turn_with(client: Client, *parts: dict[str, Any]) -> dict[str, Any]:
    """How a turn ended whose input has these parts, each in a message of its own."""
    asked = [{"role": "user", "content": [part]} for part in parts]
    async with client.open("POST", "/process", json={"session_id": "s1", "input": asked}) as stream:
        event = terminal(await stream.all())
    assert event is not None
    return event


def pdf(provider: Provider, name: str = "a") -> dict[str, Any]:
    """A part with a link to a file of the provider's server."""
    return {"type": "file", "file_url": f"{provider.address}/{name}.pdf"}


@pytest.mark.usefixtures("_outside")
@pytest.mark.parametrize("model", MODELS)
async def test_a_link_is_downloaded_in_its_own_turn_only(
    deploy: Deployments, provider: Provider, model: dict[str, Any]
) -> None:
    """Later turns are told where it was; it may have expired since."""
    client = await deploy(fetch_links=True, **model)
    provider.files = {"/a.pdf": b"%PDF"}
    provider.script = [says("Nice."), says("Indeed.")]
    assert (await turn_with(client, pdf(provider)))["status"] == "completed"
    assert "data:application/pdf;base64," in json.dumps(provider.messages())
    provider.files = {}
    assert text_of(await client.turn("s1", "And now?")) == "Indeed."
    assert f"(attached: {provider.address}/a.pdf)" in json.dumps(provider.messages()[0])
    assert provider.others == ["/a.pdf"]


@pytest.mark.usefixtures("_outside")
@pytest.mark.parametrize("model", MODELS)
async def test_a_link_that_cannot_be_fetched_ends_its_turn_with_a_code(
    deploy: Deployments, provider: Provider, model: dict[str, Any]
) -> None:
    """Whichever class of model would have read it."""
    client = await deploy(fetch_links=True, **model)
    assert (await turn_with(client, pdf(provider)))["error"] == {
        "code": "link_not_fetched",
        "message": "A link in the input could not be fetched.",
    }
    assert provider.requests == []


@pytest.mark.parametrize("model", MODELS)
async def test_a_link_into_our_network_ends_its_turn_with_a_code(
    deploy: Deployments, provider: Provider, model: dict[str, Any]
) -> None:
    """It is refused before anybody is asked."""
    client = await deploy(fetch_links=True, **model)
    assert (await turn_with(client, pdf(provider)))["error"]["code"] == "link_not_fetched"
    assert provider.requests == []
    assert provider.others == []


@pytest.mark.usefixtures("_outside")
@pytest.mark.parametrize("model", MODELS)
async def test_a_turn_has_eight_links_downloaded_at_most(
    deploy: Deployments, provider: Provider, model: dict[str, Any]
) -> None:
    """All messages of its input together; those of earlier turns do not count."""
    client = await deploy(fetch_links=True, **model)
    links = [pdf(provider, str(number)) for number in range(9)]
    provider.files = {f"/{number}.pdf": b"%PDF" for number in range(9)}
    assert (await turn_with(client, *links))["error"] == {
        "code": "too_many_links",
        "message": "The input has 9 links to fetch, and 8 are fetched at most.",
    }
    assert provider.others == []
    provider.script = [says("All read."), says("This too.")]
    assert (await turn_with(client, *links[:8]))["status"] == "completed"
    assert len(provider.others) == 8
    assert (await turn_with(client, links[8]))["status"] == "completed"
    assert len(provider.others) == 9


async def test_links_that_are_passed_on_are_not_counted(deploy: Deployments, provider: Provider) -> None:
    """Images are the provider's to fetch."""
    client = await deploy(fetch_links=True, images=True)
    image = {"type": "image", "image_url": "https://nowhere.invalid/cat.png"}
    provider.script = [says("Cats."), says("Yes.")]
    assert (await turn_with(client, *[image] * 9))["status"] == "completed"
    await client.turn("s1", "Sure?")
    assert json.dumps(provider.messages()).count('"image_url": {"url"') == 9


@pytest.mark.parametrize("said", ["", "I see a"])
async def test_what_a_turn_was_stopped_over_is_not_shown_again(
    deploy: Deployments, provider: Provider, said: str
) -> None:
    """It may be what the model hung on; unless the model had begun to speak of it."""
    client = await deploy(images=True)
    provider.script = [says(*filter(None, [said]), until=asyncio.Event()), says("Yes.")]
    image = {"type": "image", "image_url": "https://nowhere.invalid/cat.png"}
    content = [{"type": "text", "text": "Look"}, image]
    asked = {"session_id": "s1", "input": [{"role": "user", "content": content}]}
    async with client.open("POST", "/process", json=asked) as stream:
        await wait_until(lambda: provider.requests, "the model to be asked")
        if said:
            await stream.until(text_of)
        await client.stop("s1")
        event = terminal(await stream.all())
    assert event is not None
    assert event["status"] == "canceled"
    await client.turn("s1", "Hello?")
    assert "Look" in json.dumps(provider.messages()[0])
    assert ("cat.png" in json.dumps(provider.messages()[0])) is bool(said)


@pytest.mark.parametrize("fetch", [False, True])
async def test_a_film_is_told_as_text_where_the_library_takes_none(
    deploy: Deployments, provider: Provider, monkeypatch: pytest.MonkeyPatch, fetch: bool
) -> None:
    """`openai:NAME` without an address speaks OpenAI's newer form, which has no films."""
    monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    client = await deploy(base_url=None, api_key_env=None, fetch_links=fetch)
    film = {"type": "video", "video_url": "https://nowhere.invalid/a.mp4"}
    # The test's provider takes no request of that form.
    assert (await turn_with(client, film))["error"]["code"] == "model_rejected"
    assert "(attached: https://nowhere.invalid/a.mp4)" in json.dumps(provider.requests[0])
