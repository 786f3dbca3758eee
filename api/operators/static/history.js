// Turns over time by agent, owner, worker or error. Made of the list of tasks, so a reload loses nothing.

import { duration, h, say, svg } from "./dom.js";
import { head, row, table, wrap } from "./tables.js";

const BY = { agent: "agent", owner: "owner", worker: "worker", why: "error" };
const RANGES = { 3600: "the last hour", 86400: "the last day", 604800: "the last week" };
const COLUMNS = ["Name", "Turns", "Failed", "Half took up to", "95 % took up to", ""];

const EVERY_MS = 30_000;
const PAGE = 200;
const MOST_PAGES = 5;
const MOST_ROWS = 12;
const BARS = 48;

export class History {
  /** @param {(path: string, query: object) => Promise<any>} get */
  constructor(get) {
    this.get = get;
    this.by = h("select", { id: "history-by" }, ...Object.entries(BY).map(([value, words]) => h("option", { value }, words)));
    this.range = h("select", { id: "history-range" }, ...Object.entries(RANGES).map(([value, words]) => h("option", { value }, words)));
    this.body = h("tbody");
    this.words = h("p", { class: "note empty" }, "No turns.");
    this.tasks = [];
    this.at = 0;
    this.by.addEventListener("change", () => this.show());
    this.range.addEventListener("change", () => { this.at = 0; this.tend(); });
  }

  elements() {
    return [
      head("history-title", "Turns over time", h("div", { class: "row" },
        h("label", { class: "inline" }, h("span", {}, "By"), this.by), h("label", { class: "inline" }, h("span", {}, "In"), this.range))),
      wrap("history-title", table(COLUMNS, this.body, "Turns over time"), this.words),
    ];
  }

  /** Load what is due. */
  async tend() {
    if (Date.now() - this.at < EVERY_MS) return;
    this.at = Date.now();
    const range = this.range.value;
    const found = [];
    let cursor = "";
    for (let pages = 0; pages < MOST_PAGES && cursor !== null; pages += 1) {
      const page = await this.get("tasks", { younger_than: range, limit: PAGE, cursor });
      found.push(...page.tasks);
      cursor = page.next;
    }
    if (range !== this.range.value) return;
    this.tasks = found;
    this.until = Date.now() / 1000;
    // Of more than that the newest: what is older has no bars.
    this.whole = cursor === null;
    this.show();
  }

  show() {
    const groups = new Map();
    for (const task of this.tasks) {
      const name = task[this.by.value];
      if (name) groups.set(name, [...(groups.get(name) ?? []), task]);
    }
    const largest = [...groups].sort(([, one], [, other]) => other.length - one.length).slice(0, MOST_ROWS);
    const from = this.until - Number(this.range.value);
    this.body.replaceChildren(...largest.map(([name, tasks]) => row(COLUMNS, [
      name, String(tasks.length), String(tasks.filter((task) => task.status === "failed").length), duration(share(tasks, 0.5)), duration(share(tasks, 0.95)), bars(tasks, from, this.until),
    ])));
    say(this.words, !largest.length ? "No turns." : this.whole ? "" : `The newest ${this.tasks.length} turns.`);
    this.words.hidden = Boolean(largest.length) && this.whole;
  }
}

/** What such a part of the ended turns took at most. */
function share(tasks, part) {
  const took = tasks.filter((task) => task.ended_at && Number.isFinite(task.took)).map((task) => task.took).sort((one, other) => one - other);
  return took[Math.min(took.length - 1, Math.floor(took.length * part))];
}

/** How many were submitted when, and how many of them failed. */
function bars(tasks, from, until) {
  const all = new Array(BARS).fill(0);
  const failed = new Array(BARS).fill(0);
  for (const task of tasks) {
    const at = Math.min(BARS - 1, Math.max(0, Math.floor(((task.submitted_at - from) / (until - from)) * BARS)));
    all[at] += 1;
    if (task.status === "failed") failed[at] += 1;
  }
  const most = Math.max(...all);
  const drawn = (counts, kind) => counts.flatMap((count, at) => (count ? [svg("rect", { class: kind, x: at * 10, y: 100 - (count / most) * 100, width: 8, height: (count / most) * 100 })] : []));
  return svg("svg", { class: "bars", viewBox: `0 0 ${BARS * 10} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `${most} at most in one of ${BARS} parts of the time` },
    ...drawn(all, "bar-all"), ...drawn(failed, "bar-failed"));
}
