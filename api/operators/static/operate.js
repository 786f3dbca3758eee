// The operator's side: what runs, where, how fast; and how to stop it.

import { newId, Unavailable } from "./client.js";
import { duration, h, say } from "./dom.js";
import { History } from "./history.js";
import { Keys } from "./keys.js";
import { Overview } from "./overview.js";
import { ask, insist, wordsOf } from "./server.js";
import { head, mark, moment, row, table, wrap } from "./tables.js";
import { TaskView } from "./task.js";
import { Tasks } from "./tasks.js";

const ADMIN = "admin/v1";
const POLL_MS = 2000;
const AGENT_COLUMNS = ["Agent", "State", "Since", ""];
const MODEL_COLUMNS = ["Model", "State", "Since", "Requests", "Failures", ""];
const WORKER_COLUMNS = ["Worker", "Running", "Up for", "Seen", "Version", "State", ""];
const FRONT_END_COLUMNS = ["Front end", "Followers", "Up for", "Seen", "Version", "State"];

export class Operate {
  constructor(element, dialog) {
    this.element = element;
    this.key = null;
    this.timer = 0;
    /** Told that the filter or the task that is shown is another one. */
    this.onPlace = () => {};
    const get = (path, query) => this.get(path, query);
    const onStop = (refs, button, query) => this.stop(refs, button, query);
    const onReplay = (refs, button) => this.replay(refs, button);
    this.tasks = new Tasks({ get, onStop, onReplay, onOpen: (ref) => this.open(ref), onChange: () => { this.onPlace(); return this.poll(); } });
    this.task = new TaskView(dialog, { get, onStop, onReplay, onClose: () => this.onPlace() });
    document.addEventListener("visibilitychange", () => { if (document.visibilityState === "visible" && this.running) this.poll(); });
  }

  /** What the address is to say of it. */
  params() {
    const params = this.tasks.params();
    if (this.task.shown) params.set("task", this.task.shown);
    return params.toString();
  }

  /** Show what the address says. */
  read(text) {
    const params = new URLSearchParams(text);
    this.tasks.read(params);
    this.asked = params.get("task");
    if (this.running && this.key) this.poll();
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
    this.keys.load();
  }

  end() {
    this.running = false;
    clearTimeout(this.timer);
  }

  build() {
    this.overview = new Overview(this.key);
    this.history = new History((path, query) => this.get(path, query));
    this.keys = new Keys(() => this.key.token);
    this.problem = h("p", { class: "error", role: "alert", hidden: true });
    this.workers = h("tbody");
    this.fronts = h("tbody");
    this.models = h("tbody");
    this.agents = h("tbody");
    this.shownModels = "";
    this.element.replaceChildren(
      title(), this.problem, this.overview.element,
      ...this.tasks.elements(),
      ...this.history.elements(),
      head("processes-title", "Processes", this.overview.summary),
      wrap("processes-title", table(WORKER_COLUMNS, this.workers, "Workers"), table(FRONT_END_COLUMNS, this.fronts, "Front ends")),
      head("models-title", "Models and agents"), wrap("models-title", table(MODEL_COLUMNS, this.models, "Models"), table(AGENT_COLUMNS, this.agents, "Agents")),
      ...this.keys.elements(),
    );
  }

  // ── polling ──

  async poll() {
    clearTimeout(this.timer);
    if (!this.running || !this.key) return;
    const turn = (this.turn = (this.turn ?? 0) + 1);
    if (this.asked) {
      const ref = this.asked;
      this.asked = null;
      this.open(ref);
    }
    if (document.visibilityState === "visible") {
      try {
        const [stats, tasks, processes, { models }, { agents }] = await Promise.all([this.get("stats"), this.tasks.load(), this.get("workers"), this.get("models"), this.get("agents")]);
        if (turn !== this.turn || !this.running) return;
        this.problem.hidden = true;
        this.overview.show(stats);
        this.tasks.show(tasks);
        this.showProcesses(processes, stats.now);
        this.showModels(models, agents);
        await this.history.tend();
      } catch (error) {
        if (turn !== this.turn) return;
        this.fail(error, error instanceof Unavailable ? "; trying again" : "");
        if (!error.passing) return;
      }
    }
    if (turn === this.turn) this.timer = setTimeout(() => this.poll(), POLL_MS);
  }

  get(path, query) {
    return ask(this.key.token, "GET", `${ADMIN}/${path}`, { query });
  }

  fail(error, more = "") {
    say(this.problem, `${wordsOf(error)}${more}`);
    this.problem.hidden = false;
  }

  showProcesses({ workers, front_ends: fronts }, now) {
    const focused = document.activeElement?.dataset?.order;
    this.workers.replaceChildren(...workers.map((each) => {
      const state = each.draining ? "draining" : each.paused ? "paused" : each.retiring ? "retiring" : "working";
      const made = processRow(WORKER_COLUMNS, each.worker, `${each.running} of ${each.max_jobs}`, each, now, state);
      made.lastElementChild.append(...(each.draining || each.silent ? [] : [this.orderButton(each, each.paused ? "resume" : "pause"), this.orderButton(each, "drain")]));
      return made;
    }));
    // They are made anew each time, so that what has the focus keeps it.
    if (focused) this.workers.querySelector(`[data-order="${CSS.escape(focused)}"]`)?.focus();
    this.fronts.replaceChildren(...fronts.map((each) => processRow(FRONT_END_COLUMNS, each.front_end, String(each.followers), each, now, "serving")));
  }

  orderButton({ worker, running }, order) {
    const words = { pause: "Pause", resume: "Resume", drain: "Drain" };
    const asked = {
      pause: `Pause ${worker}? It claims no turns until it is resumed; what it runs goes on.`,
      drain: `Drain ${worker}? It ends, and its ${running} turns go on elsewhere where they do not end in time.`,
    };
    const button = h("button", { type: "button", class: order === "drain" ? "danger small" : "quiet small", "aria-label": `${words[order]} ${worker}` }, words[order]);
    button.dataset.order = `${order} ${worker}`;
    button.addEventListener("click", () => {
      if (asked[order] && !confirm(asked[order])) return;
      this.doing(button, () => insist(this.key.token, "POST", `${ADMIN}/workers/${order}`, { body: { worker } }));
    });
    return button;
  }

  showModels(models, agents) {
    // Its buttons must stay under the pointer, so the table is made anew only when it has something else to show.
    const shown = JSON.stringify([models, agents]);
    if (shown === this.shownModels) return;
    this.shownModels = shown;
    this.models.replaceChildren(...models.map((each) => {
      const button = this.holding("model", each.model, each.state === "closed");
      return row(MODEL_COLUMNS, [
        each.model, mark(each.state, { closed: "completed", held: "parked" }[each.state] ?? "failed"), each.since ? moment(each.since) : "", each.limit ? `${each.running} of ${each.limit}` : "", String(each.failures), button,
      ]);
    }));
    this.agents.replaceChildren(...agents.map((each) => row(AGENT_COLUMNS, [
      each.agent, mark(each.held_since ? "held" : "open", each.held_since ? "parked" : "completed"), each.held_since ? moment(each.held_since) : "", this.holding("agent", each.agent, !each.held_since),
    ])));
  }

  /** A button that holds a model or an agent, or ends that. */
  holding(kind, name, free) {
    const act = free ? "hold" : "resume";
    const button = h("button", { type: "button", class: "quiet small", "aria-label": `${act} ${kind} ${name}`, onclick: () => this.change(kind, name, act, button) }, free ? "Hold" : "Resume");
    return button;
  }

  // ── acts ──

  open(ref) {
    this.task.open(ref);
    this.onPlace();
  }

  async change(kind, name, act, button) {
    if (act === "hold" && !confirm(`Hold ${name}? Its turns wait${kind === "model" ? ", or use their agent's fallback" : ""}.`)) return;
    await this.doing(button, () => insist(this.key.token, "POST", `${ADMIN}/${kind}s/${act}`, { body: { [kind]: name } }));
  }

  /** Others' work ends by it, so it is asked for twice. */
  async stop(refs, button, query = null) {
    const what = query ? `all that runs in the session ${query.owner}/${query.session}` : refs.length === 1 ? refs[0] : `${refs.length} tasks`;
    if (!confirm(`Stop ${what}? Who waits for it sees that it was stopped.`)) return;
    await this.doing(button, async () => {
      for (let more = true; more;) {
        const outcome = await insist(this.key.token, "POST", `${ADMIN}/stop`, { body: query ?? { refs } });
        more = Boolean(query && outcome.more);
      }
    });
    this.tasks.selected();
  }

  async replay(refs, button) {
    if (!confirm(`Say again what ${refs.length === 1 ? refs[0] : `these ${refs.length} turns`} said, as new turns of their sessions?`)) return;
    await this.doing(button, async () => {
      for (const ref of refs) await insist(this.key.token, "POST", `${ADMIN}/tasks/${ref}/replay`, { headers: { "Idempotency-Key": newId() } });
    });
  }

  async doing(button, act) {
    button.disabled = true;
    try {
      await act();
      await this.poll();
    } catch (error) {
      this.fail(error);
    } finally {
      button.disabled = false;
    }
  }
}

const title = () => h("h1", { class: "hidden-text" }, "Operate");

function processRow(columns, name, load, each, now, state) {
  const values = [name, load, duration(now - each.started_at), `${duration(Math.max(0, now - each.seen_at))} ago`, each.version, mark(each.silent ? "silent" : state, each.silent ? "failed" : state === "paused" ? "parked" : "completed")];
  return row(columns, columns.length > values.length ? [...values, ""] : values);
}
