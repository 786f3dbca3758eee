/** A conversation that is shown: what a user interface needs of a session, whatever it is made with. */

import { Attendant, type Approval, type Call } from "./calls.js";
import { Conversation, saidBy, turnsOf, UNSENT, type Part, type Touched, type Turn } from "./conversation.js";
import { Gone, NotFound } from "./errors.js";
import type { ConnectionState, Following } from "./following.js";
import { newId, partsOf, type Said, type Session } from "./session.js";

/** What there is to show. A new object at each change; turns and messages that did not change stay the same objects. */
export interface ChatSnapshot {
  turns: readonly Turn[];
  /** Whether a turn is under way, or on its way. */
  working: boolean;
  /** The calls that wait for an answer, those that the client's functions answer left out. */
  calls: readonly (Call | Approval)[];
  connection: ConnectionState;
  /** Why the conversation cannot be followed. */
  error: Error | null;
}

/**
 * A session that is followed for as long as somebody looks at it.
 *
 * 1. Follows all its turns, whoever begins them, and folds their events.
 * 2. Sends what is said, and shows it at once.
 * 3. Has the client's functions answer calls; the others are told.
 */
export class Chat {
  private conversation = new Conversation();
  private cursor = "";
  /** How many messages the server has taken. */
  private accepted = 0;
  private attendant: Attendant;
  private following: Following | null = null;
  private snapshot: ChatSnapshot = { turns: [], working: false, calls: [], connection: "closed", error: null };
  private readonly copies = new Map<Turn, Turn>();
  private readonly listeners = new Set<() => void>();
  private readonly said = new Map<string, Part[]>();
  private dirty = new Set<Turn>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private recalling: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly session: Session) {
    this.attendant = this.attended();
  }

  /** Be told of each change; what looked away first closes the connection. */
  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    if (this.listeners.size === 1) void this.follow();
    return () => {
      this.listeners.delete(listener);
      if (!this.listeners.size) this.following?.close();
    };
  };

  readonly getSnapshot = (): ChatSnapshot => this.snapshot;

  /**
   * Say something; resolves with the turn's id when the server has it.
   *
   * @throws Refused: the server will not take it; it is shown as failed
   */
  readonly send = async (said: Said, settings?: Record<string, unknown>): Promise<string> => {
    const id = `response_${newId()}`;
    const turn = this.conversation.unsent(id, partsOf(said));
    this.said.set(id, partsOf(said));
    this.touch({ turn });
    try {
      await this.session.submit(said, { id, ...(settings ? { settings } : {}) });
    } catch (error) {
      Object.assign(turn, { status: "failed", error: { message: error instanceof Error ? error.message : String(error) } });
      this.touch({ turn });
      throw error;
    }
    this.accepted += 1;
    if (turn.status === UNSENT) turn.status = "queued";
    this.touch({ turn });
    if (!this.following && this.listeners.size) void this.follow();
    return id;
  };

  /** Answer a call. */
  readonly answer = async (call: string | Call | Approval, result: unknown): Promise<void> => {
    await this.session.answer(typeof call === "string" ? call : call.id, result);
  };

  /** End a turn, or all. */
  readonly stop = async (id?: string): Promise<void> => {
    await this.session.stop(id);
  };

  private async follow(): Promise<void> {
    if (this.following) return;
    const following = this.session.watch({
      cursor: this.cursor,
      patience: Infinity,
      onState: (connection) => this.change({ connection }),
    });
    this.following = following;
    if (this.snapshot.error) this.change({ error: null });
    const { accepted } = this;
    let again = true;
    try {
      for await (const event of following) {
        this.cursor = following.cursor;
        if (event.object === "message") this.attendant.take(event);
        const touched = this.conversation.take(event);
        if (touched.turn && !touched.turn.said) {
          touched.turn.said = this.said.get(touched.turn.id) ?? null;
          if (!touched.turn.said && event.object === "response") this.recallSoon();
        }
        this.touch(touched);
      }
    } catch (error) {
      // A session begins with its first turn, which may have been taken meanwhile.
      again = error instanceof Gone || (error instanceof NotFound && this.accepted > accepted);
      if (error instanceof Gone) this.restart();
      else if (!(error instanceof NotFound)) this.change({ error: error as Error });
    }
    this.following = null;
    // It began anew, or it was closed because no listener was left, and there is one again.
    if (again && this.listeners.size) void this.follow();
  }

  /** The session was cleared, or its server lost data. */
  private restart(): void {
    this.cursor = "";
    this.conversation = new Conversation(this.conversation.turns.filter((turn) => turn.status === UNSENT));
    this.attendant = this.attended();
    this.copies.clear();
    this.touch({});
  }

  /** What users said comes from the history: events of a response do not hold it. */
  private recallSoon(): void {
    clearTimeout(this.recalling);
    this.recalling = setTimeout(() => void this.recall(), 150);
  }

  private async recall(): Promise<void> {
    const { conversation } = this;
    try {
      const history = await this.session.history();
      if (conversation !== this.conversation) return;
      const said = saidBy(history);
      for (const turn of conversation.turns) {
        if (turn.said) continue;
        turn.said = said.get(turn.id.replace(/^response_/, "")) ?? null;
        if (turn.said) this.touch({ turn });
      }
      if (history.length && conversation.turns.every((turn) => turn.status === UNSENT)) {
        conversation.turns.unshift(...turnsOf(history));
        this.touch({});
      }
    } catch {
      // The stream tells what is wrong, if something is.
    }
  }

  private attended(): Attendant {
    return new Attendant(this.session.functions, (call, result) => this.session.answer(call.id, result), true);
  }

  /** Events come in bursts: what is shown changes once for each. */
  private touch({ turn }: Touched): void {
    if (turn) this.dirty.add(turn);
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      const { dirty } = this;
      this.dirty = new Set();
      for (const each of dirty) this.copies.set(each, copyOf(each, this.copies.get(each)));
      const turns = this.conversation.turns.map((each) => {
        if (!this.copies.has(each)) this.copies.set(each, copyOf(each));
        return this.copies.get(each)!;
      });
      const calls = this.attendant.open.filter((call) => !this.session.functions.covers(call));
      const working = this.conversation.live.length > 0;
      this.change({ turns, calls: working ? calls : [], working });
    }, 0);
  }

  private change(changes: Partial<ChatSnapshot>): void {
    this.snapshot = { ...this.snapshot, ...changes };
    for (const listener of [...this.listeners]) listener();
  }
}

function copyOf(turn: Turn, before?: Turn): Turn {
  const old = new Map(before?.messages.map((message) => [message.id, message]));
  const messages = turn.messages.map((message) => {
    const known = old.get(message.id);
    const same = known && known.status === message.status && (message.status === "completed" || message.status === "incomplete");
    return same ? known : { ...message, parts: message.parts.map((part) => ({ ...part })) };
  });
  return { ...turn, messages };
}
