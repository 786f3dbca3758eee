/** A network that breaks. It needs no package: tests of other clients have it, too. */

import net from "node:net";

/** Between client and front end: passes on what comes, until it cuts. */
export class Proxy {
  /** Frames of each answer that come through before its connection is cut; none: all. */
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
      // A connection may have served another request before.
      if (/^(GET|POST) /.test(head)) passed = 0;
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
