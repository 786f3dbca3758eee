/** Who says what in a turn's events, piece by piece. */

import { dataOf } from "./calls.js";
import { textOf, type MessageEvent, type TurnEvent } from "./events.js";

export type Voice = "answer" | "thought" | "subagent";

/** Something more of a message's text. */
export interface Piece {
  voice: Voice;
  message: string;
  text: string;
}

/** Knows whose a message is: while a sub-agent works, all that is said is said by sub-agents. */
class Speakers {
  private readonly dispatched = new Set<string>();

  /** Who speaks in it, if it is speech. Messages are to be shown to it in order, all of them. */
  voice(message: MessageEvent): Voice | null {
    if (message.type === "component_call") for (const id of dispatches(message)) this.dispatched.add(id);
    if (message.type === "component_call_output") for (const id of dispatches(message)) this.dispatched.delete(id);
    if (message.type === "reasoning") return "thought";
    if (message.type !== "message" || message.role !== "assistant") return null;
    return this.dispatched.size ? "subagent" : "answer";
  }
}

/** A turn's speech as it grows. A message that comes whole is said as far as it was not yet. */
export class Speech {
  private readonly speakers = new Speakers();
  private readonly voices = new Map<string, Voice>();
  private readonly said = new Map<string, number>();

  /** What an event adds. */
  pieces(event: TurnEvent): Piece[] {
    if (event.object === "content") {
      const message = event.msg_id ?? "";
      return event.type === "text" && event.delta ? this.say(message, event.text ?? "") : [];
    }
    if (event.object !== "message") return [];
    const voice = this.speakers.voice(event);
    if (!voice) return [];
    if (!this.voices.has(event.id)) this.voices.set(event.id, voice);
    const closed = event.status === "completed" || event.status === "incomplete";
    return closed ? this.say(event.id, textOf(event).slice(this.said.get(event.id) ?? 0)) : [];
  }

  private say(message: string, text: string): Piece[] {
    const voice = this.voices.get(message);
    if (!text || !voice) return [];
    this.said.set(message, (this.said.get(message) ?? 0) + text.length);
    return [{ voice, message, text }];
  }
}

/** The texts of a whole output that the agent itself says; what a lost worker left incomplete was written anew after it. */
export function answersIn(output: readonly MessageEvent[]): string[] {
  const speakers = new Speakers();
  return output
    .filter((message) => speakers.voice(message) === "answer" && message.status !== "incomplete")
    .map(textOf)
    .filter(Boolean);
}

/** The calls of sub-agents that a message begins or ends. */
export function dispatches(message: MessageEvent): string[] {
  return dataOf(message)
    .map((data) => String(data["dispatchId"] ?? ""))
    .filter(Boolean);
}
