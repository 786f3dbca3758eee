/** Events into turns and messages: plain objects, so that they can be stored and taken up again. */

import { ENDED, sameTurn, type ContentEvent, type ErrorInfo, type MessageEvent, type ResponseEvent, type Status, type TurnEvent } from "./events.js";
import { dispatches } from "./speech.js";

/** Said, and not at the server yet. */
export const UNSENT = "unsent";

/** A part of a message. */
export interface Part {
  type: string;
  text?: string | undefined;
  refusal?: string | undefined;
  data?: any;
  image?: string | undefined;
  file?: string | undefined;
  video?: string | undefined;
  filename?: string | undefined;
  format?: string | undefined;
}

export interface TurnMessage {
  id: string;
  type: string;
  role: string;
  status: Status;
  parts: Part[];
  /** Whether a sub-agent said it. */
  inner: boolean;
}

/** A turn as it is shown. */
export interface Turn {
  id: string;
  /** What the user said, if it is known. */
  said: Part[] | null;
  status: Status;
  error: ErrorInfo | { message: string } | null;
  sequence: number;
  messages: TurnMessage[];
  /** What it took, once it has ended: tokens, USD where all prices are known, and when it was accepted and ended, in Unix seconds. */
  took?: { input?: number | undefined; output?: number | undefined; cost?: number | undefined; from?: number | undefined; to?: number | undefined };
  /** The sub-agents that work. */
  open?: string[];
}

/** One thing that was said in a session, as its history has it. */
export interface Remembered {
  taskId: string;
  role: string;
  type: string;
  content: any;
  createTime: string;
  /** The sub-agent that said it; none for the agent itself. */
  agentId?: string;
}

/** What an event changed. */
export interface Touched {
  turn?: Turn;
  message?: TurnMessage;
}

/** Messages that were made of the history have no id of their own. */
const REMEMBERED = "history-";

const GROWING: Record<string, "text" | "refusal"> = { text: "text", refusal: "refusal" };

export function newTurn(id: string, said: Part[] | null = null): Turn {
  return { id, said, status: "queued", error: null, sequence: -1, messages: [] };
}

/** The turns of one session. Events are to be given in order, each once, as a `Following` has them. */
export class Conversation {
  private readonly messages = new Map<string, { turn: Turn; message: TurnMessage }>();

  /** @param turns what was there before, from a store */
  constructor(readonly turns: Turn[] = []) {
    for (const turn of turns) for (const message of turn.messages) this.messages.set(message.id, { turn, message });
  }

  /** The turns that have not ended. */
  get live(): Turn[] {
    return this.turns.filter((turn) => !ENDED.has(turn.status));
  }

  turn(id: string): Turn | undefined {
    return this.turns.find((turn) => sameTurn(turn.id, id));
  }

  /** The turn of an id, made if it is new. */
  begin(id: string): Turn {
    let turn = this.turn(id);
    if (!turn) {
      turn = newTurn(id);
      // What others began comes before what is not heard of yet.
      const first = this.turns.findIndex((each) => each.sequence < 0 && !ENDED.has(each.status));
      this.turns.splice(first < 0 ? this.turns.length : first, 0, turn);
    }
    return turn;
  }

  /** A turn that is not at the server yet. */
  unsent(id: string, said: Part[]): Turn {
    const known = this.turn(id);
    if (known) return known;
    const turn = { ...newTurn(id, said), status: UNSENT };
    this.turns.push(turn);
    return turn;
  }

  /** Take the next event; what it changed. */
  take(event: TurnEvent): Touched {
    if (event.object === "response") return this.response(event);
    if (event.object === "message") return this.header(event);
    if (event.object === "content") return this.content(event);
    return {};
  }

  private response(event: ResponseEvent): Touched {
    const turn = this.begin(event.id);
    // What the history had of it is told by its events now.
    if (turn.sequence < 0) turn.messages = turn.messages.filter((message) => !message.id.startsWith(REMEMBERED));
    turn.status = event.status ?? turn.status;
    turn.error = event.error ?? null;
    turn.sequence = event.sequence_number ?? turn.sequence;
    if (!ENDED.has(turn.status)) return { turn };
    turn.took = { input: event.usage?.input_tokens, output: event.usage?.output_tokens, cost: event.usage?.cost_usd, from: event.created_at, to: event.completed_at };
    const output = event.output ?? [];
    const whole = output.map((message) => this.put(turn, message));
    // Who came late has heard the last ones first.
    const place = new Map(whole.map((message, at) => [message, at]));
    if (turn.messages.every((message) => place.has(message))) turn.messages.sort((one, other) => place.get(one)! - place.get(other)!);
    return { turn };
  }

  private header(event: MessageEvent): Touched {
    const turn = this.messages.get(event.id)?.turn ?? this.speaker(event.sequence_number ?? 0);
    if (!turn) return {};
    turn.sequence = event.sequence_number ?? turn.sequence;
    return { turn, message: this.put(turn, event) };
  }

  private content(event: ContentEvent): Touched {
    const found = this.messages.get(event.msg_id ?? "");
    if (!found) return {};
    const { turn, message } = found;
    turn.sequence = event.sequence_number ?? turn.sequence;
    const at = event.index ?? Math.max(0, message.parts.length - (event.delta ? 1 : 0));
    const field = GROWING[event.type];
    const part = message.parts[at];
    if (part && event.delta && field) part[field] = (part[field] ?? "") + (event[field] ?? "");
    else message.parts[at] = partOf(event);
    return { turn, message };
  }

  /** Put a message into its turn, or bring it up to date. */
  private put(turn: Turn, event: MessageEvent): TurnMessage {
    const known = this.messages.get(event.id);
    const message: TurnMessage = known?.message ?? {
      id: event.id,
      type: event.type,
      role: event.role,
      status: "",
      parts: [],
      inner: (turn.open?.length ?? 0) > 0,
    };
    message.status = event.status ?? message.status;
    if (Array.isArray(event.content)) message.parts = event.content.map(partOf);
    if (!known) turn.messages.push(message);
    else if (known.turn !== turn) {
      known.turn.messages = known.turn.messages.filter((each) => each !== message);
      turn.messages.push(message);
    }
    this.messages.set(event.id, { turn, message });
    this.dispatch(turn, message, dispatches(event));
    return message;
  }

  /** While a sub-agent works, what is said is said by it. */
  private dispatch(turn: Turn, message: TurnMessage, ids: string[]): void {
    turn.open ??= [];
    if (message.type === "component_call") {
      message.inner = false;
      turn.open = [...new Set([...turn.open, ...ids])];
    } else if (message.type === "component_call_output") {
      message.inner = false;
      turn.open = turn.open.filter((id) => !ids.includes(id));
    }
  }

  /** Whose message begins with this number: numbers of a turn are dense. */
  private speaker(sequence: number): Turn | undefined {
    const running = this.turns.filter((turn) => !ENDED.has(turn.status) && turn.status !== "queued" && turn.status !== UNSENT);
    return (
      running.find((turn) => turn.sequence + 1 === sequence) ??
      running.at(-1) ??
      this.turns.findLast((turn) => turn.status !== UNSENT)
    );
  }
}

/** Answers by the call they answer; consents by `consent:` and the call, since the tool's result has its id, too. */
export function answersIn(turn: Turn): Map<string, any> {
  const found = new Map<string, any>();
  for (const message of turn.messages) {
    if (!/_output$|_response$/.test(message.type)) continue;
    for (const part of message.parts) {
      const data = part?.data;
      if (data?.approval_request_id) found.set(`consent:${data.approval_request_id}`, data);
      const id = data?.call_id ?? data?.dispatchId;
      if (id) found.set(id, data);
    }
  }
  return found;
}

/** The text of a message. */
export function textOf(message: TurnMessage): string {
  return message.parts.map((part) => (part?.type === "text" ? (part.text ?? "") : "")).join("");
}

function partOf(event: ContentEvent): Part {
  const { type, text, data, image_url: image, refusal, file_url: file, filename, video_url: video, format } = event;
  return { type, text, data, image, refusal, file, filename, video, format };
}

/** What users said, by task, from a session's history. */
export function saidBy(history: readonly Remembered[]): Map<string, Part[]> {
  const found = new Map<string, Part[]>();
  for (const each of history) {
    if (each.role !== "user") continue;
    const parts: any[] = Array.isArray(each.content) ? each.content : [{ type: "text", message: String(each.content) }];
    found.set(
      each.taskId,
      parts.map((part) => (part.type === "imageUrl" ? { type: "image", image: part.message } : { type: "text", text: part.message })),
    );
  }
  return found;
}

/** Turns from the history alone, for a session whose events are no longer kept. */
export function turnsOf(history: readonly Remembered[]): Turn[] {
  const turns = new Map<string, Turn>();
  const said = saidBy(history);
  const kinds: Record<string, string> = { text: "message", reasoningContent: "reasoning" };
  history.forEach((each, at) => {
    const turn = turns.get(each.taskId) ?? { ...newTurn(each.taskId, said.get(each.taskId) ?? null), status: "completed" };
    turns.set(each.taskId, turn);
    const type = kinds[each.type];
    if (each.role === "user" || !type) return;
    const parts = [{ type: "text", text: String(each.content) }];
    turn.messages.push({ id: `${REMEMBERED}${at}`, type, role: "assistant", status: "completed", parts, inner: Boolean(each.agentId) });
  });
  return [...turns.values()];
}
