# ruff: noqa: INP001 - the documentation is no package
"""The documentation as a website: ``python -m docs.website [FOLDER [ROOT]]``, by default into ``build/docs``.

The pages are the Markdown files as they are, at the addresses that they have in the repository, so that one link is right here
and there. docs/README.md lists them: its sections are the site's navigation and its ``llms.txt``. Any warning fails the build: a
link to a page, heading, file or picture that is not there, or a page that the list leaves out.

With TURNSTREAM_DOCS_URL, the address where the site will be, pages name it as canonical and ``llms.txt`` has whole addresses.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from docutils import nodes
from pygments.lexer import RegexLexer, bygroups, using
from pygments.lexers.data import JsonLexer
from pygments.token import Name, Operator, String, Text
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from turnstream.shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
LIST = "docs/README"
HOME = "README"
# llmstxt.org: what the section of this name lists may be left out where a shorter context is needed.
OPTIONAL = {"Internals": "Optional"}


@dataclass(frozen=True)
class Page:
    """A line of the list: a Markdown file, from the repository's root and without its suffix, and what it is about."""

    name: str
    title: str
    about: str


class _Picture(HTMLParser):
    """The two files of a ``<picture>`` element: for light pages, with its attributes, and for dark ones."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.light: dict[str, str] = {}
        self.dark = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what the two tags name."""
        given = {name: value or "" for name, value in attrs}
        if tag == "img":
            self.light = given
        elif tag == "source" and given.get("media") == "(prefers-color-scheme: dark)":
            self.dark = given["srcset"]


class Pictures(SphinxTransform):
    """Makes images of ``<picture>`` elements, which the builder copies, misses, and switches with the page's colours."""

    default_priority = 200

    def apply(self, **_kwargs: Any) -> None:
        """Replace the elements of one page."""
        for raw in list(self.document.findall(nodes.raw)):
            if raw.astext().lstrip().startswith("<picture>"):
                raw.replace_self(list(self._images(_Picture(raw.astext()))))

    def _images(self, picture: _Picture) -> Iterator[nodes.image]:
        for uri, theme in ((picture.light["src"], "only-light"), (picture.dark, "only-dark")):
            image = nodes.image(uri=uri, alt=picture.light["alt"], classes=[theme])
            if "width" in picture.light:
                image["width"] = f"{picture.light['width']}px"
            yield image


class Requests(RegexLexer):
    """Colours requests as the pages have them: without a version, and with JSON after the empty line."""

    tokens = {  # noqa: RUF012 - as all lexers have it
        "root": [
            (r"([A-Z]+)( +)(\S+)", bygroups(Name.Function, Text, Name.Namespace)),
            (r"([\w-]+)(:)(.*)", bygroups(Name.Attribute, Operator, String)),
            (r"\n\n", Text, "body"),
            (r"\n", Text),
        ],
        "body": [(r"(.|\n)+", using(JsonLexer))],
    }


class Website:
    """The site of the pages below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sections = self._sections()
        self.pages = [LIST, *(page.name for pages in self.sections.values() for page in pages)]

    def build(self, folder: Path) -> int:
        """Build it into this folder, which is emptied first; 0, or 1 after any warning."""
        shutil.rmtree(folder, ignore_errors=True)
        url = os.environ.get("TURNSTREAM_DOCS_URL", "")
        app = Sphinx(
            srcdir=self.root, confdir=None, outdir=folder, doctreedir=folder / ".doctrees", buildername="html",
            warningiserror=True, status=None,
            confoverrides={
                "project": "Turnstream", "release": VERSION, "html_title": f"Turnstream {VERSION}",
                "extensions": ["myst_parser"], "root_doc": HOME,
                # All that might be a page: what the list leaves out is a warning. protocol.in.md becomes protocol.md.
                "include_patterns": [*(f"{name}.md" for name in self.pages), "docs/*.md"],
                "exclude_patterns": ["docs/*.in.md"],
                "html_baseurl": url and url.rstrip("/") + "/",
                "html_theme": "furo", "html_show_sphinx": False, "html_show_copyright": False,
                "html_copy_source": False, "html_use_index": False,
                "highlight_language": "text", "smartquotes": False,
                # As forges read Markdown: their addresses of headings, and no syntax that they do not know, but for the
                # directive of the navigation.
                "myst_heading_anchors": 6,
                "myst_disable_syntax": ["myst_role", "myst_line_comment", "myst_block_break", "myst_target"],
            },
        )  # fmt: skip
        app.connect("source-read", self._navigate)
        app.connect("build-finished", self._write_beside)
        app.add_transform(Pictures)
        app.add_lexer("http", Requests)
        app.build(force_all=True)
        shutil.rmtree(folder / ".doctrees")
        return app.statuscode

    def _sections(self) -> dict[str, list[Page]]:
        """The lines of docs/README.md by section, in its order."""
        read: dict[str, list[Page]] = {}
        for line in (self.root / f"{LIST}.md").read_text().splitlines():
            if line.startswith("## "):
                read[line[3:]] = []
            elif found := re.fullmatch(r"- \[(.+)\]\((.+)\.md\): (.+)", line):
                title, target, about = found.groups()
                path = os.path.normpath(PurePosixPath(LIST).parent / target)
                read[list(read)[-1]].append(Page(path, title, about))
        return read

    def _navigate(self, _app: Sphinx, docname: str, source: list[str]) -> None:
        """Append the navigation to the home page, whose text on a forge has none."""
        if docname != HOME:
            return
        for section, pages in self.sections.items():
            lines = [f"{page.title} <{'self' if page.name == HOME else f'/{page.name}'}>" for page in pages]
            if HOME in (page.name for page in pages):
                lines.append(f"All pages </{LIST}>")
            source[0] += "\n".join(
                ["\n```{toctree}", ":hidden:", f":caption: {section}", "", *lines, "```\n"]
            )

    def _write_beside(self, app: Sphinx, exception: Exception | None) -> None:
        """What the builder does not write: index.html, each page's Markdown, llms.txt, llms-full.txt."""
        if exception is not None:
            return
        site = Path(app.outdir)
        # In the same folder, so that its links are right in both.
        shutil.copyfile(site / f"{HOME}.html", site / "index.html")
        for name in self.pages:
            shutil.copyfile(self.root / f"{name}.md", site / f"{name}.md")
        head = (self.root / f"{LIST}.md").read_text().partition("\n## ")[0]
        opening = f"# Turnstream {VERSION}\n\n" + "\n".join(re.findall(r"^>.*", head, re.MULTILINE))
        listed, whole = [opening], [opening]
        for section, pages in self.sections.items():
            lines = [
                f"- [{page.title}]({app.config.html_baseurl}{page.name}.md): {page.about}" for page in pages
            ]
            listed.append("\n".join([f"## {OPTIONAL.get(section, section)}", "", *lines]))
            if section not in OPTIONAL:
                texts = {page.name: (self.root / f"{page.name}.md").read_text().strip() for page in pages}
                whole += [f"<!-- {name}.md -->\n\n{text}" for name, text in texts.items()]
        (site / "llms.txt").write_text("\n\n".join(listed) + "\n")
        (site / "llms-full.txt").write_text("\n\n".join(whole) + "\n")


if __name__ == "__main__":
    given = [Path(each) for each in sys.argv[1:]]
    target = given[0] if given else ROOT / "build" / "docs"
    status = Website(given[1] if len(given) > 1 else ROOT).build(target)
    print(target / "index.html" if status == 0 else "The site is not right: see the warnings above.")  # noqa: T201
    sys.exit(status)
