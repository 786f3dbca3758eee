// Tables of the operator's side: rows that become cards on a phone.

import { h, svg } from "./dom.js";

export function table(heads, body, caption) {
  const cells = heads.map((head) => (head instanceof Node ? head : head ? h("th", { scope: "col" }, head) : h("td")));
  return h("table", {}, h("caption", { class: "hidden-text" }, caption), h("thead", {}, h("tr", {}, ...cells)), body);
}

export function row(labels, values) {
  return h("tr", {}, ...values.map((value, at) => {
    const cell = h("td", {}, value ?? "");
    if (labels[at]) cell.dataset.label = labels[at];
    return cell;
  }));
}

/** A state with its colour. */
export function mark(words, status) {
  const made = h("span", { class: "status" }, words);
  made.dataset.status = status;
  return made;
}

/** A part of a region that scrolls sideways where it must. */
export const wrap = (labelled, ...children) => h("div", { class: "table-wrap", tabIndex: 0, role: "region", "aria-labelledby": labelled }, ...children);

export const head = (id, title, ...more) => h("div", { class: "section-head" }, h("h2", { id }, title), ...more);

export const moment = (seconds) => new Date(seconds * 1000).toLocaleString();

export const isLive = (task) => ["queued", "running", "parked"].includes(task.status);

/** A bar from one share of the width to another. */
export function bar(kind, from, to) {
  const width = Math.max(3, (to - from) * 1000);
  return svg("svg", { class: "bar-line", viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: `span-${kind}`, x: Math.min(from * 1000, 997), y: 1, width, height: 8 }));
}
