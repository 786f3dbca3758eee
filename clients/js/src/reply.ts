/** One turn's answer, as it comes. */

import { Attendant, SETTLED_MS, type Approval, type Call, type Functions } from "./calls.js";
import { Conversation, type Turn } from "./conversation.js";
import { TurnCanceled, TurnFailed, UnansweredCall } from "./errors.js";
import { isEnd, type MessageEvent, type ResponseEvent, type TurnEvent } from "./events.js";
import type { Following } from "./following.js";
import type { Session } from "./session.js";
import { answersIn, Speech } from "./speech.js";

export const BETWEEN_MESSAGES = "\n\n";

/**
 * What the agent answers to one turn. Iterate over it for events, or ask for what you want of them:
 *
 *     for await (const event of reply) …             every event, typed
 *     for await (const piece of reply.deltas()) …    the answer's text, piece by piece
 *     for await (const message of reply.messages())  whole messages: texts, calls, results
 *     await reply.text()                             the whole text
 *     await reply.finished()                         the terminal event, whatever the outcome
 *
 * 1. Follows the turn to its end, whatever happens to connections and front ends.
 * 2. Has the client's functions answer the agent's calls meanwhile.
 * 3. Keeps what was said so far, and the cursor to come back with.
 *
 * Leaving a loop closes the connection and stops nothing: the turn goes on at the server, and another loop goes on where
 * the first one stopped.
 */
export class Reply implements AsyncIterableIterator<TurnEvent> {
  /** The turn as far as it has come. */
  readonly turn: Turn;

  private readonly conversation = new Conversation();
  private readonly attendant: Attendant;
  private readonly speech = new Speech();
  private speaking = "";
  private pieces: string[] = [];
  private end: ResponseEvent | null = null;
  private pending: Promise<IteratorResult<TurnEvent, void>> | null = null;

  constructor(
    readonly session: Session,
    readonly id: string,
    private readonly following: Following,
    functions: Functions,
    past: boolean,
  ) {
    this.turn = this.conversation.begin(id);
    this.attendant = new Attendant(functions, (call, result) => session.answer(call.id, result), past);
  }

  /** Where this reply stands; give it to `session.follow` to go on elsewhere. */
  get cursor(): string {
    return this.following.cursor;
  }

  /** The calls that came and are not answered yet. */
  get openCalls(): (Call | Approval)[] {
    return this.attendant.open;
  }

  /** Whether the terminal event has come. */
  get ended(): boolean {
    return this.end !== null;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /**
   * The next event.
   *
   * @throws Refused, Unavailable, BadAnswer
   */
  next(): Promise<IteratorResult<TurnEvent, void>> {
    // One at a time: who waited for an event in vain leaves it to the next one who asks.
    this.pending ??= this.advance().finally(() => (this.pending = null));
    return this.pending;
  }

  async return(): Promise<IteratorResult<TurnEvent, void>> {
    this.close();
    return { value: undefined, done: true };
  }

  /**
   * The answer's text in pieces; joined, they are what `text` gives. What sub-agents say is left out. An answer that a lost
   * worker cut off is written anew after it, and then comes twice, the first time not to its end.
   *
   * @throws TurnFailed, TurnCanceled, UnansweredCall; others as iterating
   */
  async *deltas(): AsyncGenerator<string, void> {
    for await (const _ of this.attended()) yield* this.pieces;
    this.check();
  }

  /**
   * Each message when it is complete: answers, thoughts, calls and their results, of sub-agents too.
   *
   * @throws as `deltas`
   */
  async *messages(): AsyncGenerator<MessageEvent, void> {
    for await (const event of this.attended()) {
      if (event.object === "message" && (event.status === "completed" || event.status === "incomplete")) yield event;
    }
    this.check();
  }

  /**
   * The agent's whole answer, its messages parted by an empty line.
   *
   * @throws as `deltas`
   */
  async text(): Promise<string> {
    const end = await this.finished();
    this.check();
    return answersIn(end.output ?? []).join(BETWEEN_MESSAGES);
  }

  /**
   * The terminal event: completed, failed or canceled, with the whole output and the tokens used.
   *
   * @throws UnansweredCall; others as iterating
   */
  async finished(): Promise<ResponseEvent> {
    for await (const _ of this.attended());
    if (!this.end) throw new Error("the reply was closed before its end");
    return this.end;
  }

  /**
   * Answer a call; a repeat changes nothing. For an approval: `{approve, reason}`.
   *
   * @throws NotFound, Conflict, Gone: the call is unknown, its turn has ended, or its deadline has passed
   */
  async answer(call: string | Call | Approval, result: unknown): Promise<void> {
    await this.session.answer(typeof call === "string" ? call : call.id, result);
  }

  /**
   * End the turn. When this resolves it has ended; what was said stays said.
   *
   * @throws NotFound: it was never accepted, or is forgotten
   */
  async stop(): Promise<void> {
    await this.session.stop(this.id);
  }

  /** Leave: the connection is closed, the turn goes on. */
  close(): void {
    this.following.close();
  }

  /** What an event adds to the answer; all events are asked for that, so that `deltas` may begin anywhere. */
  private said(event: TurnEvent): string[] {
    const said: string[] = [];
    for (const piece of this.speech.pieces(event)) {
      if (piece.voice !== "answer") continue;
      if (this.speaking && this.speaking !== piece.message) said.push(BETWEEN_MESSAGES);
      this.speaking = piece.message;
      said.push(piece.text);
    }
    return said;
  }

  private async advance(): Promise<IteratorResult<TurnEvent, void>> {
    if (this.end) return { value: undefined, done: true };
    const result = await this.following.next();
    if (result.done) return result;
    const event = result.value;
    this.conversation.take(event);
    this.pieces = this.said(event);
    if (event.object === "message") this.attendant.take(event);
    if (isEnd(event, this.id)) {
      this.end = event;
      this.close();
    }
    return result;
  }

  /** The events; a call that nobody is there for is an error, since nobody else sees it. */
  private async *attended(): AsyncGenerator<TurnEvent, void> {
    try {
      for (;;) {
        const { unattended } = this.attendant;
        const result = await (unattended ? this.within(SETTLED_MS) : this.next());
        if (!result && unattended) throw new UnansweredCall(unattended.name, unattended.kind === "approval");
        if (!result || result.done) return;
        yield result.value;
      }
    } finally {
      this.close();
    }
  }

  private async within(ms: number): Promise<IteratorResult<TurnEvent, void> | null> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const over = new Promise<null>((resolve) => {
      timer = setTimeout(() => resolve(null), ms);
    });
    try {
      return await Promise.race([this.next(), over]);
    } finally {
      clearTimeout(timer);
    }
  }

  private check(): void {
    if (!this.end || this.end.status === "completed") return;
    throw this.end.status === "canceled" ? new TurnCanceled(this.end) : new TurnFailed(this.end);
  }
}
