// What users say, from the moment they say it until the server has it, over reloads and lost connections.

import { sentPart } from "./attachments.js";
import * as store from "./store.js";
import { clientOf } from "./server.js";

/** Sends messages, those of one conversation in their order. A message's id keeps it from being taken twice. */
export class Outbox {
  /**
   * @param {object} given
   * @param {(message: object) => void} given.onSent the server has it
   * @param {(message: object, reason: string) => void} given.onTrouble it will be tried again
   * @param {(message: object, error: Error) => void} given.onRefused it will not be tried again
   */
  constructor(given) {
    Object.assign(this, given);
    this.aborts = new Map();
    this.messages = [];
    this.busy = new Set();
    // What is too large for the browser's storage is lost with the page: ask before it goes.
    addEventListener("beforeunload", (event) => { if (this.messages.length && !this.stored) event.preventDefault(); });
  }

  /** Take up what was not sent before a reload, with the keys that are left. */
  resume(tokens) {
    const known = new Set(this.messages.map((each) => each.id));
    this.messages.push(...store.outbox().filter((each) => tokens.includes(each.token) && !known.has(each.id)));
    this.save();
    for (const each of this.messages) this.run(lineOf(each));
  }

  /** @param {{id: string, token: string, session: string, parts: object[]}} message */
  add(message) {
    this.messages.push(message);
    this.save();
    this.run(lineOf(message));
  }

  /** What is not sent yet in a conversation. */
  of(token, session) {
    return this.messages.filter((each) => each.token === token && each.session === session);
  }

  /** Send these no more. One of which the answer is under way may have arrived. */
  withdraw(messages) {
    this.messages = this.messages.filter((each) => !messages.includes(each));
    this.save();
    for (const each of messages) this.aborts.get(each.id)?.abort();
  }

  forget(token) {
    this.withdraw(this.messages.filter((each) => each.token === token));
  }

  async run(line) {
    if (this.busy.has(line)) return;
    this.busy.add(line);
    for (;;) {
      const message = this.messages.find((each) => lineOf(each) === line);
      if (!message) break;
      await this.send(message);
    }
    this.busy.delete(line);
  }

  async send(message) {
    const abort = new AbortController();
    this.aborts.set(message.id, abort);
    let tell = () => this.onSent(message);
    try {
      await clientOf(message.token).session(message.session).submit(partsOf(message), {
        id: message.id, signal: abort.signal,
        onConnection: (news) => { if (news.state === "lost") this.onTrouble(message, news.reason); },
      });
    } catch (error) {
      tell = () => this.onRefused(message, error);
    } finally {
      this.aborts.delete(message.id);
    }
    if (!this.messages.includes(message)) return;
    this.messages = this.messages.filter((each) => each !== message);
    tell();
    this.save();
  }

  save() {
    this.stored = store.saveOutbox(this.messages);
  }
}

const lineOf = ({ token, session }) => `${token} ${session}`;

const partsOf = ({ parts }) => parts.map(sentPart);
