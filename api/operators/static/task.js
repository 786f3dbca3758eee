// One task: its facts, what it was asked and what it answered, where its time went, and its events.

import { duration, h, money, pretty, say, short } from "./dom.js";
import { wordsOf } from "./server.js";
import { isLive, moment, table } from "./tables.js";
import { Waterfall } from "./waterfall.js";

const PAGE = 200;
// Events shown one by one; of more, the waterfall alone tells.
const MOST_EVENTS = 2000;

export class TaskView {
  /**
   * @param {HTMLDialogElement} dialog
   * @param {object} given
   * @param {(path: string, query?: object) => Promise<any>} given.get
   * @param {(refs: string[], button: HTMLElement, query?: object) => void} given.onStop
   * @param {(refs: string[], button: HTMLElement) => void} given.onReplay
   * @param {() => void} given.onClose
   */
  constructor(dialog, given) {
    Object.assign(this, given);
    this.dialog = dialog;
    this.shown = null;
    dialog.addEventListener("close", () => { this.shown = null; this.onClose(); });
  }

  async open(ref) {
    if (this.shown === ref) return;
    this.shown = ref;
    const facts = h("dl", { class: "facts" });
    const calls = h("p", { class: "note waits", hidden: true });
    const problem = h("p", { class: "error", role: "alert", hidden: true });
    const stop = h("button", { type: "button", class: "danger", onclick: () => this.onStop([ref], stop) }, "Stop task");
    const replay = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.onReplay([ref], replay) }, "Replay");
    const [owner, session] = ref.split("/");
    const stopSession = h("button", { type: "button", class: "danger", onclick: () => this.onStop([], stopSession, { owner, session }) }, "Stop session");
    const input = h("pre", { tabIndex: 0, dir: "auto" });
    const output = h("pre", { tabIndex: 0, dir: "auto" });
    const trace = h("pre", { tabIndex: 0 });
    const traced = h("div", { hidden: true }, h("h3", {}, "Traceback"), trace);
    const fall = new Waterfall();
    const events = new Events();
    this.dialog.replaceChildren(
      h("form", { method: "dialog", class: "dialog-head" }, h("h2", { id: "detail-title" }, "Task"), h("button", { class: "quiet", value: "close" }, "Close")),
      problem, facts, calls, h("div", { class: "row" }, replay, stop, stopSession),
      h("div", { class: "in-out" }, h("div", {}, h("h3", {}, "Input"), input), h("div", {}, h("h3", {}, "Output"), output)),
      traced,
      h("h3", { id: "fall-title" }, "Where the time went"), fall.element,
      h("h3", { id: "events-title" }, "Events"), events.element);
    if (!this.dialog.open) this.dialog.showModal();
    let cursor = "";
    while (this.shown === ref && this.dialog.open) {
      try {
        // The events first: where they end, the facts that are asked for after them have the end, too.
        const page = await this.get(`tasks/${ref}/events`, { cursor, limit: PAGE });
        const task = await this.get(`tasks/${ref}`);
        if (this.shown !== ref) return;
        for (const each of page.events) {
          fall.take(each);
          events.take(each);
        }
        fall.show(task);
        showFacts(facts, task, fall.usage);
        say(input, fall.input || "–");
        say(output, fall.output || (isLive(task) ? "" : "–"));
        say(trace, task.traceback ?? "");
        traced.hidden = !task.traceback;
        const pending = (task.calls ?? []).map((call) => `${call.kind === "approval" ? "approval of " : ""}${call.name}`).join(", ");
        say(calls, pending ? `Waits for ${pending}` : "");
        calls.hidden = !pending;
        stop.hidden = !isLive(task);
        replay.hidden = isLive(task);
        problem.hidden = true;
        cursor = page.next ?? page.events.at(-1)?.cursor ?? cursor;
        if (!page.next && !page.live) return;
        if (page.events.length === PAGE) continue;
      } catch (error) {
        say(problem, wordsOf(error));
        problem.hidden = false;
        if (!error.passing) return;
      }
      await new Promise((resolve) => { setTimeout(resolve, 1000); });
    }
  }
}

/** The events, a row each; pieces of one text share a row. */
class Events {
  constructor() {
    this.body = h("tbody");
    this.element = h("div", { class: "table-wrap events", tabIndex: 0, role: "region", "aria-labelledby": "events-title" }, table(["Seq", "At", "Kind", "Event"], this.body, "Events of the task"));
    this.count = 0;
  }

  take(told) {
    const { event } = told;
    if (event.delta && this.piece?.message === event.msg_id) {
      this.piece.events.push(told);
      this.piece.draw();
      return;
    }
    this.piece = null;
    if (this.count >= MOST_EVENTS) return;
    this.count += 1;
    const { cursor, kind, path, at } = told;
    const words = h("summary");
    const whole = h("pre", { tabIndex: 0 });
    const events = [told];
    const draw = () => {
      const { object, status, type, delta } = event;
      const text = events.map((each) => each.event.text ?? "").join("");
      say(words, delta ? short(`${events.length === 1 ? "1 piece" : `${events.length} pieces`}: ${JSON.stringify(text)}`, 90) : [object, type === object ? "" : type, status].filter(Boolean).join(" "));
    };
    draw();
    if (event.delta) this.piece = { message: event.msg_id, events, draw };
    this.body.append(h("tr", {}, h("td", {}, cursor.split("-")[1]), h("td", {}, timeOf(at)), h("td", {}, path ? `${kind} · ${path}` : kind),
      h("td", {}, h("details", { ontoggle: () => { whole.textContent = pretty(events.length === 1 ? event : { ...event, text: events.map((each) => each.event.text ?? "").join("") }); } }, words, whole))));
  }
}

const timeOf = (seconds) => new Date(seconds * 1000).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });

function showFacts(list, task, usage) {
  const at = (seconds) => (seconds ? moment(seconds) : "–");
  const tokens = usage && (usage.input_tokens || usage.output_tokens) ? `${usage.input_tokens ?? 0} in, ${usage.output_tokens ?? 0} out` : undefined;
  const facts = {
    Status: task.why ? `${task.status} (${task.why})` : task.status, Error: task.error, Agent: task.agent, "Agent version": task.agent_version, Owner: task.owner, Session: task.session, Task: task.task,
    Waits: task.waiting ? `${task.waiting.reason}, until ${moment(task.waiting.until)}` : undefined, User: task.user, Attempt: task.attempt, "Workers lost": task.crashes || undefined, Worker: task.worker, "Ended by": task.ended_by, Submitted: at(task.submitted_at),
    Started: at(task.started_at), Ended: task.ended_at ? at(task.ended_at) : undefined, Took: duration(task.took), Tokens: tokens, Cost: usage?.cost_usd === undefined ? undefined : money(usage.cost_usd),
  };
  list.replaceChildren(...Object.entries(facts).filter(([, value]) => value !== undefined).map(([name, value]) => h("div", { class: String(value).length > 24 ? "broad" : null }, h("dt", {}, name), h("dd", {}, String(value)))));
}

