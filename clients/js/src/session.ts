/** One conversation, from the client's side. */

import type { Functions } from "./calls.js";
import type { Connection } from "./connection.js";
import type { Part, Remembered } from "./conversation.js";
import { Following, type FollowOptions } from "./following.js";
import { Reply } from "./reply.js";
import type { ConnectionNews } from "./retrying.js";

const LITEAGENT = "/liteAgent/v1";

/** A part of what a user says, as the protocol has it. */
export type SaidPart =
  | { type: "text"; text: string }
  | { type: "image"; image_url: string }
  | { type: "file"; file_url?: string; filename?: string; file_data?: string }
  | { type: "audio"; data: string; format?: string }
  | { type: "video"; video_url: string }
  | { type: "data"; data: Record<string, unknown> };

/** What a user says: a text, or parts of one message. */
export type Said = string | readonly (string | SaidPart)[];

export interface ChatOptions {
  /** Names the turn, so that it can be found again; a known one is followed, not begun anew. */
  id?: string;
  /** Other fields of the request (`tools`, `metadata`, `temperature` …), where the agent allows them. */
  settings?: Record<string, unknown>;
}

export interface SubmitOptions extends ChatOptions {
  signal?: AbortSignal;
  /** Told when it has to be tried again. */
  onConnection?: (news: ConnectionNews) => void;
}

/** One conversation. The server keeps it for as long as it is used, a day longer, or as an operator said. */
export class Session {
  constructor(
    private readonly connection: Connection,
    /** What answers the agent's calls. */
    readonly functions: Functions,
    /** Its name; the same key finds it again under it. */
    readonly id: string,
    private readonly user?: string,
  ) {}

  /** Say something; the turn begins when the reply is first looked at. */
  chat(said: Said, options: ChatOptions = {}): Reply {
    const id = options.id ?? `response_${newId()}`;
    return this.reply(id, options.id !== undefined, this.body(said, id, options.settings));
  }

  /**
   * Say something without following it; resolves with the turn's id when the server has it. It is tried until then, or
   * until the signal is aborted.
   *
   * @throws Refused, BadAnswer
   */
  async submit(said: Said, options: SubmitOptions = {}): Promise<string> {
    const id = options.id ?? `response_${newId()}`;
    const { signal } = options;
    const asked = { body: this.body(said, id, options.settings), ...(signal ? { signal } : {}) };
    await this.connection.accept("POST", "/process", asked, options.onConnection);
    return id;
  }

  /**
   * The reply of a turn that was begun before, by whomever; after `cursor` if it is given. Calls that still wait for an
   * answer are answered by the client's functions.
   */
  follow(id: string, options: FollowOptions = {}): Reply {
    return this.reply(id, true, undefined, options);
  }

  /**
   * The events of all turns of the session, from its beginning or after `cursor`, for ever. Iterate over it; its `cursor`
   * says how far it has come.
   *
   * @throws NotFound when iterated over: the session is unknown; it begins with its first turn
   */
  watch(options: FollowOptions = {}): Following {
    return new Following(this.connection, { session: this.id, user: this.user }, options);
  }

  /**
   * Answer calls, and follow the response that begins with the answers (`onPark: "complete"`).
   *
   * @internal
   */
  resumeWith(input: readonly unknown[]): Following {
    const body = { session_id: this.id, user_id: this.user, stream: true, input };
    return new Following(this.connection, { session: this.id, body, onPark: "complete" });
  }

  /**
   * A part of a turn as a response of its own, up to where the client is asked; see `on_park` in the protocol.
   *
   * @internal
   */
  part(response?: string, said?: Said, settings?: Record<string, unknown>): Following {
    const reconnect = { session_id: this.id, user_id: this.user, stream: true, reconnect: true };
    const body = said === undefined ? (response ? undefined : reconnect) : this.body(said, response ?? "", settings);
    return new Following(this.connection, { session: this.id, response, user: this.user, body, onPark: "complete" });
  }

  /**
   * The events of one turn from its beginning.
   *
   * @internal
   */
  watchTurn(response: string): Following {
    return new Following(this.connection, { session: this.id, response, user: this.user });
  }

  /**
   * Answer a call of the agent by its id; a repeat changes nothing.
   *
   * @throws NotFound, Conflict, Gone: the call is unknown, its turn has ended, or its deadline has passed
   */
  async answer(call: string, result: unknown): Promise<void> {
    await this.call("POST", "callback", {}, { id: call, result });
  }

  /**
   * End one turn, or all of the session. When this resolves they have ended.
   *
   * @throws NotFound: the session or the turn is unknown
   */
  async stop(id?: string): Promise<void> {
    await this.call("POST", "stop", id ? { taskId: id.replace(/^response_/, "") } : {});
  }

  /**
   * What was said in the session so far, by everybody, in order.
   *
   * @throws NotFound: the session is unknown
   */
  async history(): Promise<Remembered[]> {
    return this.call("GET", "history");
  }

  /** End what runs, then forget everything that was said; the session can be used again. */
  async clear(): Promise<void> {
    await this.call("POST", "clear");
  }

  private reply(id: string, past: boolean, body?: unknown, options?: FollowOptions): Reply {
    const followed = { session: this.id, response: id, body, user: this.user };
    return new Reply(this, id, new Following(this.connection, followed, options), this.functions, past);
  }

  /** The same bytes each time: under the same id another body is refused. */
  private body(said: Said, id: string, settings: Record<string, unknown> = {}): unknown {
    const parts = (typeof said === "string" ? [said] : said).map((part) => (typeof part === "string" ? { type: "text", text: part } : part));
    const input = [{ role: "user", type: "message", content: parts }];
    return { ...settings, session_id: this.id, id, user_id: this.user, stream: true, input };
  }

  private async call(method: string, what: string, query: Record<string, string> = {}, body?: unknown): Promise<any> {
    return this.connection.call(method, `${LITEAGENT}/${what}`, { query: { sessionId: this.id, ...query }, body });
  }
}

/** What was said, as `Conversation` shows it. */
export function partsOf(said: Said): Part[] {
  return (typeof said === "string" ? [said] : said).map((part) => {
    if (typeof part === "string") return { type: "text", text: part };
    if (part.type === "image") return { type: "image", image: part.image_url };
    if (part.type === "video") return { type: "video", video: part.video_url };
    if (part.type === "file") return { type: "file", file: part.file_url, filename: part.filename };
    return part;
  });
}

/** A random name; `randomUUID` is missing where a page is served without TLS. */
export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
