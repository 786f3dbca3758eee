// HTTP with a key, and streams that come back by themselves.

// The page lies at …/console/, the API one level above it, whatever a proxy puts before both.
const ROOT = new URL("../", document.baseURI);

// A front end is never silent for longer than its heartbeat, ten seconds unless an operator changed it.
const SILENT_MS = 35_000;
const FIRST_WAIT_MS = 250;
const MOST_WAIT_MS = 10_000;
const MOST_TIMER_MS = 2 ** 31 - 1;

// A browser opens six connections to a host, for all its tabs. A hidden one gives its own back, and while its agent
// works looks in now and then: its title says when that is done.
const LOOK_IN_EVERY_MS = 5000;
const LOOK_IN_MS = 1500;

// Statuses of front ends, and of proxies whose front end just died, that pass.
const PASSING = new Set([408, 425, 429, 502, 503, 504]);

/** What went wrong with a request; `passing` when trying again may help. */
export class Trouble extends Error {
  constructor(text, { status = 0, after = 0 } = {}) {
    super(text);
    this.status = status;
    this.after = after;
    this.passing = status === 0 || PASSING.has(status);
  }
}

async function request(key, method, path, { query, body, headers, signal } = {}) {
  const url = new URL(path.replace(/^\//, ""), ROOT);
  for (const [name, value] of Object.entries(query ?? {})) if (value !== undefined && value !== "") url.searchParams.append(name, value);
  const given = { Authorization: `Bearer ${key}`, ...headers };
  if (body !== undefined) given["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(url, {
      method, headers: given, signal, cache: "no-store", credentials: "omit", redirect: "error",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Trouble("No connection");
  }
  if (answer.ok) return answer;
  let told = {};
  try {
    told = await answer.json();
  } catch {
    // A proxy's page, perhaps; the status says enough.
  }
  // The error alone, or in a rejected response. Codes are words or numbers, by the protocol; the message is for people.
  const message = told.error?.message ?? told.message;
  throw new Trouble(message || `The server answered ${answer.status}`, {
    status: answer.status, after: (Number(answer.headers.get("Retry-After")) || 0) * 1000,
  });
}

/** The JSON that a request is answered with. */
export async function ask(key, method, path, given) {
  const answer = await request(key, method, path, given);
  try {
    return await answer.json();
  } catch {
    throw new Trouble("The answer is not JSON", { status: answer.status });
  }
}

/** As `ask`, repeated while trouble may pass; for requests that bear it. */
export async function insist(key, method, path, given, tries = 6) {
  for (let tried = 1; ; tried += 1) {
    try {
      return await ask(key, method, path, given);
    } catch (error) {
      if (!(error instanceof Trouble) || !error.passing || tried >= tries) throw error;
      await pause(wait(tried, error.after));
    }
  }
}

/** Send a turn until it is accepted. Its id keeps it from being taken twice; the answer is read elsewhere. */
export async function submit(key, body, signal, onTrouble) {
  for (let tried = 1; ; tried += 1) {
    const accepted = new AbortController();
    try {
      await request(key, "POST", "process", { body, signal: AbortSignal.any([signal, accepted.signal]) });
      return;
    } catch (error) {
      if (!(error instanceof Trouble) || !error.passing) throw error;
      onTrouble(error);
      await pause(wait(tried, error.after), (wake) => {
        addEventListener("online", wake, { once: true });
        signal.addEventListener("abort", wake, { once: true });
      });
      signal.throwIfAborted();
    } finally {
      accepted.abort();
    }
  }
}

/**
 * Follows a stream of events for as long as it is wanted, over as many connections as that takes.
 * Each new one says with Last-Event-ID what came last; a cut within an event loses nothing.
 */
export class Following {
  /**
   * @param {object} given
   * @param {string} given.key
   * @param {string} given.path
   * @param {object} given.query
   * @param {string} given.cursor where to go on; empty for the beginning
   * @param {(cursor: string, event: object) => void} given.onEvent
   * @param {(state: string, text: string) => void} given.onState connecting, live, lost
   * @param {(error: Trouble) => void} given.onRefused it will not be tried again
   * @param {() => boolean} given.isOver whether the end of the stream is the end of it all
   * @param {() => boolean} given.isWorking whether something may come soon that a hidden tab would show
   */
  constructor(given) {
    Object.assign(this, { cursor: "", query: {}, isOver: () => false, isWorking: () => false, onState: () => {} }, given);
    this.stopped = false;
    this.abort = null;
    this.wake = null;
    this.online = () => this.wake?.();
    this.offline = () => this.abort?.abort();
    this.seen = () => (document.hidden ? this.abort?.abort() : this.wake?.());
  }

  start() {
    addEventListener("online", this.online);
    addEventListener("offline", this.offline);
    document.addEventListener("visibilitychange", this.seen);
    this.run();
  }

  stop() {
    this.stopped = true;
    removeEventListener("online", this.online);
    removeEventListener("offline", this.offline);
    document.removeEventListener("visibilitychange", this.seen);
    this.abort?.abort();
    this.wake?.();
  }

  async run() {
    let tries = 0;
    while (!this.stopped) {
      if (document.hidden) {
        await pause(this.isWorking() ? LOOK_IN_EVERY_MS : MOST_TIMER_MS, (wake) => { this.wake = wake; });
        if (this.stopped) return;
      }
      this.onState("connecting", "connecting");
      let after = 0;
      let why = "connection lost";
      try {
        if (await this.connection()) tries = 0;
        if (this.isOver()) return;
      } catch (error) {
        if (this.stopped) return;
        if (error instanceof Trouble) {
          if (!error.passing) {
            this.onState("idle", "not connected");
            this.onRefused(error);
            return;
          }
          after = error.after;
          if (error.status) why = error.message;
        }
      }
      if (this.stopped) return;
      if (document.hidden) continue;
      tries += 1;
      this.onState("lost", navigator.onLine ? `${why}; reconnecting` : "offline");
      await pause(wait(tries, after), (wake) => { this.wake = wake; });
    }
  }

  /** One connection, to its end; whether it brought anything. */
  async connection() {
    this.abort = new AbortController();
    const { signal } = this.abort;
    let silent = 0;
    const heard = () => {
      clearTimeout(silent);
      silent = setTimeout(() => this.abort.abort(), SILENT_MS);
    };
    heard();
    const over = document.hidden ? setTimeout(() => { if (document.hidden) this.abort.abort(); }, LOOK_IN_MS) : 0;
    let brought = false;
    try {
      const headers = { Accept: "text/event-stream", ...(this.cursor ? { "Last-Event-ID": this.cursor } : {}) };
      const answer = await request(this.key, "GET", this.path, { query: this.query, headers, signal });
      this.onState("live", "live");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done || this.stopped) return brought;
        heard();
        brought = true;
        const frames = (rest + value).split("\n\n");
        rest = frames.pop();
        for (const frame of frames) this.take(frame);
      }
    } finally {
      clearTimeout(silent);
      clearTimeout(over);
    }
  }

  take(frame) {
    let id = "";
    let data = "";
    for (const line of frame.split("\n")) {
      if (line.startsWith("id:")) id = line.slice(3).trim();
      else if (line.startsWith("data:")) data += line.slice(5);
    }
    if (!data || this.stopped) return;
    const event = JSON.parse(data);
    this.cursor = id || this.cursor;
    this.onEvent(id, event);
  }
}

function wait(tries, after) {
  const whole = Math.min(MOST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.min(tries - 1, 10));
  return Math.max(after, whole * (0.5 + Math.random() / 2));
}

function pause(ms, given = () => {}) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    given(() => { clearTimeout(timer); resolve(); });
  });
}
