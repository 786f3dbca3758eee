// The operator's side: what runs, where, how fast; and how to stop it.

import { Chart } from "./charts.js";
import { Unavailable } from "./client.js";
import { duration, h, pretty, say, short } from "./dom.js";
import { ask, insist, wordsOf } from "./server.js";

const ADMIN = "admin/v1";
const POLL_MS = 2000;
const PAGE = 50;
// Processes report what they count every few seconds; a rate over less would jump.
const RATE_SECONDS = 12;
// A page of the list may hold fewer rows than were asked for; so many are joined before what came is shown.
const MOST_PAGES = 5;
// No page holds more.
const MOST_ROWS = 200;
const COLUMNS = ["Status", "Agent", "Owner and session", "Submitted", "Took", "Attempt", "Worker", "Ended by", "Events"];

export class Operate {
  constructor(element, dialog) {
    this.element = element;
    this.dialog = dialog;
    this.key = null;
    this.timer = 0;
    this.past = [];
    this.rows = new Map();
    dialog.addEventListener("close", () => { this.shown = null; });
    document.addEventListener("visibilitychange", () => { if (document.visibilityState === "visible" && this.running) this.poll(); });
  }

  begin(key) {
    if (this.running && this.key?.token === key?.token) return;
    this.end();
    this.key = key;
    this.running = true;
    if (!key) {
      this.element.replaceChildren(title(), h("div", { class: "welcome" }, h("p", {}, "Add an admin key to see and stop what runs."),
        h("button", { type: "button", class: "primary", onclick: () => document.getElementById("open-keys").click() }, "Add a key")));
      return;
    }
    this.build();
    this.poll();
  }

  end() {
    this.running = false;
    clearTimeout(this.timer);
  }

  build() {
    this.charts = {
      depth: new Chart("Queue depth"), running: new Chart("Running"), parked: new Chart("Waiting for clients"),
      turns: new Chart("Turns ended", { unit: "/s" }), events: new Chart("Events", { unit: "/s" }), followers: new Chart("Followers"),
    };
    this.rows.clear();
    this.past = [];
    this.problem = h("p", { class: "error", role: "alert", hidden: true });
    this.status = h("select", { id: "task-status" }, ...["live", "queued", "running", "parked", "completed", "failed", "canceled", ""].map((each) => h("option", { value: each }, each || "all")));
    this.by = h("select", { id: "task-by", "aria-label": "Only" }, ...["owner", "agent", "session", "user"].map((each) => h("option", { value: each }, each)));
    this.filter = h("input", { id: "task-filter", type: "search", "aria-label": "Filter", placeholder: "any", autocomplete: "off" });
    this.more = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.showMore() }, "More");
    this.wanted = PAGE;
    this.stopAll = h("button", { type: "button", class: "danger", disabled: true, onclick: () => this.stopSelected() }, "Stop selected");
    this.body = h("tbody");
    this.none = h("p", { class: "note empty", hidden: true }, "No tasks.");
    this.workers = h("tbody");
    this.fronts = h("tbody");
    this.models = h("tbody");
    this.summary = h("p", { class: "note" });
    const others = () => { this.wanted = PAGE; this.poll(); };
    for (const select of [this.status, this.by]) select.addEventListener("change", others);
    this.filter.addEventListener("input", () => { clearTimeout(this.typing); this.typing = setTimeout(others, 250); });
    this.element.replaceChildren(
      title(), this.problem,
      h("div", { class: "cards" }, ...Object.values(this.charts).map((chart) => chart.element)),
      h("div", { class: "section-head" }, h("h2", { id: "tasks-title" }, "Tasks"),
        h("div", { class: "row" }, h("label", { class: "inline", htmlFor: "task-status" }, h("span", {}, "Status"), this.status),
          h("div", { class: "inline" }, this.by, h("label", { htmlFor: "task-filter" }, "is"), this.filter), this.stopAll)),
      h("div", { class: "table-wrap", tabIndex: 0, role: "region", "aria-labelledby": "tasks-title" },
        table(["", ...COLUMNS, ""], this.body, "Tasks, newest first"), this.none, this.more),
      h("div", { class: "section-head" }, h("h2", { id: "processes-title" }, "Processes"), this.summary),
      h("div", { class: "table-wrap", tabIndex: 0, role: "region", "aria-labelledby": "processes-title" },
        table(["Worker", "Running", "Up for", "Seen", "Version", "State"], this.workers, "Workers"),
        table(["Front end", "Followers", "Up for", "Seen", "Version", "State"], this.fronts, "Front ends")),
      h("div", { class: "section-head" }, h("h2", { id: "models-title" }, "Models")),
      h("div", { class: "table-wrap", tabIndex: 0, role: "region", "aria-labelledby": "models-title" },
        table(MODEL_COLUMNS, this.models, "Models")),
    );
  }

  // ── polling ──

  async poll() {
    clearTimeout(this.timer);
    if (!this.running || !this.key) return;
    const turn = (this.turn = (this.turn ?? 0) + 1);
    if (document.visibilityState === "visible") {
      try {
        const [stats, tasks, processes, { models }] = await Promise.all([this.get("stats"), this.tasks(), this.get("workers"), this.get("models")]);
        if (turn !== this.turn || !this.running) return;
        this.problem.hidden = true;
        this.showStats(stats);
        this.showTasks(tasks);
        this.showProcesses(processes, stats.now);
        this.showModels(models);
      } catch (error) {
        if (turn !== this.turn) return;
        say(this.problem, `${wordsOf(error)}${error instanceof Unavailable ? "; trying again" : ""}`);
        this.problem.hidden = false;
        if (!error.passing) return;
      }
    }
    if (turn === this.turn) this.timer = setTimeout(() => this.poll(), POLL_MS);
  }

  get(path, query) {
    return ask(this.key.token, "GET", `${ADMIN}/${path}`, { query });
  }

  /** The newest tasks that fit, as many as are wanted, and whether there are more. */
  async tasks() {
    let found = [];
    let cursor = "";
    const most = (MOST_PAGES * this.wanted) / PAGE;
    for (let pages = 0; pages < most && found.length < this.wanted && cursor !== null; pages += 1) {
      const limit = Math.min(MOST_ROWS, this.wanted - found.length);
      const page = await this.get("tasks", { status: this.status.value, [this.by.value]: this.filter.value.trim(), limit, cursor });
      found = found.concat(page.tasks);
      cursor = page.next;
    }
    return { found, more: cursor !== null };
  }

  async showMore() {
    this.wanted += PAGE;
    this.more.disabled = true;
    await this.poll();
    this.more.disabled = false;
  }

  showStats(stats) {
    const { charts } = this;
    // Counters appear with their first count.
    const totals = { completed: 0, failed: 0, canceled: 0, events: 0, rescues: 0, ...stats.totals };
    charts.depth.push(stats.queue.depth, stats.queue.depth ? `${stats.queue.depth} · ${duration(stats.queue.oldest_seconds)}` : "0");
    charts.running.push(stats.tasks.running, stats.workers.slots ? `${stats.tasks.running} of ${stats.workers.slots}` : String(stats.tasks.running));
    charts.parked.push(stats.tasks.parked);
    charts.followers.push(stats.front_ends.followers);
    const ended = totals.completed + totals.failed + totals.canceled;
    this.past = [...this.past.filter((each) => each.now > stats.now - RATE_SECONDS), { now: stats.now, ended, events: totals.events }];
    const [first] = this.past;
    if (stats.now > first.now) {
      charts.turns.push(Math.max(0, ended - first.ended) / (stats.now - first.now));
      charts.events.push(Math.max(0, totals.events - first.events) / (stats.now - first.now));
    }
    say(this.summary, `${ended} turns ended, ${totals.failed} failed, ${totals.rescues} rescued since the beginning`);
  }

  showTasks({ found: tasks, more }) {
    const seen = new Set();
    tasks.forEach((task, at) => {
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
    this.none.hidden = tasks.length > 0 || more;
    this.more.hidden = !more;
    this.selected();
  }

  newRow(task) {
    const cells = ["", ...COLUMNS, ""].map((label) => h("td", { "data-label": label || null }));
    const mark = h("span", { class: "status" });
    const check = h("input", { type: "checkbox", "aria-label": `Select ${task.ref}`, onchange: () => this.selected() });
    const open = h("button", { type: "button", class: "link", onclick: () => this.open(task.ref) });
    const stop = h("button", { type: "button", class: "danger small", "aria-label": `Stop ${task.ref}`, onclick: () => this.stop([task.ref], stop) }, "Stop");
    cells[0].append(check);
    cells[1].append(mark);
    cells[3].append(open);
    cells[10].append(stop);
    const row = {
      element: h("tr", {}, ...cells), check,
      update: (now) => {
        row.live = isLive(now);
        mark.dataset.status = now.status;
        say(mark, now.waiting ? `waits (${now.waiting.reason})` : now.waits_for_turn ? "queued (its turn)" : now.status);
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
        say(cells[8], [now.ended_by, now.why].filter(Boolean).join(": "));
        say(cells[9], String(now.events ?? ""));
        stop.hidden = !row.live;
        check.disabled = !row.live;
        if (!row.live) check.checked = false;
      },
    };
    this.rows.set(task.ref, row);
    return row;
  }

  selected() {
    const refs = [...this.rows].filter(([, row]) => row.check.checked).map(([ref]) => ref);
    this.stopAll.disabled = !refs.length;
    say(this.stopAll, refs.length ? `Stop ${refs.length} selected` : "Stop selected");
    return refs;
  }

  showProcesses({ workers, front_ends: fronts }, now) {
    this.workers.replaceChildren(...workers.map((each) => processRow(each.worker, `${each.running} of ${each.max_jobs}`, each, now, each.draining ? "draining" : each.retiring ? "retiring" : "working")));
    this.fronts.replaceChildren(...fronts.map((each) => processRow(each.front_end, String(each.followers), each, now, "serving")));
  }

  showModels(models) {
    // Its buttons must stay under the pointer, so the table is made anew only when it has something else to show.
    const shown = JSON.stringify(models);
    if (shown === this.shownModels) return;
    this.shownModels = shown;
    this.models.replaceChildren(...models.map((each) => {
      const mark = h("span", { class: "status" }, each.state);
      mark.dataset.status = { closed: "completed", held: "parked" }[each.state] ?? "failed";
      const act = each.state === "closed" ? "hold" : "resume";
      const button = h("button", { type: "button", class: "small", "aria-label": `${act} ${each.model}`, onclick: () => this.change(each.model, act, button) }, act === "hold" ? "Hold" : "Resume");
      return row(MODEL_COLUMNS, [
        each.model, mark, each.since ? moment(each.since) : "", each.limit ? `${each.running} of ${each.limit}` : "", String(each.failures), button,
      ]);
    }));
  }

  // ── acts ──

  async change(model, act, button) {
    if (act === "hold" && !confirm(`Hold ${model}? Its turns wait, or use their agent's fallback.`)) return;
    button.disabled = true;
    try {
      await insist(this.key.token, "POST", `${ADMIN}/models/${act}`, { body: { model } });
      await this.poll();
    } catch (error) {
      say(this.problem, wordsOf(error));
      this.problem.hidden = false;
      button.disabled = false;
    }
  }

  stopSelected() {
    const refs = this.selected();
    if (refs.length > 1 && !confirm(`Stop ${refs.length} tasks?`)) return;
    this.stop(refs, this.stopAll);
  }

  async stop(refs, button, query = null) {
    button.disabled = true;
    try {
      let body = query ?? { refs };
      for (let more = true; more;) {
        const outcome = await insist(this.key.token, "POST", `${ADMIN}/stop`, { body });
        more = Boolean(query && outcome.more);
      }
      await this.poll();
    } catch (error) {
      say(this.problem, wordsOf(error));
      this.problem.hidden = false;
    } finally {
      button.disabled = false;
      this.selected();
    }
  }

  // ── one task ──

  async open(ref) {
    this.shown = ref;
    const facts = h("dl", { class: "facts" });
    const calls = h("p", { class: "note waits", hidden: true });
    const events = h("tbody");
    const problem = h("p", { class: "error", role: "alert", hidden: true });
    const stop = h("button", { type: "button", class: "danger", onclick: () => this.stop([ref], stop) }, "Stop task");
    const [owner, session] = ref.split("/");
    const stopSession = h("button", { type: "button", class: "danger", onclick: () => this.stop([], stopSession, { owner, session }) }, "Stop session");
    this.dialog.replaceChildren(
      h("form", { method: "dialog", class: "dialog-head" }, h("h2", { id: "detail-title" }, "Task"), h("button", { class: "quiet", value: "close" }, "Close")),
      problem, facts, calls, h("div", { class: "row" }, stop, stopSession),
      h("h3", { id: "events-title" }, "Events"),
      h("div", { class: "table-wrap events", tabIndex: 0, role: "region", "aria-labelledby": "events-title" }, table(["Seq", "At", "Kind", "Event"], events, "Events of the task")));
    this.dialog.showModal();
    let cursor = "";
    while (this.shown === ref && this.dialog.open) {
      try {
        // The events first: where they end, the facts that are asked for after them have the end, too.
        const page = await this.get(`tasks/${ref}/events`, { cursor, limit: 200 });
        const task = await this.get(`tasks/${ref}`);
        if (this.shown !== ref) return;
        showFacts(facts, task);
        const pending = (task.calls ?? []).map((call) => `${call.kind === "approval" ? "approval of " : ""}${call.name}`).join(", ");
        say(calls, pending ? `Waits for ${pending}` : "");
        calls.hidden = !pending;
        stop.hidden = !isLive(task);
        problem.hidden = true;
        for (const each of page.events) events.append(eventRow(each));
        cursor = page.next ?? page.events.at(-1)?.cursor ?? cursor;
        if (!page.next && !page.live) return;
        if (page.events.length === 200) continue;
      } catch (error) {
        say(problem, wordsOf(error));
        problem.hidden = false;
        if (!error.passing) return;
      }
      await new Promise((resolve) => { setTimeout(resolve, 1000); });
    }
  }
}

const MODEL_COLUMNS = ["Model", "State", "Since", "Requests", "Failures", ""];
const title = () => h("h1", { class: "hidden-text" }, "Operate");
const isLive = (task) => ["queued", "running", "parked"].includes(task.status);

function table(heads, body, caption) {
  return h("table", {}, h("caption", { class: "hidden-text" }, caption), h("thead", {}, h("tr", {}, ...heads.map((each) => (each ? h("th", { scope: "col" }, each) : h("td"))))), body);
}

function processRow(name, load, each, now, state) {
  const mark = h("span", { class: "status" }, each.silent ? "silent" : state);
  mark.dataset.status = each.silent ? "failed" : "completed";
  const values = [name, load, duration(now - each.started_at), `${duration(Math.max(0, now - each.seen_at))} ago`, each.version, mark];
  return row(["Name", "Load", "Up for", "Seen", "Version", "State"], values);
}

function row(labels, values) {
  return h("tr", {}, ...values.map((value, at) => {
    const cell = h("td", {}, value ?? "");
    if (labels[at]) cell.dataset.label = labels[at];
    return cell;
  }));
}

const moment = (seconds) => new Date(seconds * 1000).toLocaleString();

function showFacts(list, task) {
  const at = (seconds) => (seconds ? moment(seconds) : "–");
  const facts = {
    Status: task.why ? `${task.status} (${task.why})` : task.status, Agent: task.agent, "Agent version": task.agent_version, Owner: task.owner, Session: task.session, Task: task.task,
    Waits: task.waiting ? `${task.waiting.reason}, until ${moment(task.waiting.until)}` : undefined, User: task.user, Attempt: task.attempt, "Workers lost": task.crashes || undefined, Worker: task.worker, "Ended by": task.ended_by, Submitted: at(task.submitted_at),
    Started: at(task.started_at), Ended: task.ended_at ? at(task.ended_at) : undefined, Took: duration(task.took),
  };
  list.replaceChildren(...Object.entries(facts).filter(([, value]) => value !== undefined).map(([name, value]) => h("div", { class: String(value).length > 24 ? "broad" : null }, h("dt", {}, name), h("dd", {}, String(value)))));
}

function eventRow({ cursor, kind, path, at, event }) {
  const { object, status, type, delta, text } = event;
  const what = delta ? JSON.stringify(text ?? "") : [object, type === object ? "" : type, status].filter(Boolean).join(" ");
  return h("tr", {}, h("td", {}, cursor.split("-")[1]), h("td", {}, new Date(at * 1000).toLocaleTimeString()), h("td", {}, path ? `${kind} · ${path}` : kind),
    h("td", {}, h("details", { ontoggle: (toggled) => { const body = toggled.target.querySelector("pre"); if (!body.textContent) body.textContent = pretty(event); } },
      h("summary", {}, short(what, 90)), h("pre", { tabIndex: 0 }))));
}
