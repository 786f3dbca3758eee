// Code in colours. The library comes with the first code whose language is named.

import { h } from "./dom.js";
import { later } from "./idle.js";

// What is longer stays as it is: to mark 20,000 characters takes some 10 ms.
const MOST = 20_000;
// Text that grows is marked when it pauses.
const PAUSE_MS = 200;

let library = null;

/** Mark the parts of a code element's text, unless it is replaced before. */
export function highlight(element, language) {
  if (!language || element.textContent.length > MOST) return;
  setTimeout(() => { if (element.isConnected) mark(element, language.toLowerCase()); }, PAUSE_MS);
}

async function mark(element, language) {
  const { partsOf } = await (library ??= import("./highlight.min.js"));
  later(() => {
    if (!element.isConnected || element.childElementCount) return;
    const tree = partsOf(language, element.textContent);
    if (tree) element.replaceChildren(...tree.children.map(drawn));
  });
}

const drawn = (part) => (part.type === "text" ? part.value : h("span", { class: part.properties.className.join(" ") }, ...part.children.map(drawn)));
