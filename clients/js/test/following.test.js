/** Turns are followed through cut connections: each event once, in order. */

import assert from "node:assert/strict";
import http from "node:http";
import { after, before, beforeEach, test } from "node:test";

import { BadAnswer, Gone, InvalidRequest, KeyRefused, NotFound, TurnCanceled, TurnFailed, Unavailable } from "@turnstream/client";

import { clientAt, dense, deployment, numbersOf, operator, Proxy, QUICK, tokens, until } from "./support.js";

let proxy;
let client;

before(async () => {
  proxy = await new Proxy(deployment.urls[0]).start();
  client = clientAt(proxy.url);
});
beforeEach(() => {
  Object.assign(proxy, { frames: Infinity, torn: 0, cuts: 0, upstream: deployment.urls[0] });
  proxy.requests.length = 0;
});
after(() => proxy.close());

test("a turn says what the agent says", async () => {
  assert.equal(await client.chat("hello there").text(), "You said: hello there");
});

test("pieces of an answer join to its text, and messages come whole", async () => {
  let text = "";
  for await (const piece of client.chat("/tokens 20 1").deltas()) text += piece;
  assert.equal(text, tokens(20));
  const types = [];
  for await (const message of client.chat("/tool add 1 2").messages()) types.push(message.type);
  assert.deepEqual(types, ["plugin_call", "plugin_call_output", "message"]);
});

/** Calls and their results are never joined, as pieces of text are: more than a hundred events, however fast they come. */
const HUNDRED = "/calls 12";

test("a connection that is cut behind every event, in the middle of the next one", async () => {
  proxy.frames = 1;
  proxy.torn = 20;
  const ran = [];
  const answering = clientAt(proxy.url).otherFunctions((call) => ran.push(call.id));
  const reply = answering.chat(HUNDRED);
  const numbers = await numbersOf(reply);
  assert.ok(numbers.length > 100, `${numbers.length} events`);
  assert.deepEqual(numbers, dense(numbers.length));
  assert.ok(proxy.cuts > 100, `${proxy.cuts} cuts`);
  assert.equal(ran.length, 12);
  assert.equal(new Set(ran).size, 12);
  assert.equal(proxy.requests.filter((each) => each.startsWith("POST /process")).length, 1, "it was sent once");
});

test("a cut at each event of one turn, resumed at the other front end", async () => {
  const answering = clientAt().otherFunctions(() => "fog");
  const session = answering.session();
  const id = `each-cut-${session.id}`;
  const whole = await numbersOf(session.chat(HUNDRED, { id }));
  assert.ok(whole.length > 100, `${whole.length} events`);
  for (const at of whole.slice(1)) {
    proxy.upstream = deployment.urls[0];
    proxy.frames = at;
    const reply = client.session(session.id).follow(id);
    const numbers = [];
    for await (const event of reply) {
      numbers.push(event.sequence_number);
      proxy.frames = Infinity;
      proxy.upstream = deployment.urls[1];
    }
    assert.deepEqual(numbers, whole, `cut after ${at} events`);
  }
});

test("a loop that is left closes the connection; another one goes on where it stopped", async () => {
  const session = client.session();
  const reply = session.chat("/tokens 30 10");
  const numbers = [];
  for await (const event of reply) {
    numbers.push(event.sequence_number);
    if (numbers.length === 8) break;
  }
  await until(() => proxy.sockets.size === 0, "the connection to be closed");
  // Elsewhere, too.
  const others = await numbersOf(clientAt().session(session.id).follow(reply.id, { cursor: reply.cursor }));
  assert.equal(others[0], 8);
  numbers.push(...(await numbersOf(reply)));
  assert.deepEqual(numbers, dense(numbers.length));
  assert.equal(reply.turn.messages.at(-1).parts[0].text, tokens(30));
  const spoken = session.chat("/tokens 30 10");
  let text = "";
  for await (const piece of spoken.deltas()) {
    text += piece;
    if (text.includes("tok5")) break;
  }
  for await (const piece of spoken.deltas()) text += piece;
  assert.equal(text, tokens(30));
});

test("what was sent and never answered is sent again, and begins one turn", async () => {
  const session = client.session();
  proxy.mute = 3;
  assert.equal(await session.chat("once").text(), "You said: once");
  assert.equal(proxy.requests.filter((each) => each.startsWith("POST")).length, 4);
  const said = (await session.history()).filter((each) => each.role === "user");
  assert.equal(said.length, 1);
});

test("a stop ends the turn, and what was said stays", async () => {
  const session = client.session();
  const reply = session.chat("/tokens 1000 20");
  let text = "";
  await assert.rejects(async () => {
    for await (const piece of reply.deltas()) {
      if (!text) await reply.stop();
      text += piece;
    }
  }, TurnCanceled);
  assert.ok(text.startsWith("tok0 "));
  assert.equal((await session.follow(reply.id).finished()).status, "canceled");
});

test("a failure is an error with the response", async () => {
  await assert.rejects(client.chat("/fail on purpose").text(), (error) => error instanceof TurnFailed && error.response.status === "failed");
  assert.equal((await client.chat("/fail on purpose").finished()).status, "failed");
});

test("a session that was cleared is gone for who comes back to it", async () => {
  const session = client.session();
  const watching = session.watch();
  await session.chat("first").text();
  for await (const event of watching) if (event.object === "response" && event.status === "completed") break;
  const { cursor } = watching;
  await session.clear();
  await session.chat("second").text();
  await assert.rejects(session.watch({ cursor }).next(), (error) => error instanceof Gone && error.status === 410);
});

test("a session is watched, whoever speaks in it", async () => {
  const session = client.session();
  await session.chat("one").text();
  proxy.frames = 3;
  const ends = [];
  void clientAt(deployment.urls[1]).session(session.id).chat("two").text();
  for await (const event of session.watch()) {
    if (event.object === "response" && event.status === "completed") ends.push(event.output.at(-1).content[0].text);
    if (ends.length === 2) break;
  }
  assert.deepEqual(ends, ["You said: one", "You said: two"]);
});

test("who is told to wait does, for as long as was said", async () => {
  const made = await operator().request("POST", "/admin/v1/keys", { body: { owner: "narrow", agent: "demo", concurrency: 1 } });
  const news = [];
  const narrow = clientAt(proxy.url, { key: made.token, onConnection: (each) => news.push(each) });
  const first = narrow.chat("/tokens 1000 50");
  await first.next();
  const second = narrow.chat("patience").text();
  const lost = await until(() => news.find((each) => each.state === "lost"), "the 429");
  assert.match(lost.reason, /1 turns at once/);
  // Retry-After, which is longer than any wait of ours.
  assert.ok(lost.retryIn >= 1000, `${lost.retryIn} ms`);
  await first.stop();
  assert.equal(await second, "You said: patience");
  assert.ok(news.some((each) => each.state === "restored" && each.after >= 1000));
});

test("what is refused is refused at once, and says why", async () => {
  await assert.rejects(clientAt(proxy.url, { key: "sk-0123456789abcdef0123" }).chat("hello").text(), (error) => {
    return error instanceof KeyRefused && error.status === 401 && !error.message.includes("sk-0123");
  });
  await assert.rejects(client.session("never").history(), NotFound);
  await assert.rejects(client.chat("hello", { settings: { temperature: "warm" } }).text(), InvalidRequest);
  assert.throws(() => clientAt("ftp://there"), TypeError);
});

test("a 404 that no front end gave is told with the URL as the likely cause", async () => {
  let page = "<html>nothing here</html>";
  const elsewhere = http.createServer((_, response) => response.writeHead(404).end(page));
  await new Promise((resolve) => elsewhere.listen(0, "127.0.0.1", resolve));
  const lost = clientAt(`http://127.0.0.1:${elsewhere.address().port}/path`);
  const told = /^The server answered 404 without saying what is not there \((POST|GET) \/\S+\)\. Check the URL/;
  try {
    const other = JSON.stringify({ code: "not_found", message: "Not Found" });
    for (page of [page, "", "{}", "null", other]) {
      const asked = [() => lost.chat("hello").text(), () => lost.session("s1").history()];
      for (const ask of asked) await assert.rejects(ask, (error) => error instanceof BadAnswer && told.test(error.message));
    }
    page = JSON.stringify({ code: "no_session", message: "No such session." });
    await assert.rejects(lost.session("s1").history(), NotFound);
  } finally {
    elsewhere.close();
    elsewhere.closeAllConnections();
  }
});

test("patience is used up before a client gives up", async () => {
  let busy = true;
  const later = http.createServer((_, response) => {
    response.writeHead(busy ? 503 : 404, { "Retry-After": "0.1", "Content-Type": "application/json" });
    response.end(JSON.stringify({ code: "no_session", message: "No such session." }));
    busy = false;
  });
  await new Promise((resolve) => later.listen(0, "127.0.0.1", resolve));
  const news = [];
  const late = { first: 1e9, most: 1e9 };
  const patient = clientAt(`http://127.0.0.1:${later.address().port}`, { patience: 400, backoff: late, onConnection: (each) => news.push(each) });
  try {
    // A second try was made.
    await assert.rejects(patient.session("s1").history(), NotFound);
  } finally {
    later.close();
    later.closeAllConnections();
  }
  const { retryIn } = news.find((each) => each.state === "lost");
  assert.ok(retryIn > 100 && retryIn < 401, `${retryIn} ms`);
});

test("patience ends", async () => {
  const nobody = clientAt("http://127.0.0.1:9", { patience: 200, backoff: QUICK });
  await assert.rejects(nobody.chat("hello").text(), (error) => error instanceof Unavailable && /No connection; tried \d+ times/.test(error.message));
});

test("an identity", async () => {
  assert.deepEqual((await client.identity()).scopes, ["chat"]);
});
