/** When to try again, and when to give up. */

import { Unavailable } from "./errors.js";

// Longest wait that a server may ask for; a proxy's `Retry-After: 86400` is not meant for a chat.
const MOST_ASKED_MS = 300_000;

/** How long to wait between tries, in milliseconds: at random, up to a bound that doubles from `first` to `most`. */
export interface Backoff {
  first: number;
  most: number;
}

/** The client waits, to try again, or a front end answers again. Times are in milliseconds. */
export type ConnectionNews =
  | { state: "lost"; reason: string; retryIn: number; tries: number }
  | { state: "restored"; after: number };

/** A try failed for a reason that may pass; `after` is the wait that the server asked for. */
export class Trouble extends Error {
  constructor(
    readonly reason: string,
    readonly after = 0,
  ) {
    super(reason);
  }
}

/** The tries of one request, or of one stream that is to be followed to its end. */
export class Retries {
  private tries = 0;
  private since = 0;
  private last = false;

  constructor(
    private readonly backoff: Backoff,
    private readonly patience: number,
    private readonly where: string,
    private readonly tell: (news: ConnectionNews) => void,
  ) {}

  /** A front end answered as it should. */
  served(): void {
    if (this.tries) this.tell({ state: "restored", after: performance.now() - this.since });
    this.tries = 0;
    this.last = false;
  }

  /**
   * Wait for the next try: what the server asked for, and then at random, since it asks many for the same. A wait
   * that would end after patience is over is a shorter one, before the last try.
   *
   * @throws Unavailable when patience is over
   */
  async wait(trouble: Trouble, signal?: AbortSignal): Promise<void> {
    const now = performance.now();
    if (!this.tries) this.since = now;
    this.tries += 1;
    const left = this.since + this.patience - now - trouble.after;
    if (this.last || !(left > 0)) {
      const tried = this.tries > 1 ? `; tried ${this.tries} times in ${Math.round((now - this.since) / 1000)} s` : "";
      throw new Unavailable(`${trouble.reason}${tried}`, this.where);
    }
    let drawn = Math.random() * Math.min(this.backoff.most, this.backoff.first * 2 ** Math.min(this.tries - 1, 30));
    if (drawn > left) {
      // At random, too: those who were cut together do not end together.
      drawn = Math.random() * left;
      this.last = true;
    }
    const retryIn = trouble.after + drawn;
    this.tell({ state: "lost", reason: trouble.reason, retryIn, tries: this.tries });
    await pause(retryIn, signal, ONLINE);
  }
}

/** What ends a wait early: the browser found the network again. */
const ONLINE: readonly [EventTarget, string][] = isPage() ? [[globalThis, "online"]] : [];

/** Whether this runs in a page, which can be offline and hidden. */
export function isPage(): boolean {
  return typeof document !== "undefined" && typeof addEventListener === "function";
}

/** Wait so many milliseconds, or until the signal is aborted or one of the events happens. */
export function pause(ms: number, signal?: AbortSignal, events: readonly (readonly [EventTarget, string])[] = []): Promise<void> {
  return new Promise((resolve) => {
    const wakers: readonly (readonly [EventTarget, string])[] = signal ? [...events, [signal, "abort"]] : events;
    const wake = () => {
      clearTimeout(timer);
      for (const [target, name] of wakers) target.removeEventListener(name, wake);
      resolve();
    };
    // A longer one would fire at once.
    const timer = ms === Infinity ? undefined : setTimeout(wake, Math.min(ms, 2 ** 31 - 1));
    for (const [target, name] of wakers) target.addEventListener(name, wake);
    if (signal?.aborted) wake();
  });
}

/** Milliseconds of a `Retry-After` header, which is a number of seconds or a date. */
export function askedWait(header: string | null): number {
  if (!header) return 0;
  const seconds = Number(header);
  const ms = Number.isNaN(seconds) ? Date.parse(header) - Date.now() : seconds * 1000;
  return Number.isNaN(ms) ? 0 : Math.min(Math.max(ms, 0), MOST_ASKED_MS);
}
