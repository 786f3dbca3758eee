"""What agents write as Markdown, as the console draws it; and what becomes of text that means harm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

from tests.browser.conftest import PATIENCE_MS

if TYPE_CHECKING:
    from playwright.async_api import Locator

    from tests.browser.conftest import Console

pytestmark = pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)

# Draws a text as it would come from a server, and tells what became of it.
DRAWN = """async ([text, step]) => {
    const { Growing } = await import('./markdown.js');
    const growing = new Growing();
    if (step) for (let at = 0; at < text.length; at += step) growing.update(text.slice(0, at), false);
    growing.update(text);
    return growing.element.innerHTML;
}"""

DOCUMENT = """# Title

Some *emphasis*, **weight**, ~~gone~~, `code` and [a link](https://docs.example/a?b=c "t"), https://bare.example/x.
A second line.

1. First
   - nested
   - nested two
     - deeper
2. Second

   with a paragraph
10) other

- [ ] to do
- [x] done

> quoted
> > twice

| left | right |
|:-----|------:|
| a | **1** |
| `b` | 2 |

---

```python
def f():
    return "<b>"

# no heading
```

    indented

Setext
======
### Third

[reference] and main.py

[reference]: https://reference.example/
"""

HARM = """<script>document.title = "pwned"</script> <img src=x onerror="document.title='pwned'">
<svg onload=alert(1)><style>body{display:none}</style><form action=https://evil.example><input name=q></form>
<a href="javascript:alert(1)" id=said name=said>x</a> <iframe srcdoc="x"></iframe> <math><mtext><base href=//evil.example>

[script](javascript:alert(1)) [SCRIPT](JaVaScRiPt:alert(1)) [entity](&#106;avascript:alert(1)) [tab](java&#9;script:alert(1))
[vb](vbscript:x) [data](data:text/html,<script>alert(1)</script>) [blob](blob:https://x/1) [file](file:///etc/passwd)
[relative](../admin/v1/keys) [rooted](/admin/v1/keys) [slashes](//evil.example/x) [hash](#operate)
<javascript:alert(1)> <data:text/html,x> ![x](javascript:alert(1)) ![x](data:image/svg+xml,<svg/onload=alert(1)>)
![" onerror="alert(1)](https://pictures.invalid/x.png "\\" onload=\\"alert(1)")
[title](https://evil.example/ "\\" onmouseover=\\"alert(1)") [quote](https://evil.example/\\"onmouseover=alert(1))

```"><img/src=x/onerror=alert(1)>
</code></pre><script>document.title = "pwned"</script>
```

| <b id=composer> | "><script>1</script> |
|:-:|--:|
| <style>*{}</style> | [x](javascript:1) |
"""

# Texts that take readers of Markdown more than linear time, if any do.
HEAVY = {
    "stars": " *a",
    "stars in words": "*a**a",
    "underscores": "_a __b ",
    "tildes": "~~a ",
    "backticks": "`",
    "backticks apart": " `a``b",
    "brackets": "[",
    "links": "[a](",
    "links in angles": "[a](<b",
    "images": "![[]()",
    "angles": "<a ",
    "entities": "&a",
    "addresses": "http://",
    "quotes": "> ",
    "lists": "- ",
    "items": "- a\n",
    "numbers": "1. a\n   ",
    "rows": "a|b\n-|-\n",
    "columns": "|-",
    "fences": "```\n",
    "headings": "a\n=\n",
    "definitions": "[a]: b\n",
    "backslashes": "\\",
}


# Four times as much takes four times as long in linear time, sixteen times in quadratic. What the machine does besides
# is not the same each time.
FEW = 30_000
MOST_GROWTH = 8
NOISE_SECONDS = 1.0
TRIES = 4


async def drawn(console: Console, text: str, step: int = 0) -> str:
    """The elements that a text is drawn as, coming in pieces of so many characters."""
    told: str = await console.page.evaluate(DRAWN, [text, step])
    return told


async def answer(console: Console, text: str) -> Locator:
    """Have the agent say something; how that is shown."""
    turn = await console.say(f"hi\n\n{text}")
    await console.ended(turn)
    return turn.locator(".answer .prose")


async def test_markdown_is_drawn_as_what_it_means(console: Console) -> None:
    """Lists within lists keep their numbers; tables, quotes, rules, links, code and headings are what they are."""
    prose = await answer(console, DOCUMENT)
    outer = prose.locator("> ol").first
    await expect(outer.locator("> li")).to_have_count(2)
    await expect(outer.locator("> li").first.locator("> ul > li")).to_have_count(2)
    await expect(outer.locator("> li").first.locator("> ul > li > ul > li")).to_have_text("deeper")
    await expect(outer.locator("> li").nth(1)).to_contain_text("with a paragraph")
    await expect(prose.locator("> ol").nth(1)).to_have_attribute("start", "10")
    boxes = prose.get_by_role("checkbox")
    assert [await boxes.nth(at).is_checked() for at in range(2)] == [False, True]
    await expect(prose.locator("blockquote blockquote")).to_have_text("twice")
    await expect(prose.get_by_role("cell")).to_have_text(["a", "1", "b", "2"])
    await expect(prose.get_by_role("columnheader")).to_have_text(["left", "right"])
    await expect(prose.locator("hr")).to_have_count(1)
    await expect(prose.locator("s")).to_have_text("gone")
    await expect(prose.get_by_role("heading")).to_have_text(["Title", "Setext", "Third"])
    sizes = [
        await prose.get_by_role("heading").nth(at).evaluate("e => getComputedStyle(e).fontSize")
        for at in (0, 2)
    ]
    assert float(sizes[0][:-2]) > float(sizes[1][:-2])
    links = prose.get_by_role("link")
    hrefs = [await links.nth(at).get_attribute("href") for at in range(await links.count())]
    assert hrefs == ["https://docs.example/a?b=c", "https://bare.example/x", "https://reference.example/"]
    for at in range(3):
        assert "noopener" in str(await links.nth(at).get_attribute("rel"))
        assert await links.nth(at).get_attribute("target") == "_blank"
    await expect(prose.locator(".code").first).to_contain_text("python")
    await expect(prose.locator(".code pre").first).to_have_text('def f():\n    return "<b>"\n\n# no heading')
    await console.picture("markdown")


async def test_code_and_answers_are_copied(console: Console) -> None:
    """The button of a block copies its code, that of an answer the Markdown that it was written in."""
    page = console.page
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await answer(console, "```sh\nmake serve\nmake test\n```\n\nand *more*")
    copied = "navigator.clipboard.readText()"
    await page.get_by_role("button", name="Copy code").click()
    await expect(page.get_by_role("button", name="Copied")).to_have_count(1)
    assert await page.evaluate(copied) == "make serve\nmake test"
    await page.get_by_role("button", name="Copy answer").click()
    await expect(page.get_by_role("button", name="Copy answer")).to_have_count(0)
    assert await page.evaluate(copied) == "You said: hi\n\n```sh\nmake serve\nmake test\n```\n\nand *more*"


@pytest.mark.parametrize("step", [1, 7, 64])
async def test_a_growing_text_ends_as_the_whole_one(console: Console, step: int) -> None:
    """However it comes in pieces, what stands in the end is what the whole text is drawn as."""
    for text in (
        DOCUMENT,
        HARM,
        DOCUMENT.replace("\n", "\r\n"),
        "1) a\n\n2) b\n",
        "a | b\n--|--\n",
        (DOCUMENT * 20)[:9000],
    ):
        assert await drawn(console, text, step) == await drawn(console, text)


async def test_words_stay_apart_while_a_text_grows(console: Console) -> None:
    """Also where the last piece ended with a blank, and what follows is not read yet."""
    words = [f"word{number} " for number in range(2000)]
    told: list[str] = await console.page.evaluate(
        """async (words) => {
            const { Growing } = await import('./markdown.js');
            const growing = new Growing();
            let text = '';
            return words.map((word) => { growing.update(text += word, false); return growing.element.textContent; });
        }""",
        words,
    )
    assert [text.rstrip() for text in told] == ["".join(words[: at + 1]).rstrip() for at in range(len(words))]


async def test_harm_stays_text(console: Console) -> None:
    """No element, attribute, address or name comes of what an agent says but those that Markdown has."""
    page = console.page
    prose = await answer(console, HARM)
    await page.get_by_role("button", name="Load image from pictures.invalid").wait_for()
    told: dict[str, Any] = await prose.evaluate(
        """root => {
            const all = [...root.querySelectorAll('*')];
            return {
                tags: [...new Set(all.map((each) => each.tagName.toLowerCase()))],
                names: [...new Set(all.flatMap((each) => each.getAttributeNames()))],
                links: all.filter((each) => each.href).map((each) => each.href),
                sources: all.filter((each) => each.src).map((each) => each.src),
            };
        }"""
    )
    assert not set(told["tags"]) & {
        "script",
        "style",
        "form",
        "iframe",
        "base",
        "object",
        "embed",
        "math",
        "meta",
        "img",
    }
    harmless = {
        "class",
        "dir",
        "href",
        "title",
        "rel",
        "target",
        "tabindex",
        "role",
        "aria-label",
        "aria-hidden",
        "type",
    }
    drawing = {"viewBox", "x", "y", "width", "height", "rx", "d"}
    assert set(told["names"]) <= harmless | drawing
    assert told["sources"] == []
    assert {link.split("/")[2] for link in told["links"]} == {"evil.example"}
    assert all(link.startswith("https://") for link in told["links"])
    assert "pwned" not in await page.title()
    for text in (HARM, HARM.replace("\n", " "), *(f"{line}\n\n{line}" for line in HARM.splitlines())):
        assert "<script" not in (await drawn(console, text)).lower()


async def seconds(console: Console, text: str, step: int) -> float:
    """How long drawing a text takes, coming in pieces of so many characters."""
    took: float = await console.page.evaluate(
        f"async (given) => {{ const begun = performance.now(); await ({DRAWN})(given); return performance.now() - begun; }}",
        [text, step],
    )
    return took / 1000


@pytest.mark.parametrize("step", [0, 500])
async def test_drawing_takes_linear_time(console: Console, step: int) -> None:
    """Four times as much of whatever is hard to read takes about four times as long, at once and in pieces."""
    for name, piece in HEAVY.items():
        few, many = (piece * (characters // len(piece)) for characters in (FEW, 4 * FEW))
        for tried in range(1, TRIES + 1):
            short, long = await seconds(console, few, step), await seconds(console, many, step)
            if long <= MOST_GROWTH * short + NOISE_SECONDS:
                break
            assert tried < TRIES, f"{name}: {len(few)} characters {short:.2f} s, {len(many)} {long:.2f} s"


async def test_what_is_too_large_to_be_read_is_shown_as_it_is(console: Console) -> None:
    """A paragraph, and a text without an end to its first block: what stands there is the same, without marks."""
    within, beyond = "*a* " * 4_900, "*a* " * 5_100
    assert (await drawn(console, within)).count("<em>") == 4_900
    assert await drawn(console, beyond) == f'<p dir="auto">{beyond.strip()}</p>'
    assert (await drawn(console, f"{beyond}\n\n*a*")).count("<em>") == 1
    lines = "- *a*\n" * 90_000
    assert await drawn(console, lines) == f'<p dir="auto">{lines}</p>'


FENCE = "```"


async def test_code_is_marked_by_its_language(console: Console) -> None:
    """Its text stays what it was, also where no language is named or known; the library comes with the first one."""
    page = console.page
    await console.ended(await console.say("no code"))
    assert not any("highlight.min.js" in each.url for each in console.requests)
    python = 'def add(a: int) -> int:\n    return a + 1  # "one"'
    turn = await console.say(
        f"Look:\n\n{FENCE}python\n{python}\n{FENCE}\n\n{FENCE}nonsense\ndef x\n{FENCE}\n\n{FENCE}\ndef y\n{FENCE}"
    )
    await console.ended(turn)
    code = turn.locator(".answer .code code")
    await expect(code.first.locator(".hljs-keyword")).to_have_text(["def", "return"], timeout=PATIENCE_MS)
    await expect(code.first.locator(".hljs-comment")).to_have_text('# "one"')
    assert await code.first.evaluate("each => each.textContent") == python
    assert await code.nth(1).evaluate("each => each.childElementCount") == 0
    hostile = await console.say(f"Look:\n\n{FENCE}html\n<img src=x onerror=1><script>1</script>\n{FENCE}")
    await console.ended(hostile)
    await expect(hostile.locator(".hljs-tag").first).to_be_visible(timeout=PATIENCE_MS)
    await expect(page.locator("#log img, #log script")).to_have_count(0)
    await console.axe("code")


async def test_formulas_are_drawn_and_prices_are_not(console: Console) -> None:
    """In a line and as blocks; what leads elsewhere is not followed; what is wrong is shown as it is."""
    page = console.page
    text = (
        "Inline $e^{i\\pi}$ and \\(a_1\\) cost $5 and $6, `$x$` is code.\n\n$$\n\\frac{1}{2}\n$$\n\n\\[ x^2 \\]\n\n"
        "- in a list $y$\n\nan open $end"
    )
    turn = await console.say(text)
    await console.ended(turn)
    answer = turn.locator(".answer")
    await expect(answer.locator("math")).to_have_count(5, timeout=PATIENCE_MS)
    await expect(answer.locator(".formula-block mfrac")).to_have_count(1)
    await console.sees(answer, "cost $5 and $6")
    await console.sees(answer.locator("p > code"), "$x$")
    await console.sees(answer, "an open $end")
    await console.axe("formulas")
    hostile = (
        "$\\href{javascript:alert(1)}{x}$ $\\includegraphics{https://pictures.invalid/a.png}$ $\\wrong{$"
    )
    turn = await console.say(hostile)
    await console.ended(turn)
    await expect(turn.locator(".answer math, .answer .temml-error").first).to_be_visible(timeout=PATIENCE_MS)
    await expect(page.locator("#log a[href^=javascript], #log img, #log mglyph, #log [href]")).to_have_count(
        0
    )
