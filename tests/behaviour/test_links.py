"""Links in an input: which are downloaded, how many, how often, and what becomes of those that cannot be."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent, _ssrf
from pydantic_ai.messages import AudioUrl, DocumentUrl, FileUrl, ImageUrl, VideoUrl
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.models.openrouter import OpenRouterModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openrouter import OpenRouterProvider

from tests.support.client import terminal, text_of
from tests.support.fake_provider.server import KEY, Call, calls, says
from tests.support.waiting import wait_until
from turnstream.worker.agents import models

if TYPE_CHECKING:
    from pydantic_ai.messages import UserContent

    from tests.support.client import Client
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Provider

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


@pytest.mark.usefixtures("_outside")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("among", [False, True])
async def test_a_tools_link_is_downloaded_in_its_own_turn_only(
    deploy: Deployments, provider: Provider, model: dict[str, Any], among: bool
) -> None:
    """By itself or among words: later turns are told where it was."""
    client = await deploy(
        fetch_links=True,
        tools=["tests.support.fake_provider.tools:linked"],
        settings={"framing_announcement": "never"},
        **model,
    )
    provider.files = {"/a.pdf": b"%PDF"}
    asked = {"url": f"{provider.address}/a.pdf", "among": among}
    provider.script = [calls(Call("linked", json.dumps(asked))), says("Nice."), says("Indeed.")]
    assert text_of(await client.turn("s1", "Go")) == "Nice."
    assert "data:application/pdf;base64," in json.dumps(provider.messages())
    provider.files = {}
    assert text_of(await client.turn("s1", "And now?")) == "Indeed."
    assert f"(attached: {provider.address}/a.pdf)" in json.dumps(provider.messages())
    assert provider.others == ["/a.pdf"]


class _Of(Model):
    """Stands for a provider's model whose client need not be installed."""

    def __init__(self, system: str) -> None:
        super().__init__()
        self._system = system

    @property
    def system(self) -> str:
        """Its provider's name."""
        return self._system

    @property
    def model_name(self) -> str:
        """Any."""
        return "test"

    async def request(self, *_: Any) -> Any:
        """Nobody asks it."""
        raise NotImplementedError


PDF = DocumentUrl("https://nowhere.invalid/a.pdf")
WORDS = DocumentUrl("https://nowhere.invalid/a.txt", media_type="text/plain")
IMAGE = ImageUrl("https://nowhere.invalid/a.png")
SOUND = AudioUrl("https://nowhere.invalid/a.mp3")
FILM = VideoUrl("https://nowhere.invalid/a.mp4")
YOUTUBE = VideoUrl("https://www.youtube.com/watch?v=1")
LINKS: list[UserContent] = [PDF, WORDS, IMAGE, SOUND, FILM, YOUTUBE]


def _openrouter(client: AsyncOpenAI | None = None) -> OpenRouterModel:
    client = client or AsyncOpenAI(base_url="http://nowhere.invalid/v1", api_key=KEY)
    return OpenRouterModel("test/test", provider=OpenRouterProvider(openai_client=client))


def _responses() -> OpenAIResponsesModel:
    return OpenAIResponsesModel("test", provider=OpenAIProvider(api_key=KEY))


@pytest.mark.parametrize(
    ("model", "passed"),
    [
        (_Of("anthropic"), [PDF, IMAGE]),
        (_Of("mistral"), [PDF, IMAGE]),
        (_Of("groq"), [IMAGE]),
        (_Of("xai"), [IMAGE]),
        (_Of("huggingface"), [IMAGE]),
        (_Of("bedrock"), []),
        (_Of("google"), [YOUTUBE]),
        (_Of("google-cloud"), [YOUTUBE]),
        (_openrouter(), [PDF, WORDS, IMAGE, FILM, YOUTUBE]),
        (FallbackModel(_openrouter(), WrapperModel(_Of("mistral"))), [PDF, IMAGE]),
        (FallbackModel(_openrouter(), _responses()), [PDF, WORDS, IMAGE]),
    ],
    ids=lambda each: each.system if isinstance(each, Model) else "",
)
def test_a_link_that_the_library_passes_on_stays_one(model: Model, passed: list[FileUrl]) -> None:
    """What it would download, or refuse, becomes text; of several models each must be given it."""
    assert [link for link in models.readable(LINKS, model) if isinstance(link, FileUrl)] == passed
    forced = ImageUrl(IMAGE.url, force_download=True)
    assert models.readable([forced], model) == [f"(attached: {IMAGE.url})"]


async def test_films_and_files_reach_an_agent_of_openrouter(
    deploy: Deployments, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As links, of which nothing is downloaded."""
    film = {"type": "video", "video_url": f"{provider.address}/a.mp4"}
    async with AsyncOpenAI(base_url=provider.base_url, api_key=KEY) as asking:
        monkeypatch.setattr("tests.support.coded.brought", Agent(_openrouter(asking)), raising=False)
        client = await deploy(python="tests.support.coded:brought")
        provider.script = [says("Seen.")]
        assert (await turn_with(client, film, pdf(provider)))["status"] == "completed"
    sent = [part for message in provider.messages() for part in message["content"]]
    assert [part["type"] for part in sent] == ["video_url", "file"]
    assert provider.others == []


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


CAT = {"type": "image", "image_url": "https://nowhere.invalid/cat.png"}


async def test_what_a_turn_was_stopped_over_is_shown_again_when_the_model_was_thinking(
    deploy: Deployments, provider: Provider
) -> None:
    """Then it had taken the input."""
    client = await deploy(images=True)
    provider.script = [says(thoughts=("Hm.",), until=asyncio.Event()), says("Yes.")]
    asked = {"session_id": "s1", "input": [{"role": "user", "content": [CAT]}]}
    async with client.open("POST", "/process", json=asked) as stream:
        await stream.until(lambda frames: any(frame.data.get("type") == "reasoning" for frame in frames))
        await client.stop("s1")
        await stream.all()
    await client.turn("s1", "Hello?")
    assert "cat.png" in json.dumps(provider.messages()[0])


async def test_what_a_turn_was_stopped_over_is_shown_again_when_there_was_a_draft(
    deploy: Deployments, provider: Provider
) -> None:
    """Though nobody had heard it."""
    client = await deploy(images=True, critics=["demo-critic"], pass_score=10)
    provider.script = [says("A cat."), says(until=asyncio.Event()), says("Yes."), says("Yes!")]
    asked = {"session_id": "s1", "input": [{"role": "user", "content": [CAT]}]}
    async with client.open("POST", "/process", json=asked) as stream:
        await wait_until(lambda: len(provider.requests) == 2, "the second draft to be asked for")
        await client.stop("s1")
        await stream.all()
    await client.turn("s1", "Hello?")
    assert "cat.png" in json.dumps(provider.messages(2)[0])


async def test_what_a_turn_was_stopped_over_is_shown_again_when_it_never_began(
    deploy: Deployments, provider: Provider
) -> None:
    """No model has seen it."""
    client = await deploy.front_end(images=True)
    asked = {"session_id": "s1", "input": [{"role": "user", "content": [CAT]}]}
    async with client.open("POST", "/process", json=asked) as stream:
        await client.stop("s1")
        await stream.all()
    await deploy.stack.worker()
    provider.script = [says("Yes.")]
    await client.turn("s1", "Hello?")
    assert "cat.png" in json.dumps(provider.messages()[0])


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
