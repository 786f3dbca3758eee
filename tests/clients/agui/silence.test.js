/** An agent that is silent for a minute: the client waits for it. */

import { test } from "node:test";

import { agentAt, assert, deployment, run, said } from "./support.js";

test("a minute of silence", async () => {
  const agent = agentAt(deployment.urls[0]);
  const events = await run(agent, "/slow 60");
  assert.equal(events.at(-1).outcome.type, "success");
  assert.deepEqual(said(agent), [
    "user: /slow 60",
    "assistant calls slow",
    "tool: That took 60 seconds.",
    "assistant: The result is That took 60 seconds.",
  ]);
});
