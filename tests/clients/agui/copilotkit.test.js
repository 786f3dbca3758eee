/** CopilotKit's browser half, straight at a front end. */

import { test } from "node:test";

import { ask, coreAt } from "./copilotkit-pages.js";
import { assert, deployment, said, tokens, until } from "./support.js";

const [first, second] = deployment.urls;

for (const transport of ["rest", "single", "auto"]) {
  test(`frontend tools, reloads and a stop: ${transport}`, async () => {
    const threadId = crypto.randomUUID();
    const page = await coreAt(first, threadId, transport);
    assert.equal(page.agent.capabilities.humanInTheLoop.interrupts, true);
    await ask(page, "/calls 2");
    assert.deepEqual(said(page.agent), [
      "user: /calls 2",
      "assistant calls client_function,client_function",
      "tool: answer 0",
      "tool: answer 1",
      "assistant: The result is answer 0, answer 1.",
    ]);
    const reloaded = await coreAt(second, threadId, transport);
    await reloaded.core.connectAgent({ agent: reloaded.agent });
    assert.deepEqual(said(reloaded.agent), said(page.agent));
    // Nothing is doubled where a client connects that has it all.
    await reloaded.core.connectAgent({ agent: reloaded.agent });
    assert.deepEqual(said(reloaded.agent), said(page.agent));
    const running = ask(page, "/tokens 500 20");
    await until(() => said(page.agent).at(-1).includes("tok3"), "the answer to begin");
    const connecting = reloaded.core.connectAgent({ agent: reloaded.agent });
    await until(() => said(reloaded.agent).at(-1).includes("tok5"), "the reloaded page to follow");
    reloaded.core.stopAgent({ agent: reloaded.agent });
    await Promise.all([running, connecting]);
    assert.deepEqual(said(reloaded.agent).at(-1), said(page.agent).at(-1));
    assert.ok(!said(page.agent).at(-1).includes("tok499"), "it was stopped");
    assert.ok(!page.agent.isRunning);
    // Who comes now is told both turns: of the first one, the calls and what the client has answered.
    const late = await coreAt(first, threadId, transport);
    await late.core.connectAgent({ agent: late.agent });
    assert.deepEqual(said(late.agent), said(page.agent));
    assert.deepEqual([...page.errors, ...reloaded.errors], []);
  });
}

test("a page asks for consent, another one gives it", async () => {
  const threadId = crypto.randomUUID();
  const page = await coreAt(first, threadId);
  await ask(page, "/approve files");
  const other = await coreAt(second, threadId);
  await other.core.connectAgent({ agent: other.agent });
  const [{ id }] = other.agent.pendingInterrupts;
  const resume = [{ interruptId: id, status: "resolved", payload: { approved: true } }];
  await other.core.runAgent({ agent: other.agent, resume });
  assert.equal(said(other.agent).at(-1), "assistant: The result is files is gone.");
});

test("an answer of any length survives a reload in its middle", async () => {
  const threadId = crypto.randomUUID();
  const page = await coreAt(first, threadId);
  const running = ask(page, "/tokens 80 20");
  await until(() => said(page.agent).at(-1).includes("tok9"), "the answer to begin");
  await page.agent.detachActiveRun();
  await running;
  const reloaded = await coreAt(second, threadId);
  await reloaded.core.connectAgent({ agent: reloaded.agent });
  assert.deepEqual(said(reloaded.agent), ["user: /tokens 80 20", `assistant: ${tokens(80)}`]);
});
