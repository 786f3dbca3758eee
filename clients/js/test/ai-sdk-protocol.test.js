/** The AI SDK's own chats and transport, of three versions, at `/ai-sdk`: nothing of ours is in between. */

import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";

import * as pages from "./ai-sdk-pages.js";
import { deployment, Proxy, tokens, until } from "./support.js";

const { VERSIONS, ask, brokenOf, chunksOf, headers, held, history, last, said, textOf, toolsOf } = pages;

let proxy;
before(async () => {
  proxy = await new Proxy(deployment.urls[0]).start();
});
beforeEach(() => {
  Object.assign(proxy, { frames: Infinity, torn: 0, cuts: 0 });
});
after(() => proxy.close());

const chatOf = (version, given = {}) => pages.chatOf(version, { url: proxy.url, ...given });

/** What was told piece by piece, each as one. */
const joined = (told) =>
  told.reduce((all, [type, id, delta]) => {
    const before = all.at(-1);
    if (delta === undefined || before?.[0] !== type || before[1] !== id) return [...all, [type, id, delta]];
    before[2] += delta;
    return all;
  }, []);

for (const version of VERSIONS) {
  const { name, sdk } = version;
  const fifth = name === "5";

  test(`${name}: text, reasoning, a server's tool, a sub-agent, a critic, an image; and the server has the same`, async () => {
    const chat = chatOf(version);
    assert.equal(textOf(await said(chat, "hello there")), "You said: hello there");
    assert.equal(last(chat).metadata.usage.total_tokens > 0, true);
    await said(chat, "/think");
    assert.ok(last(chat).parts.some((part) => part.type === "reasoning" && part.text && part.state === "done"));
    const [tool] = toolsOf(await said(chat, "/tool add 1 2"));
    assert.deepEqual([tool.type, tool.toolName, tool.state, tool.providerExecuted, tool.output], ["dynamic-tool", "add", "output-available", true, "3"]);
    assert.equal(last(chat).parts.filter((part) => part.type === "step-start").length, 2);
    const told = await said(chat, "/dispatch /tokens 2");
    assert.ok(told.parts.some((part) => part.type === "data-subagent" && part.data.text === "tok0 tok1 "));
    assert.equal(textOf(told), "I ask a colleague. The result is tok0 tok1 .");
    assert.ok((await said(chat, "/reflect")).parts.some((part) => part.type === "data-reflection"));
    assert.ok((await said(chat, "/image https://x.example/a.png")).parts.some((part) => part.type === "file" && part.url === "https://x.example/a.png"));
    assert.deepEqual([chat.status, chat.error], ["ready", undefined]);
    assert.deepEqual(held(await history(version, chat)), held(chat.messages));
  });

  test(`${name}: parallel client tools, by themselves; the answer is in the same message`, async () => {
    const chat = chatOf(version, {
      sendAutomaticallyWhen: sdk.lastAssistantMessageIsCompleteWithToolCalls,
      onToolCall: ({ toolCall }) => {
        if (!toolCall.dynamic) void chat.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: { sky: "fog" } });
      },
    });
    await chat.sendMessage({ text: "/calls 3" });
    await until(() => chat.status === "ready" && textOf(last(chat)), "the answer");
    assert.equal(chat.error, undefined);
    assert.equal(chat.messages.length, 2);
    assert.deepEqual(toolsOf(last(chat)).map((part) => [part.state, part.output]), Array(3).fill(["output-available", { sky: "fog" }]));
    assert.match(textOf(last(chat)), /fog/);
    assert.deepEqual(held(await history(version, chat)), held(chat.messages));
  });

  for (const approved of [true, false]) {
    test(`${name}: an approval is ${approved ? "given" : "refused"}`, async () => {
      const complete = fifth ? sdk.lastAssistantMessageIsCompleteWithToolCalls : sdk.lastAssistantMessageIsCompleteWithApprovalResponses;
      const chat = chatOf(version, { sendAutomaticallyWhen: complete });
      await chat.sendMessage({ text: "/approve files" });
      const [asked] = toolsOf(last(chat));
      if (fifth) {
        assert.deepEqual([asked.type, asked.state, asked.input], ["tool-approve_delete_everything", "input-available", { what: "files" }]);
        await chat.addToolOutput({ tool: "approve_delete_everything", toolCallId: asked.toolCallId, output: { approve: approved } });
      } else {
        assert.deepEqual([asked.toolName, asked.state], ["delete_everything", "approval-requested"]);
        await chat.addToolApprovalResponse({ id: asked.approval.id, approved, reason: "so" });
      }
      await until(() => chat.status === "ready" && textOf(last(chat)), "the answer");
      assert.deepEqual([chat.error, chat.messages.length], [undefined, 2]);
      assert.equal(/files is gone/.test(textOf(last(chat))), approved);
      const states = toolsOf(last(chat)).map((part) => part.state);
      assert.deepEqual(states, fifth ? ["output-available", "output-available"] : [approved ? "output-available" : "output-denied"]);
      assert.deepEqual(held(await history(version, chat)), held(chat.messages));
    });
  }

  for (const asks of ["a function", "an approval"]) {
    test(`${name}: ${asks} that one front end asked is answered at another one while the first stands still: each event once`, async () => {
      const [other, asking] = deployment.urls;
      const sendAutomaticallyWhen =
        asks === "a function" || fifth ? sdk.lastAssistantMessageIsCompleteWithToolCalls : sdk.lastAssistantMessageIsCompleteWithApprovalResponses;
      const chat = chatOf(version, { url: asking, noted: true, sendAutomaticallyWhen });
      await chat.sendMessage({ text: asks === "a function" ? '/call weather {"city": "Bern"}' : "/approve files" });
      const [asked] = toolsOf(last(chat));
      chat.front = other;
      process.kill(deployment.pids[asking], "SIGSTOP");
      try {
        if (asked.state === "approval-requested") await chat.addToolApprovalResponse({ id: asked.approval.id, approved: true });
        else await chat.addToolOutput({ tool: asked.type.slice("tool-".length), toolCallId: asked.toolCallId, output: asks === "a function" ? "fog" : { approve: true } });
        await until(() => chat.status === "ready" && textOf(last(chat)), "the answer");
        assert.deepEqual([chat.error, chat.messages.length, chat.answers.length], [undefined, 2, 2]);
      } finally {
        process.kill(deployment.pids[asking], "SIGCONT");
      }
      assert.equal(textOf(last(chat)), asks === "a function" ? "The result is fog." : "The result is files is gone.");
      assert.deepEqual(held(await history(version, chat)), held(chat.messages));
      const again = chatOf(version, { id: chat.id, url: asking, noted: true, resume: "?ended=true" });
      await again.resumeStream();
      // Whoever gives an answer is not told it.
      const told = async (page) => (await chunksOf(page)).filter(({ type }) => /^(text|reasoning)-|^tool-input-start/.test(type)).map(({ type, id, toolCallId, delta }) => [type, id ?? toolCallId, delta]);
      assert.deepEqual(joined(await told(chat)), joined(await told(again)));
      const unasked = ({ approval: _, ...part }) => part;
      assert.deepEqual(held(again.messages)[0].parts.map(unasked), held(chat.messages)[1].parts.map(unasked));
    });
  }

  test(`${name}: a page that is reloaded finds the turn that runs, at another front end, and nothing when it has ended`, async () => {
    const first = chatOf(version);
    const sent = first.sendMessage({ text: "/tokens 60 20" });
    await until(() => first.messages.length === 2 && textOf(last(first)).includes("tok5"), "some of the answer");
    const reloaded = chatOf(version, { id: first.id, url: deployment.urls[1], messages: structuredClone(first.messages) });
    await reloaded.resumeStream();
    assert.deepEqual([reloaded.error, textOf(last(reloaded)), reloaded.messages.length], [undefined, tokens(60), 2]);
    await sent;
    assert.deepEqual(held(first.messages), held(reloaded.messages));
    const late = chatOf(version, { id: first.id });
    await late.resumeStream();
    assert.deepEqual([late.messages, late.error, late.status], [[], undefined, "ready"]);
    const fresh = chatOf(version);
    await fresh.resumeStream();
    assert.deepEqual([fresh.messages, fresh.error], [[], undefined], "a chat in which nothing was said");
  });

  test(`${name}: a page that is reloaded while it is asked is asked again; one behind the answer is not`, async () => {
    const first = chatOf(version);
    await first.sendMessage({ text: '/call weather {"city": "Bern"}' });
    const calls = [];
    const onToolCall = ({ toolCall }) => void calls.push(toolCall.toolCallId);
    const reloaded = chatOf(version, { id: first.id, onToolCall, sendAutomaticallyWhen: sdk.lastAssistantMessageIsCompleteWithToolCalls });
    await reloaded.resumeStream();
    const [asked] = toolsOf(last(reloaded));
    assert.deepEqual([asked.state, asked.input, calls], ["input-available", { city: "Bern" }, [asked.toolCallId]]);
    await reloaded.addToolOutput({ tool: "weather", toolCallId: asked.toolCallId, output: "fog" });
    await until(() => reloaded.status === "ready" && textOf(last(reloaded)), "the answer");
    assert.deepEqual([textOf(last(reloaded)), reloaded.messages.length], ["The result is fog.", 1]);
    const again = chatOf(version, { id: first.id, onToolCall, resume: "?ended=true" });
    await again.resumeStream();
    assert.equal(again.error, undefined);
    assert.deepEqual(held(again.messages), held(reloaded.messages));
    assert.equal(calls.length, 1);
  });

  test(`${name}: a stop ends the turn, an open call too; a failure is an error; a message waits for no call`, async () => {
    const chat = chatOf(version, { noted: true, sendAutomaticallyWhen: sdk.lastAssistantMessageIsCompleteWithToolCalls });
    const sent = chat.sendMessage({ text: "/tokens 1000 20" });
    await until(() => chat.messages.length === 2 && textOf(last(chat)), "the answer to begin");
    assert.deepEqual(await (await ask("POST", `${version.path}/${chat.id}/stop`)).json(), { success: true });
    await sent;
    assert.deepEqual([chat.status, chat.error], ["ready", undefined]);
    const ends = (await chunksOf(chat)).slice(-3).map(({ type, finishReason }) => [type, finishReason]);
    assert.deepEqual(ends, [["abort", undefined], ["finish-step", undefined], ["finish", undefined]], "not as one that is whole");
    await chat.sendMessage({ text: "/call weather {}" });
    await chat.sendMessage({ text: "too early" });
    assert.match(chat.error.message, /waits for the answer/);
    await ask("POST", `${version.path}/${chat.id}/stop`);
    const [tool] = toolsOf((await history(version, chat)).at(-1));
    assert.equal(tool.state, "output-error");
    await chat.sendMessage({ text: "/fail on purpose" });
    assert.equal(chat.status, "error");
    assert.equal(textOf(await said(chat, "still there")), "You said: still there");
    assert.equal(chat.error, undefined);
  });

  test(`${name}: an answer anew, and an edited message: the chat goes on from there`, async () => {
    const chat = chatOf(version);
    const [, first] = [await said(chat, "one"), last(chat).id];
    await said(chat, "two");
    const second = last(chat).id;
    await chat.regenerate();
    assert.deepEqual([chat.error, textOf(last(chat)), chat.messages.length], [undefined, "You said: two", 4]);
    assert.notEqual(last(chat).id, second);
    assert.deepEqual(held(await history(version, chat)), held(chat.messages));
    await said(chat, "three");
    await chat.sendMessage({ text: "two, edited", messageId: chat.messages[2].id });
    assert.deepEqual([textOf(last(chat)), chat.messages.length, chat.messages[1].id], ["You said: two, edited", 4, first]);
    assert.deepEqual(held(await history(version, chat)), held(chat.messages));
    await chat.sendMessage({ text: "/history", messageId: chat.messages[0].id });
    assert.equal(chat.messages.length, 2);
    assert.deepEqual(held(await history(version, chat)), held(chat.messages));
    await chat.regenerate({ messageId: last(chat).id });
    assert.deepEqual([chat.error, chat.messages.length], [undefined, 2]);
    assert.deepEqual(held(await history(version, chat)), held(chat.messages));
  });
}

test("a message that is sent again finds its turn; a chat that nobody knows begins with what its page tells", async () => {
  const [version] = VERSIONS;
  const body = { id: VERSIONS[0].sdk.generateId(), messages: [{ id: "m1", role: "user", parts: [{ type: "text", text: "hi" }] }] };
  const post = async () => (await fetch(`${proxy.url}/ai-sdk/chat`, { method: "POST", headers, body: JSON.stringify(body) })).text();
  assert.equal(await post(), await post());
  const messages = [
    { id: "u1", role: "user", parts: [{ type: "text", text: "my name is Ada" }] },
    { id: "a1", role: "assistant", parts: [{ type: "step-start" }, { type: "text", text: "Hello Ada" }, { type: "tool-f", toolCallId: "x", state: "output-available", input: {}, output: { ok: 1 } }] },
  ];
  const chat = chatOf(version, { messages });
  assert.equal(textOf(await said(chat, "hello")), "You said: hello");
  assert.equal(chat.error, undefined);
  assert.deepEqual((await history(version, chat)).map((each) => [each.id, textOf(each)]), [
    ["u1", "my name is Ada"],
    [chat.messages[2].id, "hello"],
    [last(chat).id, "You said: hello"],
  ]);
});

for (const version of VERSIONS) {
  test(`${version.name}: cut behind each of a hundred events, and resumed in the same page at another front end: every word once`, async () => {
    const message = { id: "m1", role: "user", parts: [{ type: "text", text: "/tokens 100 50" }] };
    const first = chatOf(version);
    await first.sendMessage(message);
    const whole = held(first.messages);
    for (let frames = 1; ; frames += 1) {
      // The message that is sent again finds its turn.
      const page = chatOf(version, { id: first.id, resume: "?ended=true" });
      const before = proxy.total;
      Object.assign(proxy, { frames, torn: frames % 2 ? 7 : 0, cuts: 0 });
      await page.sendMessage(message);
      if (!page.error) {
        // Behind its end no more is missed.
        assert.deepEqual([held(page.messages), frames > 100], [whole, true]);
        break;
      }
      assert.deepEqual([page.error.message, page.status, proxy.total - before], [brokenOf(version), "error", frames]);
      page.front = deployment.urls[1];
      await page.resumeStream();
      assert.deepEqual([page.error, page.status, held(page.messages)], [undefined, "ready", whole], `cut behind ${frames}`);
    }
  });
}

test("a worker and a front end that are killed in the middle of an answer", async () => {
  const [version] = VERSIONS;
  const chat = chatOf(version, { url: deployment.urls[1] });
  const sent = chat.sendMessage({ text: "/tokens 400 10" });
  await until(() => chat.messages.length === 2 && textOf(last(chat)).includes("tok3 "), "some of the answer");
  const busy = await until(async () => {
    const stats = await (await fetch(`${deployment.urls[1]}/admin/v1/tasks?status=running`, { headers: { authorization: `Bearer ${deployment.admin}` } })).json();
    return stats.tasks.find((task) => task.session === chat.id)?.worker;
  }, "the worker's name");
  process.kill(deployment.workers.find((pid) => busy.includes(`-${pid}-`)), "SIGKILL");
  await until(() => last(chat).parts.filter((part) => part.type === "text").length === 2, "another worker to go on");
  const [cut] = last(chat).parts.filter((part) => part.type === "text");
  assert.ok(tokens(400).startsWith(cut.text));
  process.kill(deployment.pids[deployment.urls[1]], "SIGKILL");
  await sent;
  assert.deepEqual([chat.status, chat.error?.message], ["error", "network error"]);
  const page = chatOf(version, { id: chat.id, url: deployment.urls[0], messages: structuredClone(chat.messages) });
  await page.resumeStream();
  assert.deepEqual([page.error, page.messages.length], [undefined, 2]);
  assert.deepEqual(last(page).parts.filter((part) => part.type === "text").map((part) => part.text), [cut.text, tokens(400)]);
});
