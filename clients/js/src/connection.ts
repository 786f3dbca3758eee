/** One client's HTTP: single requests that are repeated while trouble lasts, and streams that are opened once. */

import { BadAnswer, ClientError, refusal } from "./errors.js";
import { askedWait, Retries, Trouble, type Backoff, type ConnectionNews } from "./retrying.js";
import { frames, type Frame } from "./sse.js";

/** A front end's stream is never silent for longer than its heartbeat, 10 s unless an operator changed it. */
const SILENT_MS = 35_000;

/** Front ends, and proxies whose front end just died, answer so for a moment. */
const PASSING: ReadonlySet<number> = new Set([408, 425, 429, 502, 503, 504]);

/** Called when a request is answered, so that a stream is not taken for silent. */
type Heard = () => void;

export interface Asked {
  query?: Record<string, string | undefined>;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** Milliseconds without an answer after which to give up; 0 tries once. */
  patience?: number;
}

/** Speaks HTTP to one URL with one key. */
export class Connection {
  readonly url: string;
  /** What is to be closed with the client. */
  readonly open = new Set<{ close(): void }>();

  constructor(
    url: string,
    private readonly key: string,
    private readonly backoff: Backoff,
    readonly patience: number,
    readonly tell: (news: ConnectionNews) => void,
    private readonly fetched: typeof fetch,
  ) {
    if (!/^https?:\/\/[^/?#]/.test(url)) throw new TypeError(`url = "${url}": give the front end's address, as http://127.0.0.1:8090`);
    if (!/^[\x21-\x7e]*$/.test(key)) throw new TypeError("key = (value hidden): give an API key, sk-… and nothing around it");
    this.url = url.replace(/\/+$/, "");
  }

  /** The tries of one request or stream. */
  retries(where: string, patience = this.patience, tell = this.tell): Retries {
    return new Retries(this.backoff, patience, where, tell);
  }

  /**
   * The JSON that a request is answered with. It is repeated while trouble lasts, so it must bear that.
   *
   * @throws Refused, Unavailable, BadAnswer
   */
  async call(method: string, path: string, asked: Asked = {}): Promise<any> {
    const answer = await this.insist(method, path, asked, async (response) => {
      try {
        const text = await response.text();
        return { json: text ? JSON.parse(text) : null };
      } catch (error) {
        if (error instanceof SyntaxError) throw new BadAnswer("The answer is not JSON", `${method} ${path}`);
        throw new Trouble("The connection broke");
      }
    });
    return answer.json;
  }

  /** As `call`, for a stream of which nothing but its beginning is wanted. */
  async accept(method: string, path: string, asked: Asked = {}, tell?: (news: ConnectionNews) => void): Promise<void> {
    await this.insist(method, path, asked, async (response) => void (await response.body?.cancel()), tell, Infinity);
  }

  /** Open a stream, once; `null` when it is open, then its frames until it ends, for whatever reason. */
  async *stream(method: string, path: string, asked: Asked): AsyncGenerator<Frame | null, void> {
    const watched = silence(asked.signal);
    try {
      const headers = { Accept: "text/event-stream", ...asked.headers };
      const response = await this.request(method, path, { ...asked, headers, signal: watched.signal });
      yield null;
      if (response.body) yield* frames(response.body, watched.heard);
    } catch (error) {
      if (error instanceof Trouble || error instanceof ClientError || asked.signal?.aborted) throw error;
      throw new Trouble(watched.silent() ? `Silence for ${SILENT_MS / 1000} s` : "The connection broke");
    } finally {
      watched.end();
    }
  }

  private async insist<T>(
    method: string,
    path: string,
    asked: Asked,
    read: (response: Response) => Promise<T>,
    tell = this.tell,
    patience = this.patience,
  ): Promise<T> {
    const retries = this.retries(`${method} ${path}`, asked.patience ?? patience, tell);
    for (;;) {
      asked.signal?.throwIfAborted();
      const watched = silence(asked.signal);
      try {
        const answer = await read(await this.request(method, path, { ...asked, signal: watched.signal }));
        retries.served();
        return answer;
      } catch (error) {
        asked.signal?.throwIfAborted();
        if (!(error instanceof Trouble)) throw error;
        await retries.wait(error, asked.signal);
      } finally {
        watched.end();
      }
    }
  }

  /** One try; what is not a 200 is thrown. */
  private async request(method: string, path: string, { query, body, headers, signal }: Asked): Promise<Response> {
    const where = `${method} ${path}`;
    const params = new URLSearchParams();
    for (const [name, value] of Object.entries(query ?? {})) if (value) params.append(name, value);
    const given: Record<string, string> = { ...headers };
    if (this.key) given["Authorization"] = `Bearer ${this.key}`;
    if (body !== undefined) given["Content-Type"] = "application/json";
    let response: Response;
    try {
      response = await this.fetched(`${this.url}${path}${params.size ? `?${params}` : ""}`, {
        method,
        headers: given,
        signal: signal ?? null,
        body: body === undefined ? null : JSON.stringify(body),
        cache: "no-store",
        redirect: "manual",
      });
    } catch (error) {
      throw signal?.aborted && !(signal.reason instanceof Trouble) ? error : new Trouble("No connection");
    }
    const { status } = response;
    if (status === 200) return response;
    if (response.type === "opaqueredirect" || (status >= 300 && status < 400)) {
      throw new BadAnswer(`It redirects to ${response.headers.get("Location") ?? "another address"}`, where);
    }
    const told = await toldBy(response);
    if (PASSING.has(status)) {
      throw new Trouble(told.text || `The server answered ${status}`, askedWait(response.headers.get("Retry-After")));
    }
    // A front end says what is not there; this is its word for a path that it does not serve.
    if (status === 404 && (!told.text || told.code === "not_found")) throw new BadAnswer(`The server answered ${status} without saying what is not there`, where);
    throw refusal(status, told.code, told.text || `The server answered ${status} without saying why.`, where);
  }
}

/** Aborts what is silent for too long, and with the caller's signal. */
function silence(signal?: AbortSignal): { signal: AbortSignal; heard: Heard; silent: () => boolean; end: () => void } {
  const abort = new AbortController();
  let timer: ReturnType<typeof setTimeout>;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => abort.abort(new Trouble(`Silence for ${SILENT_MS / 1000} s`)), SILENT_MS);
  };
  const left = () => abort.abort(signal?.reason);
  signal?.addEventListener("abort", left, { once: true });
  if (signal?.aborted) left();
  heard();
  return {
    signal: abort.signal,
    heard,
    silent: () => abort.signal.reason instanceof Trouble,
    end: () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", left);
    },
  };
}

/** Code and text of an error's body; the body of a 409 is a response that was rejected. */
async function toldBy(response: Response): Promise<{ code: string | number; text: string }> {
  let body;
  try {
    body = JSON.parse(await response.text());
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw new Trouble("The connection broke");
    // A proxy's page, perhaps; the status says enough.
  }
  const told = body?.error && typeof body.error === "object" ? body.error : body;
  // LiteAgent's codes are numbers; what they mean stands beside them.
  const code = told?.reason ?? told?.code ?? "";
  return {
    code: typeof code === "string" || typeof code === "number" ? code : "",
    text: typeof told?.message === "string" ? told.message : "",
  };
}
