/** A worker and a front end are killed in mid-stream. The last file: what it kills does not come back. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { clientAt, dense, deployment, operator, Proxy, tokens, until } from "./support.js";

test("a killed worker and a killed front end: each event once, in order", async () => {
  const [first, second] = deployment.urls;
  const proxy = await new Proxy(second).start();
  const client = clientAt(proxy.url);
  const session = client.session();
  const reply = session.chat("/tokens 100 40");
  const numbers = [];
  for await (const event of reply) {
    numbers.push(event.sequence_number);
    if (numbers.length === 7) {
      const { tasks } = await operator().request("GET", "/admin/v1/tasks");
      const { worker } = await until(() => tasks.find((each) => each.session === session.id), "the turn to be listed");
      process.kill(Number(worker.split("-").at(-2)), "SIGKILL");
    }
    if (numbers.length === 12) {
      process.kill(deployment.pids[second], "SIGKILL");
      proxy.upstream = first;
    }
  }
  await proxy.close();
  assert.deepEqual(numbers, dense(numbers.length));
  assert.equal(await reply.text(), tokens(100));
  assert.deepEqual(reply.turn.messages.map((message) => message.status), ["incomplete", "completed"]);
});
