"""The documentation's website: whole, alone, and built of nothing that is broken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.async_api import async_playwright, expect

from tests.browser.conftest import PATIENCE_MS, chromium

ROOT = Path(__file__).parent.parent.parent

__all__ = ["chromium"]


def built(folder: Path, root: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """What `make docs` does, for another folder, and of other pages."""
    return subprocess.run(
        [sys.executable, "-m", "docs.website", folder, root],
        cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site."""
    folder = tmp_path_factory.mktemp("website")
    done = built(folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


class Loads(HTMLParser):
    """What a page makes a browser load, and the places that it leads to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Every address in an element that loads by itself, and every link."""
        given = {name: value for name, value in attrs if value}
        if tag == "a":
            self.links += [given["href"]] if "href" in given else []
        elif tag != "link" or given.get("rel") not in {"canonical", "index", "search", "next", "prev"}:
            self.loaded += [
                given[name] for name in ("src", "srcset", "href", "data", "poster") if name in given
            ]


def test_every_page_stands_under_its_readers(site: Path) -> None:
    """The navigation of every page has the groups and pages of docs/README.md, in its order."""
    listed = re.findall(
        r"^(?:## (.+)|- \[(.+)\]\(.+\): .+)$", (ROOT / "docs" / "README.md").read_text(), re.MULTILINE
    )
    expected = [group or page for group, page in listed]
    assert {"Agents", "Clients", "Operators"} <= set(expected)
    expected.insert(expected.index("Glossary") + 1, "All pages")
    for page in ("index.html", "docs/agents.html", "docs/protocol.html", "CHANGELOG.html"):
        navigation = (
            (site / page).read_text().partition('<div class="sidebar-tree">')[2].partition("</div>")[0]
        )
        found = re.findall(
            r'class="caption-text">([^<]+)<|class="[\w -]*reference internal" href="[^"]*">([^<]+)<',
            navigation,
        )
        assert [caption or title for caption, title in found] == expected, page


def test_it_asks_no_other_host_and_every_link_leads_somewhere(site: Path) -> None:
    """Scripts, styles, pictures and fonts are in the folder; so is what is linked, with its heading."""
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    assert len(pages) > 20
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    for path, text in pages.items():
        read = Loads(text)
        assert read.loaded
        for address in [*read.loaded, *(each for each in read.links if not each.startswith("https://"))]:
            file, _, anchor = address.partition("#")
            target = (path.parent / file.partition("?")[0]).resolve() if file else path
            assert target.is_file(), (path, address)
            assert not anchor or anchor in anchors[target], (path, address)
    for path in [*site.rglob("*.css"), *site.rglob("*.js")]:
        assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//|importScripts", path.read_text()), path


def test_examples_are_coloured_as_what_they_are(site: Path) -> None:
    """No block has what its language does not know: that would be shown as an error."""
    text = "".join(path.read_text() for path in site.rglob("*.html"))
    assert 'class="highlight-http' in text
    assert 'class="err"' not in text


async def test_it_works_without_a_server(site: Path, chromium: str) -> None:
    """From the disk: search finds, pictures are those of the colours, and nothing is asked of any host."""
    async with async_playwright() as driver:
        browser = await driver.chromium.connect(chromium)
        window = await browser.new_context(color_scheme="dark", offline=True)
        page = await window.new_page()
        page.set_default_timeout(PATIENCE_MS)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.goto((site / "index.html").as_uri())
        await expect(page.locator("img.only-dark").first).to_be_visible()
        await expect(page.locator("img.only-light").first).to_be_hidden()
        await page.get_by_role("button", name="Toggle Light").locator("visible=true").click()
        await expect(page.locator("img.only-light").first).to_be_visible()
        await page.get_by_placeholder("Search").fill("idempotency")
        await page.get_by_placeholder("Search").press("Enter")
        await page.locator("#search-results a", has_text="Effects").first.click()
        await expect(page.locator("h1")).to_contain_text("tools that must not happen twice")
        assert asked
        assert not [url for url in asked if not url.startswith("file:")]
        await browser.close()


def test_models_find_the_pages_as_markdown(site: Path) -> None:
    """llms.txt as llmstxt.org has it: a title, a summary, sections of links; llms-full.txt has these pages themselves."""
    text = (site / "llms.txt").read_text()
    title, summary, *sections = text.strip().split("\n\n")
    assert re.fullmatch(r"# Turnstream [\d.]+", title)
    assert all(line.startswith("> ") for line in summary.splitlines())
    entries: dict[str, list[str]] = {}
    for part in sections:
        if part.startswith("## "):
            name = part.removeprefix("## ")
            continue
        entries[name] = [found[1] for found in re.finditer(r"- \[.+\]\((.+)\): .+", part)]
        assert len(entries[name]) == len(part.splitlines())
    assert list(entries)[-1] == "Optional"
    full = (site / "llms-full.txt").read_text()
    for name, files in entries.items():
        for file in files:
            page = (site / file).read_text()
            assert page == (ROOT / file).read_text()
            assert (page.strip() in full) == (name != "Optional"), file


def test_addresses_are_whole_where_the_site_has_one(tmp_path: Path) -> None:
    """With TURNSTREAM_DOCS_URL."""
    tree(tmp_path)
    done = built(tmp_path / "site", tmp_path, TURNSTREAM_DOCS_URL="https://docs.example.com/turnstream")
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "(https://docs.example.com/turnstream/docs/page.md): a page."
        in (tmp_path / "site" / "llms.txt").read_text()
    )
    html = (tmp_path / "site" / "docs" / "page.html").read_text()
    assert 'rel="canonical" href="https://docs.example.com/turnstream/docs/page.html"' in html


def test_what_is_broken_fails_the_build(tmp_path: Path) -> None:
    """A link to no page, to no heading, a picture that is not there, and a page that the list leaves out."""
    tree(tmp_path, "[a](nothing.md) [b](../README.md#no-such-heading)\n\n<picture>\n"
        '  <source media="(prefers-color-scheme: dark)" srcset="dark.png">\n  <img src="light.png" alt="x">\n</picture>\n')  # fmt: skip
    (tmp_path / "docs" / "forgotten.md").write_text("# Forgotten\n")
    done = built(tmp_path / "site", tmp_path)
    assert done.returncode == 1
    for named in ("nothing.md", "no-such-heading", "docs/dark.png", "docs/light.png", "forgotten.md"):
        assert named in done.stderr, named


def tree(root: Path, text: str = "") -> None:
    """A home page, the list, and a page with this text."""
    (root / "docs").mkdir()
    (root / "README.md").write_text("# Home\n\n## A heading\n")
    (root / "docs" / "page.md").write_text(f"# Page\n\n[good](../README.md#a-heading)\n\n{text}")
    (root / "docs" / "README.md").write_text(
        "# Documentation\n\n> About it.\n\n## Begin\n\n- [Home](../README.md): home.\n- [Page](page.md): a page.\n"
    )
