// Markdown as elements. markdown-it reads it into tokens; elements are made of those here, so no HTML is ever parsed.

import { copyButton, h } from "./dom.js";
import { formula, formulas } from "./formulas.js";
import { highlight } from "./highlighting.js";
import MarkdownIt from "./markdown-it.min.js";
import { picture } from "./pictures.js";

// Marks within one paragraph or cell are looked for up to this length, and blocks up to that one: what is
// larger is shown as the text it is. Reading takes a second for the worst 100,000 characters.
const MOST_INLINE = 20_000;
const MOST_READ = 500_000;

// What is not settled yet is read anew with each piece up to this length; beyond it, when it has grown by a fifth.
// All readings of a growing block together stay linear in its length.
const READ_FREELY = 4_000;
const GROWTH = 6 / 5;

const LINKS = new Set(["http:", "https:", "mailto:"]);
const BLOCKS = new Set(["p", "ul", "ol", "li", "blockquote", "table", "thead", "tbody", "tr", "th", "td", "hr"]);
const DIRECTED = new Set(["p", "ul", "ol", "blockquote", "table", "th", "td", "h2", "h3", "h4", "h5", "h6"]);
const MARKS = { em: "em", strong: "strong", s: "s" };
const LINE = /\r\n?|\n/g;

const reader = new MarkdownIt({ html: false, linkify: true, breaks: true });
// Only what begins with a scheme is a link: main.py and README.md are none.
reader.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
formulas(reader);
reader.core.ruler.at("inline", (state) => {
  for (const token of state.tokens) {
    if (token.type !== "inline") continue;
    if (token.content.length <= MOST_INLINE) state.md.inline.parse(token.content, state.md, state.env, token.children);
    else token.children.push(Object.assign(new state.Token("plain", "", 0), { content: token.content }));
  }
});

/** Draws a text that grows: blocks that are complete are made once, only the last one is made anew. */
export class Growing {
  constructor() {
    this.element = h("div", { class: "prose" });
    this.reset();
  }

  reset() {
    this.element.replaceChildren();
    this.text = "";
    this.ended = false;
    this.settled = 0;
    this.level = 1;
    this.tail = [];
    this.read = 0;
    this.env = {};
  }

  /** Show this text; `ended`: nothing will be added to it. */
  update(text, ended = true) {
    if (text === this.text && ended === this.ended) return;
    // A definition of a link at the end may be for what stands settled before it.
    if (!text.startsWith(this.text) || (ended && this.env.references)) this.reset();
    this.text = text;
    this.ended = ended;
    const rest = text.slice(this.settled);
    if (!ended && rest.length > READ_FREELY && rest.length < this.read * GROWTH) {
      lastText(this.element).appendData(text.slice(this.shown));
      this.shown = text.length;
    } else {
      this.draw(rest, ended);
      // Blanks at the end are not drawn; what comes after them brings them along.
      this.shown = text.trimEnd().length;
    }
  }

  draw(rest, ended) {
    for (const node of this.tail) node.remove();
    const tokens = rest.length > MOST_READ ? plain(rest) : reader.parse(rest, this.env);
    const { at, line } = lastBlock(tokens, rest, ended);
    this.level = append(this.element, tokens.slice(0, at), this.level);
    const before = this.element.childNodes.length;
    append(this.element, tokens.slice(at), this.level);
    this.tail = [...this.element.childNodes].slice(before);
    const settled = offset(rest, line);
    this.settled += settled;
    this.read = rest.length - settled;
  }
}

/** Where the last block begins, as an index of its tokens and as a line: nothing before it can change any more. */
function lastBlock(tokens, text, ended) {
  let last = { at: 0, line: 0 };
  let before = last;
  const whole = ended ? text : text.slice(0, Math.max(text.lastIndexOf("\n"), text.lastIndexOf("\r")) + 1);
  const lines = whole.match(LINE)?.length ?? 0;
  tokens.forEach((token, at) => {
    if (token.level || token.nesting < 0 || !token.map) return;
    before = last;
    last = { at, line: token.map[0] };
  });
  // A line of which only the beginning is here may yet belong to the block before it.
  return last.line < lines ? last : before;
}

function offset(text, line) {
  if (!line) return 0;
  let left = line;
  for (const found of text.matchAll(LINE)) if (!(left -= 1)) return found.index + found[0].length;
  return text.length;
}

function lastText(element) {
  let last = element;
  while (last.lastChild) last = last.lastChild;
  return last.nodeType === Node.TEXT_NODE ? last : last.appendChild(document.createTextNode(""));
}

const plain = (text) => [{ type: "paragraph_open", tag: "p", nesting: 1, level: 0, map: [0, 0] },
  { type: "inline", nesting: 0, level: 1, children: [{ type: "plain", content: text, nesting: 0 }] }, { type: "paragraph_close", nesting: -1, level: 0 }];

// ── elements of tokens ──

/** Put the elements of block tokens into `root`; the level of the last heading, given that of the one before. */
function append(root, tokens, level) {
  const open = [root];
  for (const token of tokens) {
    const into = open.at(-1);
    if (token.nesting < 0) {
      const made = open.pop();
      // Not before: the browser would look for the direction anew with each child.
      if (DIRECTED.has(made.localName)) made.dir = "auto";
    } else if (token.type === "inline") {
      spans(into, token.children);
      task(into);
    } else if (token.type === "fence" || token.type === "code_block") {
      into.append(code(token.content.replace(/\n$/, ""), token.info?.trim().split(/\s+/)[0] ?? ""));
    } else if (token.type === "formula_block") {
      into.append(formula(token.content, true));
    } else if (token.type === "heading_open") {
      const depth = Number(token.tag.slice(1));
      // No level is left out, for those who go from heading to heading by ear.
      level = Math.min(depth + 1, level + 1, 6);
      open.push(into.appendChild(h(`h${level}`, { class: `heading heading-${depth}` })));
    } else if (token.hidden) {
      open.push(into);
    } else if (BLOCKS.has(token.tag)) {
      const made = block(token);
      into.append(token.tag === "table" ? h("div", { class: "prose-table", tabIndex: 0, role: "group", "aria-label": "Table" }, made) : made);
      if (token.nesting) open.push(made);
    }
  }
  return level;
}

function block(token) {
  const given = {};
  if (token.tag === "ol" && token.attrGet("start")) given.start = Number(token.attrGet("start"));
  const align = /^text-align:(left|center|right)$/.exec(token.attrGet?.("style") ?? "")?.[1];
  if (align) given.class = `align-${align}`;
  return h(token.tag, given);
}

function spans(root, tokens) {
  const open = [root];
  for (const token of tokens) {
    const into = open.at(-1);
    if (token.nesting < 0) open.pop();
    else if (token.type === "text" || token.type === "plain") into.append(token.content);
    else if (token.type === "formula") into.append(formula(token.content, false));
    else if (token.type === "softbreak" || token.type === "hardbreak") into.append(h("br"));
    else if (token.type === "code_inline") into.append(h("code", {}, token.content));
    else if (token.type === "image") into.append(picture(token.attrGet("src") ?? "", token.content));
    else if (token.type === "link_open") open.push(into.appendChild(link(token.attrGet("href") ?? "")));
    else if (MARKS[token.tag]) open.push(into.appendChild(h(MARKS[token.tag])));
    else into.append(token.content);
  }
}

/** A link that leaves the page; an address of another kind, or one of this page, is no link. */
function link(href) {
  if (!URL.canParse(href) || !LINKS.has(new URL(href).protocol)) return h("span");
  return h("a", { href, title: href, rel: "noopener noreferrer nofollow", target: "_blank" });
}

/** A list's item that begins with [ ] or [x]. */
function task(into) {
  const item = into.tagName === "LI" ? into : into.parentElement;
  const first = into.firstChild;
  if (item?.tagName !== "LI" || item.querySelector("input") || first?.nodeType !== Node.TEXT_NODE || (into !== item && into !== item.firstChild)) return;
  const mark = /^\[([ xX])\] /.exec(first.data);
  if (!mark) return;
  first.deleteData(0, mark[0].length);
  const done = mark[1] !== " ";
  item.classList.add("task");
  into.prepend(h("input", { type: "checkbox", disabled: true, checked: done, "aria-label": done ? "done" : "to do" }));
}

function code(text, language) {
  const shown = h("code", {}, text);
  const name = language.slice(0, 40);
  highlight(shown, name);
  return h("figure", { class: "code", dir: "ltr" },
    h("figcaption", { class: "code-head" }, h("span", {}, name), copyButton("Copy code", () => shown.textContent)),
    h("pre", { tabIndex: 0, "aria-label": name ? `Code in ${name}` : "Code" }, shown));
}
