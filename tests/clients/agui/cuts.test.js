/** The connection is cut behind each event of a turn, and again when the client connects: nothing is lost, nothing comes twice. */

import { test } from "node:test";

import { Proxy } from "../../../clients/js/test/proxy.js";
import { agentAt, allowRejections, assert, connect, deployment, kinds, said, tokens } from "./support.js";

const [first, second] = deployment.urls;

/** More than there are frames of a turn, and heartbeats in it. */
const MOST = 120;

/** What a client does through a network that is cut behind so many frames: whether it was, and whether the client has the end. */
async function cutBehind(frames, upstream, agent, does) {
  const proxy = await new Proxy(upstream).start();
  proxy.frames = frames;
  proxy.torn = frames % 2 ? 7 : 0;
  agent.url = `${proxy.url}/ag-ui`;
  const events = [];
  let error;
  await does({ onEvent: ({ event }) => void events.push(event) }).catch((each) => (error = each));
  await proxy.close();
  const ended = kinds(events).includes("RUN_FINISHED");
  assert.ok(ended || error, `cut behind ${frames}: half an answer is none`);
  assert.ok(proxy.cuts || (ended && !error), `not cut: ${error}`);
  return { cut: proxy.cuts > 0, ended };
}

// At least so many events: a busy worker says some words together.
for (const [text, least, whole] of [
  ["/tokens 96 50", 50, [`assistant: ${tokens(96)}`]],
  ["/calls 34", 104, [`assistant calls ${Array(34).fill("client_function")}`]],
  [
    "/dispatch /tokens 45 50",
    40,
    [
      "assistant: I ask a colleague. ",
      "assistant calls demo-researcher",
      // The client puts a result behind its call.
      `tool: ${tokens(45)}`,
      `assistant: ${tokens(45)}`,
      `assistant: The result is ${tokens(45)}.`,
    ],
  ],
]) {
  test(`cut behind each event: ${text}`, async () => {
    allowRejections();
    const threadId = crypto.randomUUID();
    const [runId, id] = [crypto.randomUUID(), crypto.randomUUID()];
    // All of them follow the same run while it goes on, each to another place.
    const cuts = Array.from({ length: MOST }, async (_, at) => {
      const agent = agentAt(first, threadId);
      agent.messages.push({ id, role: "user", content: text });
      const begun = await cutBehind(at + 1, first, agent, (told) => agent.runAgent({ runId }, told));
      if (begun.ended) assert.deepEqual(said(agent), [`user: ${text}`, ...whole]);
      const again = await cutBehind(at + 1, second, agent, (told) => agent.connectAgent({}, told));
      if (again.ended) assert.deepEqual(said(agent), [`user: ${text}`, ...whole]);
      agent.url = `${second}/ag-ui`;
      const events = await connect(agent);
      assert.equal(events.at(-1).outcome.type, "success");
      assert.deepEqual(said(agent), [`user: ${text}`, ...whole], `cut behind ${at + 1}`);
      return begun.cut;
    });
    const cut = await Promise.all(cuts);
    assert.ok(!cut.at(-1), "the last one sees all of it");
    assert.ok(cut.filter(Boolean).length >= least, "the turn has so many events");
  });
}
