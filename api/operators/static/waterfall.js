// Where a turn's time went: its wait, its attempts, what was said and called in them, its parks, all from its log; and its
// requests to models, which the task's answer has.

import { duration, h, inline, short } from "./dom.js";
import { bar, row, table } from "./tables.js";

const HEADS = ["Step", "After", "Took", ""];
// Steps that are shown; of more, the longest.
const MOST_STEPS = 200;

const CALLED = /^(plugin|mcp|function|component)_call$|^mcp_approval_request$/;
const ANSWERED = /_output$|_response$/;

export class Waterfall {
  constructor() {
    this.body = h("tbody");
    this.element = h("div", { class: "table-wrap fall", tabIndex: 0, role: "region", "aria-labelledby": "fall-title" }, table(HEADS, this.body, "Steps of the turn"));
    this.messages = new Map();
    this.calls = new Map();
    this.parks = [];
    this.steps = [];
    this.input = "";
    this.output = "";
    this.usage = null;
    this.last = 0;
  }

  /** Take the next event. */
  take({ kind, path, at, event }) {
    const park = this.parks.at(-1);
    if (park && !park.to) park.to = at;
    this.last = at;
    if (kind === "parked") this.parks.push({ name: "Waits for its client", kind: "park", from: at });
    else if (event.object === "message") this.message(path, at, event);
    else if (event.object === "response" && event.output) this.end(event);
  }

  message(path, at, event) {
    if (event.role === "user" && event.type === "message") {
      this.input += `${this.input ? "\n\n" : ""}${partsOf(event.content ?? [])}`;
      return;
    }
    const known = this.messages.get(event.id) ?? { kind: event.type, path, from: at };
    this.messages.set(event.id, known);
    if (event.status === "in_progress" || event.status === "created") return;
    known.to = at;
    const data = (event.content ?? []).find((part) => part?.data)?.data ?? {};
    // A request for approval has the id of the call that it is for.
    const id = event.type.startsWith("mcp_approval") ? `approval ${data.approval_request_id ?? data.id}` : data.call_id ?? data.dispatchId ?? data.id;
    if (CALLED.test(event.type)) {
      known.hidden = true;
      this.calls.set(id, { name: nameOf(event.type, data), kind: "tool", path, from: at });
    } else if (ANSWERED.test(event.type)) {
      known.hidden = true;
      const call = this.calls.get(id);
      if (call) call.to = at;
    }
  }

  end(event) {
    this.usage = event.usage ?? null;
    const said = event.output.filter((message) => message.role !== "user" && message.type === "message");
    this.output = said.map((message) => partsOf(message.content ?? [])).join("\n\n");
    if (event.error) this.output += `${this.output ? "\n\n" : ""}${event.error.code}: ${event.error.message}`;
  }

  show(task) {
    const now = task.ended_at ?? Math.max(this.last, Date.now() / 1000);
    const begun = task.submitted_at;
    const attempts = task.attempts ?? [];
    const waited = attempts[0]?.began_at ?? task.started_at ?? now;
    const steps = [{ name: "Waits for a worker", kind: "queue", from: begun, to: waited }];
    attempts.forEach((each, at) => {
      const because = each.because ? ` (${each.because.replace(/_/g, " ")})` : "";
      const parked = this.parks.find((park) => park.from >= each.began_at)?.from ?? Infinity;
      steps.push({ name: `Attempt ${each.attempt} at ${each.worker}${because}`, kind: "attempt", from: each.began_at, to: Math.min(attempts[at + 1]?.began_at ?? now, parked) });
    });
    for (const message of this.messages.values()) if (!message.hidden) steps.push({ ...message, name: message.kind === "reasoning" ? "Model thinks" : message.kind === "message" ? "Model answers" : message.kind, kind: "said" });
    for (const call of task.model_calls ?? []) steps.push(modelStep(call, task, attempts));
    steps.push(...this.calls.values(), ...this.parks);
    this.leftOut = task.model_calls_left_out;
    this.draw(steps.map((step) => ({ ...step, to: step.to ?? now })), begun, Math.max(now, begun + 0.001));
  }

  draw(steps, begun, ended) {
    const kept = steps.length > MOST_STEPS ? new Set([...steps].sort((one, other) => other.to - other.from - one.to + one.from).slice(0, MOST_STEPS)) : new Set(steps);
    const shown = steps.filter((step) => kept.has(step)).sort((one, other) => one.from - other.from || other.to - one.to);
    const share = (time) => Math.min(1, Math.max(0, (time - begun) / (ended - begun)));
    this.body.replaceChildren(...shown.map((step) => row(HEADS, [
      h("span", { dir: "auto" }, short(step.path ? `${step.path}: ${step.name}` : step.name, 90)), `+${duration(Math.max(0, step.from - begun))}`, duration(step.to - step.from), bar(step.kind, share(step.from), share(step.to)),
    ])));
    if (!this.leftOut) return;
    const { calls, ms } = this.leftOut;
    this.body.append(row(HEADS, [`${calls} shorter ${calls === 1 ? "request" : "requests"} to models`, "", duration(ms / 1000), ""]));
  }
}

/** A request to a model. The end of one that was lost with its attempt is not known: the next attempt began later. */
function modelStep(call, task, attempts) {
  const from = call.asked_ms / 1000;
  const to = call.ended_ms === undefined ? attempts.find((each) => each.began_at > from)?.began_at : call.ended_ms / 1000;
  const facts = [];
  if (call.error) facts.push(`failed: ${call.error}`);
  if (call.first_token_ms !== undefined) facts.push(`first token after ${duration((call.first_token_ms - call.asked_ms) / 1000)}`);
  if (call.input_tokens !== undefined) facts.push(`${call.input_tokens} → ${call.output_tokens} tokens`);
  if (!facts.length && call.ended_ms === undefined) facts.push("no token yet");
  const critic = !call.path && call.agent !== task.agent ? `${call.agent} asks ` : "Asks ";
  return { name: `${critic}${short(call.model, 40)}${facts.length ? `, ${facts.join(", ")}` : ""}`, kind: call.error ? "failed" : "model", path: call.path, from, to };
}

function nameOf(type, data) {
  if (type === "component_call") return `Asks ${data.name ?? data.agentId ?? "a sub-agent"}`;
  if (type === "mcp_approval_request") return `Approval of ${data.name}`;
  return `${data.name ?? "tool"}(${short(inline(data.arguments ?? "{}"), 60)})`;
}

const partsOf = (parts) => parts.filter(Boolean).map((part) => part.text ?? (part.data ? JSON.stringify(part.data) : `[${part.type}${part.filename ? ` ${part.filename}` : ""}]`)).join("\n");
