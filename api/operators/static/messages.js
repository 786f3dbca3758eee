// How a turn and its messages look. Views are made once and brought up to date, so that forms keep their focus.

import { attached } from "./attachments.js";
import { answersIn, ENDED, textOf, UNSENT } from "./client.js";
import { copyButton, duration, h, inline, money, pretty, say, short } from "./dom.js";
import { Growing } from "./markdown.js";
import { picture } from "./pictures.js";
import { wordsOf } from "./server.js";

const CALLS = new Set(["plugin_call", "mcp_call", "function_call"]);
const STATUS = { [UNSENT]: "not sent yet", queued: "waiting", created: "starting", in_progress: "", canceled: "stopped", failed: "failed" };

/** Whether something else may be said in a turn's place. */
export const canEdit = (turn) => ENDED.has(turn.status) && turn.status !== "rejected" && Boolean(turn.said);

/** One turn: what the user said, and all that came of it. */
export class TurnView {
  /**
   * @param {object} acts
   * @param {string} acts.agent whose answers these are
   * @param {(call: string, result: any) => Promise<void>} acts.answer
   * @param {() => void} acts.onward where the keyboard goes when an answer is given
   * @param {(turn: object) => void} acts.edit, acts.again, acts.branch
   */
  constructor(turn, acts) {
    this.acts = acts;
    this.views = new Map();
    this.said = h("article", { class: "said", "aria-label": "You said", hidden: true });
    this.body = h("article", { class: "body", "aria-label": `${acts.agent} answered` });
    this.state = h("p", { class: "state", hidden: true });
    this.foot = h("div", { class: "turn-foot", hidden: true });
    this.element = h("div", { class: "turn" }, this.said, this.body, this.state, this.foot);
    this.waits = false;
    this.update(turn);
  }

  update(turn, conversation = null, touched = null) {
    this.showSaid(turn);
    const answers = conversation ? answersIn(turn) : new Map();
    const changed = touched && !CALLS.has(touched.type) && !/_output$|_response$|_call$/.test(touched.type) ? [touched] : turn.messages;
    for (const message of changed) this.show(turn, message, answers, conversation);
    if (changed === turn.messages) this.arrange(turn);
    this.showState(turn);
    this.showFoot(turn);
  }

  showSaid(turn) {
    if (!turn.said || this.said.childElementCount) return;
    for (const part of turn.said) {
      if (part.type !== "text") this.said.append(attached(part));
      else if (part.text) this.said.append(h("p", { dir: "auto" }, part.text));
    }
    this.said.hidden = false;
  }

  show(turn, message, answers, conversation) {
    let view = this.views.get(message.id);
    if (!view) {
      view = viewOf(message, this.acts);
      if (!view) return;
      this.views.set(message.id, view);
      if (message.inner) view.element.classList.add("inner");
      this.body.append(view.element);
    }
    view.update(message, answers, turn, conversation);
  }

  /** Messages that came late to their turn, or whose order the end told. */
  arrange(turn) {
    const wanted = turn.messages.map((message) => this.views.get(message.id)?.element).filter(Boolean);
    const known = new Set(wanted);
    for (const [id, view] of this.views) {
      if (!known.has(view.element)) {
        view.element.remove();
        this.views.delete(id);
      }
    }
    wanted.forEach((element, at) => {
      if (this.body.children[at] !== element) this.body.insertBefore(element, this.body.children[at] ?? null);
    });
  }

  /** What can be done about a turn that has ended, and what it took. */
  showFoot(turn) {
    const known = canEdit(turn);
    this.foot.hidden = !known;
    if (!known || this.footed === turn.status) return;
    this.footed = turn.status;
    const act = (name, told, run) => h("button", { type: "button", class: "quiet small", title: told, onclick: () => run(turn) }, name);
    this.took = h("span", { class: "took" }, tookOf(turn));
    this.foot.replaceChildren(
      act("Edit", "Say something else in its place, in a branch", this.acts.edit),
      act(turn.status === "completed" ? "Regenerate" : "Retry", "Say the same again in its place, in a branch", this.acts.again),
      turn.status === "completed" ? act("Branch", "Go on from here in a conversation of its own", this.acts.branch) : "",
      this.took);
  }

  showState(turn) {
    const ended = ENDED.has(turn.status);
    this.element.dataset.status = turn.status;
    let text = STATUS[turn.status] ?? "";
    if (turn.status === "failed" || turn.status === "rejected") text = turn.error?.message ? `Failed: ${turn.error.message}` : "Failed";
    if (turn.status === "canceled") text = "Stopped";
    if (turn.status === "completed" && !this.body.querySelector(".answer:not([data-blank]), .tool, .ask")) text = "The agent said nothing";
    if (turn.status === UNSENT && turn.error) text += `: ${turn.error.message}`;
    const parked = !ended && this.body.querySelector(".ask:not([data-done])");
    this.waits = Boolean(parked);
    if (parked) text = "Waits for you";
    else if (!ended && turn.status === "in_progress") text = this.body.querySelector(".growing") ? "" : "Working";
    this.state.hidden = !text;
    this.state.classList.toggle("busy", !ended && !parked);
    say(this.state, text);
  }
}

/** Time, tokens and cost of a turn, as far as they are known. */
function tookOf({ took }) {
  if (!took) return "";
  const told = [];
  if (took.from && took.to) told.push(took.to > took.from ? duration(took.to - took.from) : "< 1 s");
  if (took.input || took.output) told.push(`${(took.input ?? 0).toLocaleString()} in, ${(took.output ?? 0).toLocaleString()} out`);
  if (took.cost !== undefined) told.push(money(took.cost));
  return told.join(" · ");
}

function viewOf(message, acts) {
  if (message.type === "function_call") return new AskView(message, acts, false);
  if (message.type === "mcp_approval_request") return new AskView(message, acts, true);
  if (CALLS.has(message.type)) return new ToolView();
  if (message.type === "reasoning") return new ThoughtView();
  if (message.type === "component_call") return new DispatchView();
  if (message.type === "component_call_output") return isReflection(message) ? new CriticView() : null;
  if (message.type === "mcp_list_tools") return new ToolsView();
  if (/_output$|_response$|^heartbeat$/.test(message.type)) return null;
  return new TextView();
}

class TextView {
  constructor() {
    this.text = new Growing();
    this.extra = h("div", { class: "parts" });
    this.shown = 0;
    this.copy = copyButton("Copy answer", () => this.said);
    this.element = h("div", { class: "answer" }, this.text.element, this.extra, this.copy);
  }

  update(message) {
    this.said = textOf(message);
    const ended = ENDED.has(message.status);
    this.text.update(this.said, ended);
    this.copy.hidden = !ended || !this.said.trim();
    const others = message.parts.filter((part) => part && part.type !== "text");
    for (const part of others.slice(this.shown)) this.extra.append(partView(part));
    this.shown = others.length;
    this.element.toggleAttribute("data-blank", !this.said.trim() && !others.length);
    this.element.classList.toggle("growing", !ended);
    this.element.classList.toggle("torn", message.status === "incomplete");
  }
}

class ThoughtView {
  constructor() {
    this.text = h("p", { class: "thought", dir: "auto" });
    this.label = h("summary", {}, "Thinking");
    this.element = h("details", { class: "thinking", open: true }, this.label, this.text);
    this.closed = false;
  }

  update(message) {
    say(this.text, textOf(message));
    if (this.closed || !ENDED.has(message.status)) return;
    this.closed = true;
    this.element.open = false;
    say(this.label, "Thought");
  }
}

class ToolView {
  constructor() {
    this.name = h("span", { class: "tool-name" });
    this.result = h("span", { class: "tool-result" });
    this.given = h("pre", { tabIndex: 0 });
    this.output = h("pre", { tabIndex: 0 });
    this.element = h("details", { class: "tool" },
      h("summary", {}, h("i", { class: "mark", ariaHidden: "true" }), this.name, this.result),
      h("div", { class: "tool-body" }, h("span", { class: "label" }, "Arguments"), this.given, h("span", { class: "label" }, "Result"), this.output));
  }

  update(message, answers, turn) {
    const data = dataOf(message);
    if (!data) return;
    const id = data.call_id ?? data.id;
    const answer = answers.get(id);
    say(this.name, `${data.name ?? "tool"}(${inline(data.arguments ?? "{}")})`);
    say(this.given, pretty(data.arguments ?? "{}"));
    const output = answer ? String(answer.error ?? answer.output ?? "") : "";
    const denied = answers.get(`consent:${id}`)?.approve === false;
    const state = denied ? "denied" : answer ? (answer.error ? "failed" : "done") : ENDED.has(turn.status) ? "failed" : "busy";
    this.element.dataset.state = state;
    say(this.result, answer ? short(output, 90) : state === "busy" ? "running" : "no result");
    say(this.output, answer ? pretty(output) : "");
  }
}

class ToolsView {
  constructor() {
    this.element = h("p", { class: "aside" });
  }

  update(message, answers, turn, conversation) {
    const data = dataOf(message);
    if (!data) return;
    const name = data.server_label ?? "Server";
    const count = (data.tools ?? []).length;
    this.element.classList.toggle("failed", Boolean(data.error));
    say(this.element, data.error ? `The tools of ${name} are missing: ${data.error}` : `${name} offers ${count} ${count === 1 ? "tool" : "tools"}`);
    this.element.hidden = !data.error && toldBefore(message, data, conversation);
  }
}

/** Whether the same server offered the same tools before: each turn begins with what there is. */
function toldBefore(message, data, conversation) {
  let last = null;
  for (const turn of conversation?.turns ?? []) {
    for (const each of turn.messages) {
      if (each === message) return last !== null && JSON.stringify(last.tools) === JSON.stringify(data.tools);
      const other = each.type === "mcp_list_tools" ? dataOf(each) : null;
      if (other && other.server_label === data.server_label) last = other.error ? null : other;
    }
  }
  return false;
}

class DispatchView {
  constructor() {
    this.element = h("p", { class: "aside dispatch" });
  }

  update(message, answers) {
    const data = dataOf(message);
    if (!data) return;
    const task = (data.content ?? []).map((part) => part.message ?? "").join(" ");
    say(this.element, `${answers.has(data.dispatchId) ? "Asked" : "Asks"} ${data.name ?? data.agentId}: ${short(task, 200)}`);
  }
}

class CriticView {
  constructor() {
    this.element = h("p", { class: "aside critic" });
  }

  update(message) {
    const output = dataOf(message)?.output ?? {};
    const scores = output.messageScore?.reflectScoreList ?? [];
    const words = scores.map((each) => `${each.score}/10 ${each.description ?? ""}`.trim()).join("; ");
    say(this.element, `Critics, round ${output.count ?? "?"}: ${output.isPass ? "passed" : "not yet"}${words ? ` (${words})` : ""}`);
  }
}

let asked = 0;

/** The agent waits for a person: a function's result, or consent. */
class AskView {
  constructor(message, acts, approval) {
    this.acts = acts;
    this.approval = approval;
    this.id = `ask-${(asked += 1)}`;
    this.title = h("h2", { id: `${this.id}-title` });
    this.given = h("pre", { tabIndex: 0 });
    this.error = h("p", { class: "error", role: "alert", hidden: true });
    this.outcome = h("p", { class: "outcome", hidden: true });
    this.form = approval ? this.consent() : this.result();
    this.element = h("div", { class: "ask", role: "group", "aria-labelledby": `${this.id}-title` }, this.title, this.given, this.form, this.error, this.outcome);
  }

  result() {
    this.field = h("textarea", { id: `${this.id}-field`, rows: 3, spellcheck: false, placeholder: '{"temperature": 21}' });
    return h("form", { onsubmit: (event) => this.submit(event, () => readResult(this.field.value)) },
      h("label", { class: "field" }, h("span", {}, "Result, as JSON or text"), this.field),
      h("div", { class: "row" }, h("button", { type: "submit", class: "primary" }, "Send result")));
  }

  consent() {
    this.field = h("input", { id: `${this.id}-field`, type: "text", autocomplete: "off" });
    const decide = (approve) => (event) => this.submit(event, () => ({ approve, ...(this.field.value.trim() ? { reason: this.field.value.trim() } : {}) }));
    return h("form", { onsubmit: decide(true) },
      h("label", { class: "field" }, h("span", {}, "Reason (optional)"), this.field),
      h("div", { class: "row" },
        h("button", { type: "submit", class: "primary" }, "Approve"),
        h("button", { type: "button", class: "danger", onclick: decide(false) }, "Refuse")));
  }

  async submit(event, read) {
    event.preventDefault();
    if (this.sent) return;
    this.lock(true);
    this.error.hidden = true;
    try {
      await this.acts.answer(this.call, read());
      if (this.element.contains(document.activeElement)) this.acts.onward();
    } catch (error) {
      say(this.error, wordsOf(error));
      this.error.hidden = false;
      this.lock(false);
    }
  }

  /** Not disabled: what has the focus keeps it until it goes on. */
  lock(locked) {
    this.sent = locked;
    this.element.toggleAttribute("data-sent", locked);
    for (const each of this.form.elements) each.setAttribute("aria-disabled", locked);
  }

  update(message, answers, turn) {
    const data = dataOf(message);
    if (!data) return;
    this.call = data.call_id ?? data.id;
    say(this.title, this.approval ? `Allow ${data.name}?` : `The agent calls ${data.name}`);
    say(this.given, pretty(data.arguments ?? "{}"));
    const answer = answers.get(this.approval ? `consent:${this.call}` : this.call);
    const over = ENDED.has(turn.status);
    if (answer) {
      say(this.outcome, this.approval ? (answer.approve ? "Approved" : `Refused${answer.reason ? `: ${answer.reason}` : ""}`) : `Result: ${short(String(answer.output), 400)}`);
    } else if (over) say(this.outcome, "The turn ended without an answer");
    const done = Boolean(answer) || over;
    this.outcome.hidden = !done;
    const left = done && !this.form.hidden && this.form.contains(document.activeElement);
    this.form.hidden = done;
    if (done) {
      this.error.hidden = true;
      this.element.dataset.done = "";
    }
    if (left) this.acts.onward();
  }
}

function readResult(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function partView(part) {
  if (part.type === "image" && part.image) return picture(part.image);
  if (part.type === "refusal") return h("p", { class: "aside" }, `Refused: ${part.refusal ?? ""}`);
  if (part.type === "data") return h("pre", { tabIndex: 0 }, pretty(part.data));
  const link = part.file ?? part.video;
  if (link && /^https?:/i.test(link)) return h("p", {}, h("a", { href: link, rel: "noreferrer noopener", target: "_blank" }, part.filename ?? link));
  return h("p", { class: "aside" }, `A part of type ${part.type}${part.filename ? `: ${part.filename}` : ""}`);
}

const dataOf = (message) => message.parts.find((part) => part?.data)?.data;
const isReflection = (message) => dataOf(message)?.name === "reflection";

