/** AG-UI's own client, which checks the order of events and the fields of each. */

import { test } from "node:test";

import { HttpAgent } from "@ag-ui/client";
import { HttpAgent as OldAgent } from "ag-ui-client-0";

import { agentAt, answerCalls, assert, connect, deployment, kinds, resolved, run, said, tokens, until } from "./support.js";

const [first, second] = deployment.urls;

test("what agents say and do", async () => {
  const agent = agentAt(first);
  assert.equal((await run(agent, "/tokens 20")).at(-1).outcome.type, "success");
  await run(agent, "/think");
  await run(agent, "/tool add 1 2");
  await run(agent, "/image https://example.com/a.png");
  assert.deepEqual(said(agent), [
    "user: /tokens 20",
    `assistant: ${tokens(20)}`,
    "user: /think",
    "reasoning: Let me think about that for a moment.",
    "assistant: I thought about it: it is fine.",
    "user: /tool add 1 2",
    "assistant calls add",
    "tool: 3",
    "assistant: The result is 3.",
    "user: /image https://example.com/a.png",
    "assistant calls show_image",
    // The client puts a result behind its call.
    "tool: The user sees the image.",
    "assistant: ![image](https://example.com/a.png)",
    "assistant: The result is The user sees the image.",
  ]);
  const reflection = await run(agent, "/reflect");
  assert.deepEqual(
    reflection.filter((event) => event.type === "CUSTOM").map((event) => event.value.isPass),
    [false, true],
  );
});

test("a sub-agent's words are its own", async () => {
  const agent = agentAt(first);
  const events = await run(agent, "/dispatch");
  const started = events.find((event) => event.type === "SUBAGENT_STARTED");
  assert.equal(started.name, "demo-researcher");
  assert.equal(started.parentToolCallId, started.subagentRunId);
  const its = agent.messages.filter((message) => message.subagentRunId === started.subagentRunId);
  assert.deepEqual(its.map((message) => message.content), ["I looked into it (find out): it is as you thought."]);
  // Who connects has the same.
  const other = agentAt(second, agent.threadId);
  await connect(other);
  assert.deepEqual(said(other), said(agent));
});

test("functions in parallel, answered at another front end", async () => {
  const agent = agentAt(first);
  const asked = await run(agent, "/calls 3");
  assert.equal(asked.at(-1).outcome.pendingToolCallIds.length, 3);
  agent.url = `${second}/ag-ui`;
  answerCalls(agent);
  const events = await run(agent);
  assert.ok(!kinds(events).includes("TOOL_CALL_RESULT"));
  assert.equal(said(agent).at(-1), "assistant: The result is 42, 42, 42.");
  const other = agentAt(first, agent.threadId);
  await connect(other);
  assert.deepEqual(said(other), said(agent));
});

test("a sub-agent asks: it is suspended, and goes on in the next run", async () => {
  const agent = agentAt(first);
  const asked = await run(agent, "/dispatch /calls 2");
  const { subagentRunId } = asked.find((event) => event.type === "SUBAGENT_STARTED");
  assert.deepEqual(asked.find((event) => event.type === "SUBAGENT_FINISHED").outcome, { type: "suspended" });
  assert.equal(asked.at(-1).outcome.pendingToolCallIds.length, 2);
  for (const id of asked.at(-1).outcome.pendingToolCallIds) {
    agent.messages.push({ id: crypto.randomUUID(), role: "tool", toolCallId: id, content: "42" });
  }
  const events = await run(agent);
  assert.equal(events.find((event) => event.type === "SUBAGENT_STARTED").subagentRunId, subagentRunId);
  assert.match(said(agent).at(-1), /The result is The result is 42, 42\./);
});

test("consent is an interrupt", async () => {
  for (const [payload, outcome] of [
    [{ approved: true }, /files is gone/],
    [{ approved: false, reason: "No." }, /denied/],
    [true, /files is gone/],
  ]) {
    const agent = agentAt(first);
    const asked = await run(agent, "/approve files");
    assert.equal(asked.at(-1).outcome.type, "interrupt");
    assert.equal(agent.pendingInterrupts[0].reason, "tool_call");
    const other = agentAt(second, agent.threadId);
    await connect(other);
    assert.deepEqual(other.pendingInterrupts, agent.pendingInterrupts);
    const events = await run(other, "", resolved(other, payload));
    assert.equal(kinds(events).filter((kind) => kind === "TOOL_CALL_START").length, 0);
    assert.match(said(other).at(-1), outcome);
    assert.deepEqual(other.pendingInterrupts, []);
  }
  const agent = agentAt(first);
  await run(agent, "/approve files");
  const [{ id }] = agent.pendingInterrupts;
  await run(agent, "", { resume: [{ interruptId: id, status: "cancelled" }] });
  assert.match(said(agent).at(-1), /denied/);
});

test("a failure and a stop", async () => {
  const agent = agentAt(first);
  const failed = [];
  await run(agent, "/fail oh no", {}, { onRunErrorEvent: ({ event }) => void failed.push(event) });
  assert.deepEqual([failed[0].message, failed[0].code], ["oh no", "demo_failure"]);
  const running = run(agent, "/tokens 500 20");
  await until(() => said(agent).at(-1).includes("tok3"), "the answer to begin");
  const stopped = await fetch(`${second}/ag-ui/stop/${agent.threadId}`, { method: "POST", headers: agent.headers });
  assert.deepEqual(await stopped.json(), { stopped: true });
  assert.deepEqual((await running).at(-1).outcome, { type: "cancelled" });
});

test("a run goes on without its client, who connects to it", async () => {
  const agent = agentAt(first);
  const running = run(agent, "/tokens 60 20");
  await until(() => said(agent).at(-1).includes("tok5"), "the answer to begin");
  agent.abortRun();
  await running;
  assert.ok(!said(agent).at(-1).includes("tok59"));
  agent.url = `${second}/ag-ui`;
  const events = await connect(agent);
  assert.equal(events.at(-1).outcome.type, "success");
  assert.deepEqual(said(agent), ["user: /tokens 60 20", `assistant: ${tokens(60)}`]);
});

test("clients before 1.0", async () => {
  const agent = agentAt(first, undefined, OldAgent);
  await run(agent, "/dispatch");
  assert.deepEqual(said(agent), [
    "user: /dispatch",
    "assistant: I ask a colleague. ",
    "assistant calls demo-researcher",
    "tool: I looked into it (find out): it is as you thought.",
    "assistant: The result is I looked into it (find out): it is as you thought.",
  ]);
  await run(agent, "/calls 2");
  answerCalls(agent);
  await run(agent);
  assert.equal(said(agent).at(-1), "assistant: The result is 42, 42.");
  const running = run(agent, "/tokens 500 20");
  await until(() => said(agent).at(-1).includes("tok3"), "the answer to begin");
  await fetch(`${first}/ag-ui/stop/${agent.threadId}`, { method: "POST", headers: agent.headers });
  const events = await running;
  assert.equal(events.at(-1).type, "RUN_FINISHED");
  assert.ok(!said(agent).at(-1).includes("tok499"), "it was stopped");
});

test("a foreign thread", async () => {
  const agent = agentAt(first);
  await run(agent, "hello");
  const made = await fetch(`${first}/admin/v1/keys`, {
    method: "POST",
    headers: { Authorization: `Bearer ${deployment.admin}`, "Content-Type": "application/json" },
    body: JSON.stringify({ owner: "eve", agent: "demo" }),
  });
  const { token } = await made.json();
  const eve = agentAt(first, agent.threadId);
  eve.headers = { Authorization: `Bearer ${token}` };
  assert.deepEqual(await connect(eve), []);
  await run(eve, "who is there?");
  assert.deepEqual(said(eve), ["user: who is there?", "assistant: You said: who is there?"]);
  await connect(agent);
  assert.deepEqual(said(agent), ["user: hello", "assistant: You said: hello"]);
  await assert.rejects(run(new HttpAgent({ url: `${first}/ag-ui`, headers: {} }), "hi"), /401/);
});
