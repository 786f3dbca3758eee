/** A session of which the beginning was cut, against a front end that keeps 64 KiB of it. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Chat, textOf } from "@turnstream/client";

import { clientAt, deployment, Proxy, tokens, until } from "./support.js";

const LARGE = "many words ".repeat(700).trim();

test("what was cut from the log comes whole, from the history", async (t) => {
  const session = clientAt().session();
  await session.chat("/tokens 5 0").text();
  for (const text of [LARGE, LARGE]) await session.chat(text).text();
  const chat = new Chat(session);
  t.after(chat.subscribe(() => {}));
  await until(() => chat.getSnapshot().turns[2]?.status === "completed", "all turns", 30);
  const texts = chat.getSnapshot().turns.map((turn) => textOf(turn.messages.at(-1)));
  assert.deepEqual(texts, [tokens(5), `You said: ${LARGE}`, `You said: ${LARGE}`]);
});

test("what was cut from both is left out, and is not asked for again and again", async (t) => {
  const proxy = await new Proxy(deployment.urls[0]).start();
  t.after(() => proxy.close());
  const session = clientAt(proxy.url).session();
  for (const text of Array(6).fill(LARGE)) await session.chat(text).text();
  proxy.requests.length = 0;
  const watching = session.watch();
  for await (const event of watching) if (event.object === "response" && event.status === "completed") break;
  const followed = proxy.requests.filter((each) => each.startsWith("GET /process"));
  assert.deepEqual(followed.map((each) => /last-event-id: \d+-0/i.test(each)), [false, true, false]);
  const { cursor } = watching;
  await session.chat("afterwards").text();
  for await (const event of watching) if (event.object === "response" && event.status === "completed") break;
  assert.ok(Number(watching.cursor.split("-")[1]) > Number(cursor.split("-")[1]));
});
