// A small part of Markdown as elements: what models write most. Everything else stays the text it is.

import { h } from "./dom.js";

const FENCE = /^ {0,3}(```|~~~)\s*([\w+#.-]*)/;
const INLINE = /(`+)([^`].*?)\1|\*\*(?=\S)(.+?)\*\*|(?<![\w*])\*(?=[^\s*])(.+?)\*(?!\w)/s;

/** Draws a text that grows: what is settled is made once, only its end is made anew. */
export class Growing {
  constructor() {
    this.element = h("div", { class: "prose" });
    this.settled = 0;
    this.tail = [];
  }

  update(text) {
    const at = settledTo(text);
    for (const node of this.tail) node.remove();
    if (at < this.settled) {
      this.element.replaceChildren();
      this.settled = 0;
    }
    if (at > this.settled) {
      this.element.append(...blocks(text.slice(this.settled, at)));
      this.settled = at;
    }
    this.tail = blocks(text.slice(at));
    this.element.append(...this.tail);
  }
}

/** Up to where nothing can change any more: an empty line outside of a fenced block. */
function settledTo(text) {
  let fence = "";
  let at = 0;
  let settled = 0;
  for (const line of text.split(/(?<=\n)/)) {
    const mark = FENCE.exec(line)?.[1];
    if (mark && (!fence || mark === fence)) fence = fence ? "" : mark;
    at += line.length;
    if (!fence && line === "\n") settled = at;
  }
  return settled;
}

function blocks(text) {
  const made = [];
  const lines = text.split("\n");
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    if (fence) {
      const code = [];
      at += 1;
      while (at < lines.length && !lines[at].trim().startsWith(fence[1])) code.push(lines[at++]);
      at += 1;
      made.push(h("pre", { tabIndex: 0 }, h("code", {}, code.join("\n"))));
    } else if (!line.trim()) {
      at += 1;
    } else if (/^#{1,6}\s/.test(line)) {
      made.push(h("p", { class: "heading" }, ...spans(line.replace(/^#+\s+/, ""))));
      at += 1;
    } else if (isItem(line)) {
      const ordered = /^\s*\d/.test(line);
      const items = [];
      const start = ordered ? Number.parseInt(line, 10) : undefined;
      while (at < lines.length && lines[at].trim() && (isItem(lines[at]) || items.length)) {
        if (isItem(lines[at])) items.push(lines[at].replace(/^\s*(?:[-*+]|\d{1,9}[.)])\s+/, ""));
        else items[items.length - 1] += `\n${lines[at].trim()}`;
        at += 1;
      }
      made.push(h(ordered ? "ol" : "ul", ordered ? { start } : {}, ...items.map((item) => h("li", {}, ...spans(item)))));
    } else {
      const paragraph = [];
      while (at < lines.length && lines[at].trim() && !FENCE.test(lines[at]) && !/^#{1,6}\s/.test(lines[at]) && !(paragraph.length === 0 && isItem(lines[at]))) {
        if (paragraph.length && isItem(lines[at])) break;
        paragraph.push(lines[at++]);
      }
      made.push(h("p", {}, ...spans(paragraph.join("\n"))));
    }
  }
  return made;
}

const isItem = (line) => /^\s*(?:[-*+]|\d{1,9}[.)])\s+\S/.test(line);

function spans(text) {
  const made = [];
  let rest = text;
  for (;;) {
    const found = INLINE.exec(rest);
    if (!found) break;
    if (found.index) made.push(rest.slice(0, found.index));
    const [whole, , code, bold, italic] = found;
    if (code !== undefined) made.push(h("code", {}, code));
    else if (bold !== undefined) made.push(h("strong", {}, ...spans(bold)));
    else made.push(h("em", {}, ...spans(italic)));
    rest = rest.slice(found.index + whole.length);
  }
  if (rest) made.push(rest);
  return made;
}
