// The list of tasks: which are wanted, in which order, and what can be done about several.

import { duration, h, say, short } from "./dom.js";
import { head, isLive, moment, table, wrap } from "./tables.js";

const PAGE = 50;
// A page of the list may hold fewer rows than were asked for; so many are joined before what came is shown.
const MOST_PAGES = 5;
// No page holds more.
const MOST_ROWS = 200;

const STATUSES = ["live", "queued", "running", "parked", "completed", "failed", "canceled", ""];
const BY = { search: "anything has", owner: "owner is", agent: "agent is", session: "session is", user: "user is", worker: "worker is", why: "error is" };
const AGES = { "": "ever", 3600: "in the last hour", 86400: "in the last day", 604800: "in the last week" };

const COLUMNS = [
  { label: "Status", of: (task) => task.status },
  { label: "Agent", of: (task) => task.agent },
  { label: "Owner and session", of: (task) => `${task.owner}/${task.session}` },
  { label: "Submitted", of: (task) => -task.submitted_at },
  { label: "Took", of: (task) => task.took ?? -1 },
  { label: "Attempt", of: (task) => task.attempt },
  { label: "Worker", of: (task) => task.worker ?? "" },
  { label: "Ended by", of: (task) => [task.why, task.ended_by].filter(Boolean).join() },
  { label: "Events", of: (task) => task.events ?? 0 },
];

export class Tasks {
  /**
   * @param {object} given
   * @param {(path: string, query: object) => Promise<any>} given.get
   * @param {() => void} given.onChange another list is wanted
   * @param {(ref: string) => void} given.onOpen
   * @param {(refs: string[], button: HTMLElement) => void} given.onStop, given.onReplay
   */
  constructor(given) {
    Object.assign(this, given);
    this.rows = new Map();
    this.wanted = PAGE;
    this.sort = "";
    this.status = h("select", { id: "task-status" }, ...STATUSES.map((each) => h("option", { value: each }, each || "all")));
    this.since = h("select", { id: "task-since" }, ...Object.entries(AGES).map(([value, words]) => h("option", { value }, words)));
    this.by = h("select", { id: "task-by", "aria-label": "Only" }, ...Object.entries(BY).map(([value, words]) => h("option", { value }, words)));
    this.filter = h("input", { id: "task-filter", type: "search", "aria-label": "Filter", placeholder: "id, owner, error, worker …", autocomplete: "off" });
    this.more = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.showMore() }, "More");
    this.stopAll = h("button", { type: "button", class: "danger", disabled: true, onclick: () => this.onStop(this.selected(), this.stopAll) }, "Stop selected");
    this.replayAll = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.onReplay(this.ended(), this.replayAll) }, "Replay selected");
    this.failures = h("ul", { class: "failures", "aria-label": "Failures by error", hidden: true });
    this.body = h("tbody");
    this.none = h("p", { class: "note empty", hidden: true }, "No tasks.");
    this.heads = COLUMNS.map((column, at) => h("th", { scope: "col" }, h("button", { type: "button", class: "sort", onclick: () => this.order(at) }, column.label)));
    for (const select of [this.status, this.by, this.since]) select.addEventListener("change", () => this.changed());
    this.filter.addEventListener("input", () => { clearTimeout(this.typing); this.typing = setTimeout(() => this.changed(), 250); });
  }

  elements() {
    return [
      head("tasks-title", "Tasks",
        h("div", { class: "row" }, h("label", { class: "inline", htmlFor: "task-status" }, h("span", {}, "Status"), this.status),
          h("label", { class: "inline", htmlFor: "task-since" }, h("span", {}, "Submitted"), this.since),
          h("div", { class: "inline" }, this.by, this.filter), this.replayAll, this.stopAll)),
      this.failures,
      wrap("tasks-title", table(["", ...this.heads, ""], this.body, "Tasks, newest first"), this.none, this.more),
    ];
  }

  // ── what is wanted ──

  /** The filter as the address has it. */
  read(params) {
    this.status.value = STATUSES.includes(params.get("status")) ? params.get("status") : "live";
    this.since.value = params.get("since") in AGES ? params.get("since") : "";
    this.by.value = Object.keys(BY).find((name) => params.has(name)) ?? "search";
    this.filter.value = params.get(this.by.value) ?? "";
    this.sort = params.get("sort") ?? "";
    this.showOrder();
  }

  /** It for the address: what is not as usual. */
  params() {
    const params = new URLSearchParams();
    if (this.status.value !== "live") params.set("status", this.status.value);
    if (this.since.value) params.set("since", this.since.value);
    if (this.filter.value.trim()) params.set(this.by.value, this.filter.value.trim());
    if (this.sort) params.set("sort", this.sort);
    return params;
  }

  changed() {
    this.wanted = PAGE;
    this.onChange();
  }

  /** Only those of this error. */
  only(name, value) {
    this.by.value = name;
    this.filter.value = value;
    this.changed();
    this.filter.focus();
  }

  order(at) {
    const name = String(at);
    this.sort = this.sort === name ? `-${name}` : this.sort === `-${name}` ? "" : name;
    this.showOrder();
    this.onChange();
  }

  showOrder() {
    this.heads.forEach((each, at) => {
      const order = this.sort === String(at) ? "ascending" : this.sort === `-${at}` ? "descending" : null;
      if (order) each.setAttribute("aria-sort", order);
      else each.removeAttribute("aria-sort");
    });
  }

  /** The newest tasks that fit, as many as are wanted, and whether there are more. */
  async load() {
    let found = [];
    let cursor = "";
    const most = (MOST_PAGES * this.wanted) / PAGE;
    for (let pages = 0; pages < most && found.length < this.wanted && cursor !== null; pages += 1) {
      const limit = Math.min(MOST_ROWS, this.wanted - found.length);
      const query = { status: this.status.value, younger_than: this.since.value, [this.by.value]: this.filter.value.trim(), limit, cursor };
      const page = await this.get("tasks", query);
      found = found.concat(page.tasks);
      cursor = page.next;
    }
    return { found, more: cursor !== null };
  }

  async showMore() {
    this.wanted += PAGE;
    this.more.disabled = true;
    await this.onChange();
    this.more.disabled = false;
  }

  // ── what is shown ──

  show({ found, more }) {
    const seen = new Set();
    this.sorted(found).forEach((task, at) => {
      seen.add(task.ref);
      const row = this.rows.get(task.ref) ?? this.newRow(task);
      row.update(task);
      if (this.body.children[at] !== row.element) this.body.insertBefore(row.element, this.body.children[at] ?? null);
    });
    for (const [ref, row] of this.rows) {
      if (seen.has(ref)) continue;
      row.element.remove();
      this.rows.delete(ref);
    }
    this.none.hidden = found.length > 0 || more;
    this.more.hidden = !more;
    this.showFailures(found);
    this.selected();
  }

  sorted(found) {
    const at = Math.abs(Number(this.sort || NaN));
    const column = COLUMNS[at];
    if (!column) return found;
    const sign = this.sort.startsWith("-") ? -1 : 1;
    return [...found].sort((one, other) => {
      const [first, second] = [column.of(one), column.of(other)];
      return sign * (typeof first === "number" ? first - second : first.localeCompare(second));
    });
  }

  showFailures(found) {
    const failed = found.filter((task) => task.status === "failed" && task.why);
    const counts = new Map();
    for (const { why } of failed) counts.set(why, (counts.get(why) ?? 0) + 1);
    const told = [...counts].sort(([, one], [, other]) => other - one);
    const drawn = JSON.stringify(told);
    this.failures.hidden = !told.length;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.failures.replaceChildren(...told.map(([why, count]) => h("li", {}, h("button", { type: "button", class: "chip", onclick: () => this.only("why", why) }, `${why} · ${count}`))));
  }

  newRow(task) {
    const cells = ["", ...COLUMNS.map(({ label }) => label), ""].map((label) => h("td", { "data-label": label || null }));
    const mark = h("span", { class: "status" });
    const check = h("input", { type: "checkbox", "aria-label": `Select ${task.ref}`, onchange: () => this.selected() });
    const open = h("button", { type: "button", class: "link", onclick: () => this.onOpen(task.ref) });
    const stop = h("button", { type: "button", class: "danger small", "aria-label": `Stop ${task.ref}`, onclick: () => this.onStop([task.ref], stop) }, "Stop");
    const ended = h("span");
    const error = h("span", { class: "why", dir: "auto" });
    cells[0].append(check);
    cells[1].append(mark);
    cells[3].append(open);
    cells[8].append(ended, error);
    cells[10].append(stop);
    const row = {
      element: h("tr", {}, ...cells), check,
      update: (now) => {
        row.live = isLive(now);
        mark.dataset.status = now.status;
        say(mark, now.waiting ? `waits (${now.waiting.reason})` : now.waits_for_turn ? "waits for turn" : now.status);
        mark.title = now.waiting ? `until ${moment(now.waiting.until)}` : "";
        say(cells[2], now.agent);
        cells[2].title = now.agent_version ? `version ${now.agent_version}` : "";
        say(open, `${now.owner} / ${short(now.session, 34)}`);
        open.title = now.ref;
        say(cells[4], `${duration(now.age)} ago`);
        cells[4].title = moment(now.submitted_at);
        say(cells[5], duration(now.took));
        say(cells[6], String(now.attempt) + (now.crashes ? ` (${now.crashes} lost)` : ""));
        say(cells[7], now.worker ?? "–");
        say(ended, [now.ended_by, now.why].filter(Boolean).join(": "));
        say(error, now.error ?? "");
        say(cells[9], String(now.events ?? ""));
        stop.hidden = !row.live;
      },
    };
    this.rows.set(task.ref, row);
    return row;
  }

  chosen(live) {
    return [...this.rows].filter(([, row]) => row.check.checked && row.live === live).map(([ref]) => ref);
  }

  ended() {
    return this.chosen(false);
  }

  selected() {
    const refs = this.chosen(true);
    const ended = this.ended();
    this.stopAll.disabled = !refs.length;
    say(this.stopAll, refs.length ? `Stop ${refs.length} selected` : "Stop selected");
    this.replayAll.hidden = !ended.length;
    say(this.replayAll, `Replay ${ended.length} selected`);
    return refs;
  }
}
