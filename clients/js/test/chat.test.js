/** A conversation as it is shown: what the hook gives to components. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Chat, Conversation, Refused, textOf } from "@turnstream/client";

import { clientAt, deployment, Proxy, tokens, until } from "./support.js";

/** Somebody who looks at a chat. */
function look(t, chat) {
  const snapshots = [];
  const leave = chat.subscribe(() => snapshots.push(chat.getSnapshot()));
  t.after(leave);
  return { snapshots, leave };
}

const answerOf = (turn) => textOf(turn.messages.at(-1));

test("what is said shows at once, and what becomes of it", async (t) => {
  const chat = new Chat(clientAt().session());
  const { snapshots, leave } = look(t, chat);
  await chat.send("hello");
  await until(() => chat.getSnapshot().turns[0]?.status === "completed", "the turn's end");
  assert.equal(snapshots.find((each) => each.turns.length)?.turns[0].status, "unsent");
  const { turns, working, connection } = chat.getSnapshot();
  assert.deepEqual([turns.length, working, connection], [1, false, "live"]);
  assert.deepEqual(turns[0].said, [{ type: "text", text: "hello" }]);
  assert.equal(answerOf(turns[0]), "You said: hello");
  leave();
  await until(() => chat.getSnapshot().connection === "closed", "the connection to be closed");
});

test("two who look at one session, one behind a line that is cut all the time", async (t) => {
  const proxy = await new Proxy(deployment.urls[0]).start();
  t.after(() => proxy.close());
  proxy.frames = 5;
  const session = clientAt(proxy.url).session();
  const one = new Chat(session);
  const other = new Chat(clientAt(deployment.urls[1]).session(session.id));
  look(t, one);
  look(t, other);
  await one.send("/tokens 60 5");
  await until(() => one.getSnapshot().turns[0]?.status === "completed", "the turn's end");
  // The second one began before the session did.
  await other.send("and me");
  for (const chat of [one, other]) {
    await until(() => chat.getSnapshot().turns.filter((turn) => turn.status === "completed" && turn.said).length === 2, "both turns");
    const { turns } = chat.getSnapshot();
    assert.deepEqual(turns.map(answerOf), [tokens(60), "You said: and me"]);
    assert.deepEqual(turns.map((turn) => turn.said[0].text), ["/tokens 60 5", "and me"]);
  }
});

test("snapshots do not change, and what did not change stays the same object", async (t) => {
  const chat = new Chat(clientAt().session());
  const { snapshots, leave } = look(t, chat);
  await chat.send("one");
  await until(() => chat.getSnapshot().turns[0]?.status === "completed", "the first end");
  const [first] = chat.getSnapshot().turns;
  const texts = snapshots.map((each) => JSON.stringify(each.turns));
  await chat.send("two");
  await until(() => chat.getSnapshot().turns[1]?.status === "completed", "the second end");
  assert.equal(chat.getSnapshot().turns[0], first);
  assert.deepEqual(snapshots.slice(0, texts.length).map((each) => JSON.stringify(each.turns)), texts);
  leave();
});

test("a call waits for an answer, a stop ends what runs, a refusal is shown", async (t) => {
  const chat = new Chat(clientAt().session());
  const { leave } = look(t, chat);
  await chat.send("/call weather {}");
  const [call] = await until(() => chat.getSnapshot().calls.length && chat.getSnapshot().calls, "the call");
  await chat.answer(call, "fog");
  await until(() => chat.getSnapshot().turns[0].status === "completed", "the end");
  assert.deepEqual(chat.getSnapshot().calls, []);
  const id = await chat.send("/tokens 1000 20");
  await until(() => chat.getSnapshot().turns[1].messages.length, "the answer to begin");
  await chat.stop(id);
  await until(() => chat.getSnapshot().turns[1].status === "canceled", "the turn to be canceled");
  await assert.rejects(chat.send("x", { temperature: "warm" }), Refused);
  await until(() => chat.getSnapshot().turns[2]?.status === "failed", "the refusal to be shown");
  leave();
});

test("a chat that is cleared elsewhere begins anew", async (t) => {
  const session = clientAt().session();
  const chat = new Chat(session);
  const { leave } = look(t, chat);
  await chat.send("one");
  await until(() => chat.getSnapshot().turns[0]?.status === "completed", "the end");
  leave();
  await clientAt(deployment.urls[1]).session(session.id).clear();
  await clientAt(deployment.urls[1]).session(session.id).chat("afterwards").text();
  const again = look(t, chat);
  await until(() => chat.getSnapshot().turns[0]?.said?.[0].text === "afterwards", "the new turn");
  assert.equal(chat.getSnapshot().turns.length, 1);
  again.leave();
});

test("who speaks while the server still says that there is no such session", async (t) => {
  const proxy = await new Proxy(deployment.urls[0]).start();
  t.after(() => proxy.close());
  let release;
  proxy.held = new Promise((resolve) => (release = resolve));
  const chat = new Chat(clientAt(proxy.url).session());
  look(t, chat);
  await until(() => proxy.arrived, "the answer, 404, to be under way");
  await chat.send("hello");
  release();
  await until(() => chat.getSnapshot().turns[0]?.status === "completed", "the turn's end", 20);
});

test("who looks away and back at once goes on looking", async (t) => {
  const session = clientAt().session();
  await session.chat("before").text();
  const chat = new Chat(session);
  // As a component does that is mounted, unmounted and mounted again.
  chat.subscribe(() => {})();
  look(t, chat);
  await until(() => chat.getSnapshot().turns[0]?.said, "the turn", 20);
  await clientAt(deployment.urls[1]).session(session.id).chat("after").text();
  await until(() => chat.getSnapshot().turns[1]?.status === "completed", "the other one", 20);
});

test("a key that is refused is told", async (t) => {
  const chat = new Chat(clientAt(deployment.urls[0], { key: "sk-0123456789abcdef0123" }).session());
  look(t, chat);
  await until(() => chat.getSnapshot().error, "the error", 20);
  assert.ok(chat.getSnapshot().error instanceof Refused);
});

test("a stored conversation goes on where it was", async () => {
  const session = clientAt().session();
  await session.chat("/tokens 30 1").text();
  const watching = session.watch();
  const first = new Conversation();
  for await (const event of watching) {
    first.take(event);
    if (event.object === "content") break;
  }
  const stored = JSON.parse(JSON.stringify(first.turns));
  const second = new Conversation(stored);
  for await (const event of session.watch({ cursor: watching.cursor })) {
    second.take(event);
    if (event.object === "response" && event.status === "completed") break;
  }
  assert.equal(answerOf(second.turns[0]), tokens(30));
});
