/** The client: one key at one URL, and the functions that the agent may call. */

import { Functions, type ApprovalHandler, type ClientFunction, type OtherFunctions } from "./calls.js";
import { Connection, type Asked } from "./connection.js";
import type { Reply } from "./reply.js";
import { isPage, type Backoff, type ConnectionNews } from "./retrying.js";
import { newId, Session, type ChatOptions, type Said } from "./session.js";

const DEFAULT_URL = "http://127.0.0.1:8090";

export interface ClientOptions {
  /**
   * The front end's address, or that of the proxy before several of them. By default `TURNSTREAM_URL`, in a page where it
   * came from.
   */
  url?: string;
  /**
   * The API key, `sk-…`; it selects the agent. By default `TURNSTREAM_KEY`. A page that speaks to a proxy of its own, which
   * adds the key, gives none.
   */
  key?: string;
  /** Milliseconds without an answer from any front end after which to give up; 120,000 by default. */
  patience?: number;
  /** The waits between tries. */
  backoff?: Partial<Backoff>;
  /** Told when the connection is lost and when it is back. */
  onConnection?: (news: ConnectionNews) => void;
  /** Instead of the global one. */
  fetch?: typeof fetch;
}

/** What an API key is for. */
export interface Identity {
  owner: string;
  /** Empty when it is for operators only. */
  agent: string;
  scopes: string[];
}

/**
 * Chats with the agent that a key selects.
 *
 *     const client = new Client({ url: "http://127.0.0.1:8090", key });
 *     console.log(await client.chat("hello").text());
 */
export class Client {
  private readonly functions = new Functions();
  private readonly connection: Connection;

  /** @throws TypeError: the URL or the key cannot be one */
  constructor(options: ClientOptions = {}) {
    this.connection = new Connection(
      options.url ?? variable("TURNSTREAM_URL") ?? (isPage() ? location.origin : DEFAULT_URL),
      options.key ?? variable("TURNSTREAM_KEY") ?? "",
      { first: 2_000, most: 10_000, ...options.backoff },
      options.patience ?? 120_000,
      options.onConnection ?? (() => {}),
      options.fetch ?? ((...given) => fetch(...given)),
    );
  }

  /** A conversation: the one of that name, or a new one. Nothing is sent yet. */
  session(id: string = newId(), options: { user?: string } = {}): Session {
    return new Session(this.connection, this.functions, id, options.user);
  }

  /** Say something in a new session. */
  chat(said: Said, options: ChatOptions = {}): Reply {
    return this.session().chat(said, options);
  }

  /**
   * The function answers the agent's calls of that name. Its result must have a JSON form. When it throws, the agent is
   * told so, and goes on; `FunctionError` chooses the words.
   */
  function(name: string, run: ClientFunction): this {
    this.functions.add(name, run);
    return this;
  }

  /** The function gets each `Call` that no other is registered for. */
  otherFunctions(run: OtherFunctions): this {
    this.functions.answerOthers(run);
    return this;
  }

  /** The function decides on each `Approval`. When it throws, that is a refusal. */
  approval(decide: ApprovalHandler): this {
    this.functions.answerApprovals(decide);
    return this;
  }

  /**
   * What the key is for.
   *
   * @throws KeyRefused: it is malformed, unknown or expired
   */
  async identity(): Promise<Identity> {
    return this.connection.call("GET", "/console/key");
  }

  /**
   * The JSON of another route. It is repeated while trouble lasts, so it must bear that.
   *
   * @throws Refused, Unavailable, BadAnswer
   */
  async request(method: string, path: string, asked: Asked = {}): Promise<any> {
    return this.connection.call(method, path, asked);
  }

  /** Close all connections. Turns go on at the server. */
  close(): void {
    for (const each of [...this.connection.open]) each.close();
  }
}

function variable(name: string): string | undefined {
  const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
  return process?.env?.[name] || undefined;
}
