/** A worker is killed, front ends end. The last file: what it kills does not come back. */

import { test } from "node:test";

import { ask, coreAt } from "./copilotkit-pages.js";
import { agentAt, allowRejections, assert, connect, deployment, run, said, tokens, until } from "./support.js";

const [first, second, third] = deployment.urls;

async function workerOf(threadId) {
  const admin = { headers: { Authorization: `Bearer ${deployment.admin}` } };
  const tasks = async () => (await (await fetch(`${first}/admin/v1/tasks`, admin)).json()).tasks;
  const { worker } = await until(
    async () => (await tasks()).find((each) => each.session === threadId && each.worker),
    "the turn to be listed",
  );
  return Number(worker.split("-").at(-2));
}

test("a killed worker in mid-answer: what it had begun is said anew, the run succeeds", async () => {
  const agent = agentAt(first);
  const running = run(agent, "/tokens 100 40");
  await until(() => said(agent).at(-1).includes("tok3"), "the answer to begin");
  process.kill(await workerOf(agent.threadId), "SIGKILL");
  const events = await running;
  assert.equal(events.at(-1).outcome.type, "success");
  const answers = agent.messages.filter((message) => message.role === "assistant");
  assert.equal(answers.at(-1).content, tokens(100));
  assert.ok(tokens(100).startsWith(answers[0].content));
});

for (const [signal, url] of [
  ["SIGTERM", second],
  ["SIGKILL", third],
]) {
  test(`a front end ends in mid-answer (${signal}): an error, never half an answer as a whole one, which another front end has`, async () => {
    allowRejections();
    const agent = agentAt(url);
    const page = await coreAt(url, crypto.randomUUID());
    const running = run(agent, "/tokens 100 40");
    const asking = ask(page, "/tokens 100 40");
    for (const each of [agent, page.agent]) {
      await until(() => said(each).at(-1)?.includes("tok3"), "the answer to begin");
    }
    process.kill(deployment.pids[url], signal);
    await assert.rejects(running);
    // CopilotKit's client tells its page.
    await asking.catch(() => {});
    await until(() => page.errors.length, "the page to be told");
    assert.ok(!said(page.agent).at(-1).includes("tok99"));
    const reloaded = await coreAt(first, page.agent.threadId);
    await reloaded.core.connectAgent({ agent: reloaded.agent });
    assert.deepEqual([said(reloaded.agent), reloaded.errors], [["user: /tokens 100 40", `assistant: ${tokens(100)}`], []]);
    assert.ok(!agent.messages.at(-1).content.includes("tok99"));
    agent.url = `${first}/ag-ui`;
    const events = await connect(agent);
    assert.equal(events.at(-1).outcome.type, "success");
    assert.deepEqual(said(agent), ["user: /tokens 100 40", `assistant: ${tokens(100)}`]);
  });
}
