"""The console's files, and what protects whoever opens them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from turnstream.api import operators

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack

once = pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)

FOLDER = Path(next(iter(operators.__path__))) / "static"
VENDORED = FOLDER / "markdown-it.min.js"
# Built of libraries, which name addresses in comments and data that nobody asks for.
BUILT = ("highlight.min.js", "math.min.js")
# What stands in a library and is none of what the page can call: highlight.js's own way to mark a whole page.
UNREACHED = {"highlight.min.js": ["innerHTML"] * 2}


@once
async def test_the_page_is_served_with_a_strict_policy(client: Client) -> None:
    """Its own files only, no frames, no forms elsewhere, no inline scripts; needs no key."""
    moved = await client.http.get("/console", headers={"Authorization": ""})
    assert (moved.status_code, moved.headers["location"]) == (307, "console/")
    for name in ["", *(each.name for each in FOLDER.iterdir())]:
        answer = await client.http.get(f"/console/{name}", headers={"Authorization": ""})
        assert answer.status_code == 200, name
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = await client.http.get(f"/console/{name}", headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for name in ("../app.py", "..%2fapp.py", "nothing.js", "console.py"):
        assert (await client.http.get(f"/console/{name}")).status_code == 404, name


def test_the_page_parses_no_text_as_html_and_asks_nobody_else() -> None:
    """No sink for HTML or code in any script, nothing inline in the page, no address of another host."""
    sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser|createContextualFragment|setHTML|srcdoc"
    for path in FOLDER.glob("*.js"):
        text = path.read_text()
        assert re.findall(sinks, text) == UNREACHED.get(path.name, []), path.name
        if path != VENDORED and path.name not in BUILT:
            assert not re.search(r"https?://(?!www\.w3\.org/2000/svg|127\.0\.0\.1:8090)", text), path.name
    page = (FOLDER / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|https?://", page)


def test_the_library_is_the_one_that_its_licence_names() -> None:
    """Its version and digest stand beside it, with the licences of all that it holds."""
    licence = (FOLDER / "markdown-it.licence.txt").read_text()
    assert f"sha256 {hashlib.sha256(VENDORED.read_bytes()).hexdigest()}" in licence
    version = re.match(r"/\*! markdown-it (\S+) ", VENDORED.read_text())
    assert version
    assert f"of markdown-it {version[1]}, unchanged" in licence


def test_every_library_has_its_licence_beside_it() -> None:
    """It names the versions that the lock pins."""
    root = Path(__file__).parents[4] / "clients" / "js"
    lock = json.loads((root / "package-lock.json").read_text())["packages"]
    for name, libraries in (("highlight", ("lowlight", "highlight.js", "devlop")), ("math", ("temml",))):
        licence = (FOLDER / f"{name}.licence.txt").read_text()
        for library in libraries:
            assert f"- {library} {lock[f'node_modules/{library}']['version']}\n" in licence
            assert f"---- {library} ----\n" in licence


@once
async def test_a_key_is_told_what_it_is_for(client: Client, stack: Stack) -> None:
    """Owner, agent, scopes and the largest message of one's own key; nothing without a valid one."""
    answer = await client.http.get("/console/key")
    most = stack.settings().max_image_body
    assert answer.json() == {
        "owner": "dev",
        "agent": "demo",
        "scopes": ["chat"],
        "largest_message": most,
        "attachments": ["image", "audio", "video", "file"],
    }
    operator = stack.client(client.base_url, stack.admin)
    assert (await operator.http.get("/console/key")).json() == {
        "owner": "admin",
        "agent": "",
        "scopes": ["admin"],
    }
    stranger = stack.client(client.base_url, "sk-00000000000000000000000000000000")
    assert (await stranger.http.get("/console/key")).status_code == 401
