// Formulas: $…$ and \(…\) in a line, $$…$$ and \[…\] as blocks. The library that draws them comes with the first one.

import { h } from "./dom.js";
import { later } from "./idle.js";

// What is longer is no formula: its end is not looked for beyond that.
const MOST = 2000;

let library = null;

/** Teach a reader of Markdown what formulas are. */
export function formulas(reader) {
  reader.inline.ruler.before("escape", "formula", inline);
  reader.block.ruler.before("fence", "formula", block, { alt: ["paragraph", "blockquote", "list"] });
}

/** The element of a formula: its text until it is drawn. */
export function formula(tex, inBlock) {
  const made = h("span", { class: inBlock ? "formula formula-block" : "formula", dir: "ltr" }, tex);
  // What is not in the page by then was replaced by a longer text.
  setTimeout(async () => {
    if (!made.isConnected) return;
    const { draw } = await (library ??= import("./math.min.js"));
    later(() => {
      if (!made.isConnected) return;
      made.replaceChildren();
      draw(tex, made, inBlock);
    });
  }, 0);
  return made;
}

function inline(state, silent) {
  const { src, pos, posMax } = state;
  const found = src.startsWith("\\(", pos) ? between(src, pos, posMax, "\\(", "\\)") : src[pos] === "$" ? dollars(src, pos, posMax) : null;
  if (!found) return false;
  if (!silent) state.push("formula", "", 0).content = found.tex;
  state.pos = found.end;
  return true;
}

function between(src, pos, most, open, close) {
  const from = pos + open.length;
  const to = src.slice(from, Math.min(most, from + MOST)).indexOf(close);
  const tex = to > 0 ? src.slice(from, from + to).trim() : "";
  return tex ? { tex, end: from + to + close.length } : null;
}

/** As pandoc has it, so that prices stay prices: no blank behind the first one or before the last one, no digit behind that. No code in it. */
function dollars(src, pos, most) {
  if (src.startsWith("$$", pos)) return between(src, pos, most, "$$", "$$");
  if (/\s/.test(src[pos + 1] ?? " ")) return null;
  const end = Math.min(most, pos + MOST);
  for (let at = pos + 1; at < end; at += 1) {
    if (src[at] === "\\") at += 1;
    else if (src[at] === "`") return null;
    else if (src[at] === "$") {
      const closes = at > pos + 1 && !/\s/.test(src[at - 1]) && !/\d/.test(src[at + 1] ?? "");
      return closes ? { tex: src.slice(pos + 1, at), end: at + 1 } : null;
    }
  }
  return null;
}

function block(state, begin, last, silent) {
  const start = state.bMarks[begin] + state.tShift[begin];
  const open = state.src.slice(start, start + 2);
  const close = { $$: "$$", "\\[": "\\]" }[open];
  if (!close || state.sCount[begin] - state.blkIndent >= 4) return false;
  let text = "";
  for (let line = begin; line < last && text.length < MOST; line += 1) {
    const from = line === begin ? start + 2 : state.bMarks[line] + Math.min(state.tShift[line], state.blkIndent);
    const words = state.src.slice(from, state.eMarks[line]).trimEnd();
    if (words.endsWith(close)) {
      text += words.slice(0, -close.length);
      if (!text.trim() || text.includes(close)) return false;
      if (silent) return true;
      const token = state.push("formula_block", "", 0);
      token.content = text.trim();
      token.map = [begin, line + 1];
      state.line = line + 1;
      return true;
    }
    text += `${words}\n`;
  }
  return false;
}
