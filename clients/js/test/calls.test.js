/** The agent's calls are answered by the client's functions, at any front end. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { FunctionError, NotFound, UnansweredCall } from "@turnstream/client";

import { clientAt, deployment, until } from "./support.js";

test("a function answers, through the stream that asks", async () => {
  const client = clientAt().function("weather", ({ city }, call) => `fog in ${city} (${call.name})`);
  assert.equal(await client.chat('/call weather {"city": "Bern"}').text(), "The result is fog in Bern (weather).");
});

test("several calls at once, each answered once", async () => {
  const ran = [];
  const client = clientAt().otherFunctions((call) => {
    ran.push(call.id);
    return ran.length;
  });
  await client.chat("/calls 3").text();
  assert.equal(new Set(ran).size, 3);
  assert.equal(ran.length, 3);
});

test("a function that fails is an answer, too", async () => {
  const client = clientAt().function("weather", () => {
    throw new FunctionError("no weather today");
  });
  assert.match(await client.chat("/call weather {}").text(), /no weather today/);
});

test("an approval, given and refused", async () => {
  const asked = [];
  const client = clientAt().approval((approval) => {
    asked.push(approval.name);
    return asked.length === 1 || { approve: false, reason: "not today" };
  });
  assert.match(await client.chat("/approve files").text(), /files is gone/);
  assert.doesNotMatch(await client.chat("/approve files").text(), /is gone/);
  assert.deepEqual(asked, ["delete_everything", "delete_everything"]);
});

test("a turn that waits is answered at the other front end, and goes on here", async () => {
  const session = clientAt(deployment.urls[0]).session();
  const reply = session.chat('/call weather {"city": "Bern"}');
  for await (const _ of reply) if (reply.openCalls.length) break;
  const [call] = reply.openCalls;
  assert.deepEqual([call.name, call.arguments], ["weather", { city: "Bern" }]);
  const other = clientAt(deployment.urls[1]).session(session.id);
  await other.answer(call.id, "sun");
  await other.answer(call.id, "sun");
  assert.equal(await reply.text(), "The result is sun.");
  assert.deepEqual(reply.openCalls, []);
  await assert.rejects(other.answer("call_unknown", "rain"), NotFound);
});

test("a function of who comes later answers what was asked before", async () => {
  const session = clientAt().session();
  const asked = session.chat("/call weather {}");
  for await (const _ of asked) if (asked.openCalls.length) break;
  const later = clientAt(deployment.urls[1]).function("weather", () => "late sun");
  assert.equal(await later.session(session.id).follow(asked.id).text(), "The result is late sun.");
  // Who comes later still finds it answered.
  let ran = false;
  const last = clientAt().function("weather", () => (ran = true));
  assert.equal(await last.session(session.id).follow(asked.id).text(), "The result is late sun.");
  assert.equal(ran, false);
});

test("a call that no function is there for is an error, and the turn goes on", async () => {
  const session = clientAt().session();
  const reply = session.chat("/call weather {}");
  await assert.rejects(reply.text(), (error) => error instanceof UnansweredCall && error.call === "weather");
  const [call] = reply.openCalls;
  await reply.answer(call, "after all");
  await until(() => !reply.openCalls.length || reply.next(), "the answer");
  assert.equal(await reply.text(), "The result is after all.");
});
