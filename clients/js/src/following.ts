/**
 * Following a turn or a session to its end, over as many connections as that takes.
 *
 * A stream may end at any byte, with an error or cleanly, because a front end, a proxy or the network went away. Only the
 * turn's terminal event is the end. Each new connection goes on after the last event that was received whole.
 */

import type { Asked, Connection } from "./connection.js";
import { BadAnswer, Gone } from "./errors.js";
import { isAfter, isEnd, type TurnEvent } from "./events.js";
import { isPage, pause, Trouble, type ConnectionNews } from "./retrying.js";

const PATH = "/process";

/** A connection that lasted so long was a good one, even if it brought nothing: a turn may be silent. */
const LASTED_MS = 5000;

// A browser opens six connections to a host, for all its tabs.
const LOOK_IN_EVERY_MS = 5000;
const LOOK_IN_MS = 1500;

export type ConnectionState = "connecting" | "live" | "lost" | "closed";

export interface FollowOptions {
  /** Where to go on: the id of the last event that was received. */
  cursor?: string;
  /** Told what becomes of the connection; the reason is there when it was lost. */
  onState?: (state: ConnectionState, reason: string) => void;
  /** Milliseconds without an answer after which to give up; the client's by default. */
  patience?: number;
  /**
   * In a page: give the connection back while the page is hidden, and look in now and then while this says that something
   * may come. Without it, hidden pages keep their connections.
   */
  isWorking?: () => boolean;
}

/** What is followed. */
export interface Followed {
  session: string;
  /** The turn's response; without it, the session is followed for ever. */
  response?: string | undefined;
  /** What begins the turn, or answers its calls; its id, or those of the calls, keep it from being taken twice. */
  body?: unknown;
  user?: string | undefined;
  /** What becomes of a turn's stream where the client is asked. */
  onPark?: "follow" | "complete";
}

/** The events of one turn, or of a whole session: each once, in order. */
export class Following implements AsyncIterableIterator<TurnEvent> {
  /** The id of the last event, or empty: where to go on. */
  cursor: string;
  /** The response that is followed; of answers to calls, known when it has begun. */
  response: string | undefined;

  private number = -1;
  private over = false;
  /** What was cut from the log has been asked for. */
  private fromStart = false;
  private abort: AbortController | null = null;
  private events: AsyncGenerator<TurnEvent, void> | null = null;

  constructor(
    private readonly connection: Connection,
    private readonly followed: Followed,
    private readonly options: FollowOptions = {},
  ) {
    this.cursor = options.cursor ?? "";
    this.response = followed.response;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /**
   * The next event; to the turn's end, or of a session for ever.
   *
   * @throws Refused, Gone when the session was cleared meanwhile; Unavailable; BadAnswer
   */
  async next(): Promise<IteratorResult<TurnEvent, void>> {
    if (this.over) return { value: undefined, done: true };
    if (!this.events) {
      this.abort = new AbortController();
      this.events = this.run(this.abort.signal);
      this.connection.open.add(this);
    }
    const events = this.events;
    let ended = true;
    try {
      const result = await events.next();
      ended = Boolean(result.done) || this.over;
      return result;
    } finally {
      if (ended && this.events === events) this.close();
    }
  }

  /** Leaving a loop closes the connection; another loop goes on after the last event. */
  async return(): Promise<IteratorResult<TurnEvent, void>> {
    this.close();
    return { value: undefined, done: true };
  }

  /** Close the connection; iterating again goes on after the last event. */
  close(): void {
    this.connection.open.delete(this);
    if (!this.abort) return;
    this.abort.abort();
    void this.events?.return().catch(() => {});
    this.abort = null;
    this.events = null;
    this.options.onState?.("closed", "");
  }

  private async *run(signal: AbortSignal): AsyncGenerator<TurnEvent, void> {
    const { patience, onState } = this.options;
    const tell = (news: ConnectionNews) => {
      this.connection.tell(news);
      if (news.state === "lost") onState?.("lost", news.reason);
    };
    const retries = this.connection.retries(`${this.method} ${PATH}`, patience, tell);
    while (!signal.aborted) {
      const attention = new Attention(signal, this.options.isWorking);
      let opened = Infinity;
      let again = false;
      let trouble = new Trouble(this.followed.response ? "The stream ended before the turn did" : "The stream ended");
      try {
        await attention.wanted();
        if (signal.aborted) return;
        onState?.("connecting", "");
        for await (const frame of this.connection.stream(this.method, PATH, { ...this.asked(), signal: attention.begin() })) {
          if (!frame) {
            opened = performance.now();
            onState?.("live", "");
            continue;
          }
          retries.served();
          const event = this.take(frame.id, read(frame.data, `${this.method} ${PATH}`));
          if (event === "again") {
            again = true;
            break;
          }
          if (!event) continue;
          if (this.response && isEnd(event, this.response)) this.over = true;
          yield event;
          if (this.over || signal.aborted) return;
        }
      } catch (error) {
        if (signal.aborted) return;
        if (attention.left) continue;
        if (error instanceof Gone && this.fromStart && this.cursor.endsWith("-0")) {
          // Some of it is gone from the history, too: what the log has is all that there is.
          this.cursor = "";
          continue;
        }
        if (attention.offline) trouble = new Trouble("No network");
        else if (error instanceof Trouble) trouble = error;
        else throw error;
      } finally {
        attention.end();
      }
      if (again) continue;
      if (performance.now() - opened > LASTED_MS) retries.served();
      await retries.wait(trouble, signal);
    }
  }

  /** An event that is new; nothing if it came before, `again` when what came before it is to be asked for. */
  private take(id: string, event: TurnEvent): TurnEvent | "again" | null {
    if (id && this.cursor && !isAfter(id, this.cursor)) return null;
    if (this.response ?? this.followed.body) {
      const number = event.sequence_number ?? Infinity;
      if (number <= this.number) return null;
      if (number !== Infinity) this.number = number;
    } else if (!this.cursor && !this.fromStart && Number(id.split("-")[1]) > 1) {
      // The log's beginning was trimmed: what it held stands in the history, for those who ask from before it.
      this.cursor = `${id.split("-")[0]}-0`;
      this.fromStart = true;
      return "again";
    }
    if (!this.response && this.followed.body && event.object === "response") this.response = event.id;
    this.cursor = id || this.cursor;
    return event;
  }

  /** A turn is sent until its first event has come. */
  private get method(): "POST" | "GET" {
    return this.followed.body !== undefined && !(this.response && this.cursor) ? "POST" : "GET";
  }

  private asked(): Asked {
    const { session, body, user, onPark } = this.followed;
    const query = { on_park: onPark ?? "follow" };
    if (this.method === "POST") return { query, body };
    return {
      query: { ...query, session_id: session, response_id: this.response, user_id: user },
      headers: this.cursor ? { "Last-Event-ID": this.cursor } : {},
    };
  }
}

function read(data: string, where: string): TurnEvent {
  try {
    const event = JSON.parse(data);
    if (event && typeof event === "object") return event;
  } catch {
    // As what is no object.
  }
  throw new BadAnswer("An event is not a JSON object", where);
}

/** Whether a page wants its connection: a hidden one may give it back, and none holds one that the network has lost. */
class Attention {
  /** The page was hidden, and the connection given back. */
  left = false;
  /** The browser lost the network. */
  offline = false;

  private readonly abort = new AbortController();
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly signal: AbortSignal,
    private readonly isWorking: (() => boolean) | undefined,
  ) {}

  /** Wait until a connection is wanted. */
  async wanted(): Promise<void> {
    if (!this.isWorking || !isPage() || !document.hidden) return;
    await pause(this.isWorking() ? LOOK_IN_EVERY_MS : Infinity, this.signal, [[document, "visibilitychange"]]);
  }

  /** The signal of one connection. */
  begin(): AbortSignal {
    this.signal.addEventListener("abort", this.close);
    if (this.signal.aborted) this.close();
    if (isPage()) {
      addEventListener("offline", this.lost);
      if (this.isWorking) {
        document.addEventListener("visibilitychange", this.hidden);
        if (document.hidden) this.timer = setTimeout(this.hidden, LOOK_IN_MS);
      }
    }
    return this.abort.signal;
  }

  end(): void {
    clearTimeout(this.timer);
    this.signal.removeEventListener("abort", this.close);
    if (!isPage()) return;
    removeEventListener("offline", this.lost);
    document.removeEventListener("visibilitychange", this.hidden);
  }

  private readonly close = () => this.abort.abort();

  private readonly lost = () => {
    this.offline = true;
    this.close();
  };

  private readonly hidden = () => {
    if (!document.hidden) return;
    this.left = true;
    this.close();
  };
}
