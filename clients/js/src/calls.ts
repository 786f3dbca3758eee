/** What the agent asks of its client, and the functions that answer. */

import type { ContentEvent, MessageEvent } from "./events.js";

/** The agent calls a function of the client, and waits. */
export interface Call {
  kind: "call";
  /** What the answer refers to. */
  id: string;
  name: string;
  /** As the model wrote them; anything but an object is given as `{value}`. */
  arguments: Record<string, any>;
}

/** The agent wants to use a tool, and somebody must consent. */
export interface Approval {
  kind: "approval";
  /** What the answer refers to. */
  id: string;
  /** The tool. */
  name: string;
  /** What it would be called with. */
  arguments: Record<string, any>;
  /** The MCP server of the tool, or the agent. */
  server: string;
}

/** Yes or no, with a reason for the agent if there is one. */
export type Consent = boolean | { approve: boolean; reason?: string };

export type ClientFunction = (given: any, call: Call) => unknown;
export type OtherFunctions = (call: Call) => unknown;
export type ApprovalHandler = (approval: Approval) => Consent | Promise<Consent>;

/** Thrown by a function of the client: its text is told to the agent as the call's outcome. */
export class FunctionError extends Error {}

/** Structured data of a message. */
export function dataOf(message: MessageEvent): Record<string, any>[] {
  const isData = (part: ContentEvent) => part.type === "data" && part.data && typeof part.data === "object";
  return (message.content ?? []).filter(isData).map((part) => part.data);
}

/** The calls that a completed message makes. */
export function callsIn(message: MessageEvent): (Call | Approval)[] {
  if (message.status !== "completed") return [];
  const calls: (Call | Approval)[] = [];
  for (const data of dataOf(message)) {
    const made = { name: String(data["name"] ?? ""), arguments: argumentsOf(data["arguments"]) };
    if (message.type === "function_call" && data["call_id"]) calls.push({ kind: "call", id: String(data["call_id"]), ...made });
    else if (message.type === "mcp_approval_request" && data["id"]) {
      calls.push({ kind: "approval", id: String(data["id"]), ...made, server: String(data["server_label"] ?? "") });
    }
  }
  return calls;
}

/** The calls that a message answers. */
export function answeredIn(message: MessageEvent): string[] {
  if (message.type !== "function_call_output" && message.type !== "mcp_approval_response") return [];
  return dataOf(message).map((data) => String(data["approval_request_id"] ?? data["call_id"] ?? ""));
}

/** A model's arguments as an object. */
export function argumentsOf(text: unknown): Record<string, any> {
  let value = text || {};
  try {
    if (typeof value === "string") value = JSON.parse(value);
  } catch {
    // As the model wrote them.
  }
  return value && typeof value === "object" && !Array.isArray(value) ? value : { value };
}

/** The client's functions by name. */
export class Functions {
  private readonly named = new Map<string, ClientFunction>();
  private others: OtherFunctions | undefined;
  private decides: ApprovalHandler | undefined;

  add(name: string, run: ClientFunction): void {
    this.named.set(name, run);
  }

  answerOthers(run: OtherFunctions): void {
    this.others = run;
  }

  answerApprovals(decide: ApprovalHandler): void {
    this.decides = decide;
  }

  /** Whether a function is there for it. */
  covers(call: Call | Approval): boolean {
    return call.kind === "approval" ? this.decides !== undefined : this.named.has(call.name) || this.others !== undefined;
  }

  /** The answer to send. A function that fails is an answer too: the agent is told, and can go on. */
  async answer(call: Call | Approval): Promise<unknown> {
    if (call.kind === "approval") return this.decide(call);
    const run = this.named.get(call.name);
    try {
      const result = await (run ? run(call.arguments, call) : this.others?.(call));
      // What has no JSON form is found here.
      return JSON.parse(JSON.stringify(result ?? null));
    } catch (error) {
      if (error instanceof FunctionError) return { error: error.message };
      console.error(`turnstream: the function "${call.name}" failed`, error);
      return { error: `${call.name} failed: ${error instanceof Error ? error.name : "Error"}` };
    }
  }

  private async decide(approval: Approval): Promise<unknown> {
    try {
      const consent = await this.decides?.(approval);
      if (consent && typeof consent === "object") return { approve: consent.approve === true, reason: consent.reason ?? "" };
      return { approve: consent === true };
    } catch (error) {
      console.error(`turnstream: the approval handler failed for "${approval.name}"`, error);
      return { approve: false, reason: `The approval could not be decided: ${error instanceof Error ? error.name : "Error"}` };
    }
  }
}

/** A turn that is followed from its past brings calls together with their answers: what is open after so long waits for us. */
export const SETTLED_MS = 250;

/**
 * The calls of a stream, and who answers them.
 *
 * 1. Knows which calls came, and which were answered, by whomever.
 * 2. Has the client's functions answer the others, each once.
 */
export class Attendant {
  private readonly calls = new Map<string, Call | Approval>();
  private readonly answered = new Set<string>();

  constructor(
    private readonly functions: Functions,
    private readonly send: (call: Call | Approval, result: unknown) => Promise<void>,
    /** Whether calls may have been answered before. */
    private readonly past: boolean,
  ) {}

  /** The calls that came and are not answered yet. */
  get open(): (Call | Approval)[] {
    return [...this.calls.values()].filter((call) => !this.answered.has(call.id));
  }

  /** An open call that no function is there for. */
  get unattended(): Call | Approval | undefined {
    return this.open.find((call) => !this.functions.covers(call));
  }

  take(message: MessageEvent): void {
    for (const id of answeredIn(message)) this.answered.add(id);
    for (const call of callsIn(message)) {
      const known = this.calls.has(call.id);
      this.calls.set(call.id, call);
      if (!known && this.functions.covers(call)) void this.answer(call);
    }
  }

  private async answer(call: Call | Approval): Promise<void> {
    if (this.past) {
      await new Promise((resolve) => setTimeout(resolve, SETTLED_MS));
      if (this.answered.has(call.id)) return;
    }
    const result = await this.functions.answer(call);
    try {
      await this.send(call, result);
    } catch (error) {
      // Somebody else answered, or the turn has ended: the stream tells.
      console.warn(`turnstream: the answer to "${call.name}" was not taken:`, error instanceof Error ? error.message : error);
    }
  }
}
