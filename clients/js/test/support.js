/** What tests have: a deployment that was started for them, and a network between it and them that breaks. */

import net from "node:net";

import { Client } from "@turnstream/client";

/** `{urls: [front end], pids: {url: pid}, workers: [pid], key, admin}`, from tests/clients/test_javascript.py. */
export const deployment = JSON.parse(process.env.TURNSTREAM_TEST ?? "null");

export const QUICK = { first: 1, most: 50 };

export function clientAt(url = deployment.urls[0], given = {}) {
  return new Client({ url, key: deployment.key, backoff: QUICK, ...given });
}

/** The JSON of a request with the admin key. */
export function operator() {
  return new Client({ url: deployment.urls[0], key: deployment.admin, backoff: QUICK });
}

/** Between client and front end: passes on what comes, until it cuts. */
export class Proxy {
  /** Frames that each new connection lets through before it is cut; none: all. */
  frames = Infinity;
  /** Bytes of the next frame that come through, too. */
  torn = 0;
  /** Requests by POST that arrive, and whose connections are cut before any of the answer comes through. */
  mute = 0;
  /** Answers to GET wait for it. */
  held = undefined;
  /** Pieces of answers that front ends sent, held or not. */
  arrived = 0;
  cuts = 0;
  /** Frames that came through. */
  total = 0;
  requests = [];
  sockets = new Set();

  constructor(upstream) {
    this.upstream = upstream;
  }

  async start() {
    this.server = net.createServer((socket) => this.serve(socket));
    await new Promise((resolve) => this.server.listen(0, "127.0.0.1", resolve));
    this.url = `http://127.0.0.1:${this.server.address().port}`;
    return this;
  }

  serve(socket) {
    const there = net.connect(Number(new URL(this.upstream).port), "127.0.0.1");
    let passed = 0;
    let head = "";
    let silent = false;
    this.sockets.add(socket);
    const end = () => {
      this.sockets.delete(socket);
      socket.destroy();
      there.destroy();
    };
    for (const each of [socket, there]) each.on("error", end).on("close", end);
    socket.on("data", (piece) => {
      head = piece.toString("latin1").split("\r\n\r\n")[0];
      this.requests.push(head);
      if (this.mute > 0 && head.startsWith("POST")) {
        this.mute -= 1;
        silent = true;
      }
      there.write(piece);
    });
    there.on("data", async (piece) => {
      this.arrived += 1;
      if (head.startsWith("GET")) await this.held;
      if (silent) {
        end();
        return;
      }
      let from = 0;
      for (;;) {
        const at = piece.indexOf("\n\n", from);
        if (at < 0) break;
        from = at + 2;
        passed += 1;
        this.total += 1;
        if (passed < this.frames) continue;
        this.cuts += 1;
        // What was let through arrives; nothing says that it is all.
        this.sockets.delete(socket);
        socket.write(piece.subarray(0, from + this.torn), () => end());
        there.removeAllListeners("data");
        return;
      }
      socket.write(piece);
    });
  }

  cutAll() {
    for (const socket of this.sockets) socket.destroy();
  }

  async close() {
    this.cutAll();
    await new Promise((resolve) => this.server.close(resolve));
  }
}

/** Wait for a condition by name. */
export async function until(condition, what, seconds = 60) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > end) throw new Error(`waited ${seconds} s for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** The numbers of a reply's events. */
export async function numbersOf(reply) {
  const numbers = [];
  for await (const event of reply) numbers.push(event.sequence_number);
  return numbers;
}

export const dense = (count) => Array.from({ length: count }, (_, at) => at);

export const tokens = (count) => dense(count).map((number) => `tok${number} `).join("");
