/** The AI SDK's chat over the transport: text, tools, approvals, resume, stop. */

import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";

import * as ai from "ai";
import * as ai6 from "ai6";

import { TurnstreamChatTransport } from "@turnstream/client/ai-sdk";

import { stateOf } from "./ai-sdk-pages.js";
import { clientAt, deployment, Proxy, tokens, until } from "./support.js";

let proxy;
before(async () => {
  proxy = await new Proxy(deployment.urls[0]).start();
});
beforeEach(() => {
  Object.assign(proxy, { frames: Infinity, torn: 0, cuts: 0 });
});
after(() => proxy.close());

/** The AI SDK's chat without a page. */
function chatOf(sdk, given = {}) {
  const state = stateOf(given);
  class Chat extends sdk.AbstractChat {}
  const transport = given.transport ?? new TurnstreamChatTransport({ client: clientAt(proxy.url) });
  return Object.assign(
    new Chat({ generateId: sdk.generateId, onError: (error) => (state.error = error), ...given, transport, state }),
    { shown: state },
  );
}

const textOf = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text).join("");
const last = (chat) => chat.messages.at(-1);

for (const [name, sdk] of [["7", ai], ["6", ai6]]) {
  test(`${name}: a message is answered, over a line that is cut all the time`, async () => {
    proxy.frames = 2;
    proxy.torn = 10;
    const chat = chatOf(sdk);
    await chat.sendMessage({ text: "/tokens 60 5" });
    assert.equal(chat.error, undefined);
    assert.equal(chat.status, "ready");
    assert.equal(textOf(last(chat)), tokens(60));
    assert.ok(proxy.cuts >= 3);
    assert.equal(last(chat).metadata.usage.total_tokens > 0, true);
    await chat.sendMessage({ text: "and again" });
    assert.equal(textOf(last(chat)), "You said: and again");
    assert.equal(chat.messages.length, 4);
  });

  test(`${name}: reasoning, a server's tool, a sub-agent`, async () => {
    const chat = chatOf(sdk);
    await chat.sendMessage({ text: "/think" });
    assert.ok(last(chat).parts.some((part) => part.type === "reasoning" && part.text && part.state === "done"));
    await chat.sendMessage({ text: "/tool add 1 2" });
    const tool = last(chat).parts.find((part) => part.type === "dynamic-tool");
    assert.deepEqual([tool.toolName, tool.state, tool.providerExecuted, tool.output], ["add", "output-available", true, "3"]);
    assert.match(textOf(last(chat)), /3/);
    await chat.sendMessage({ text: "/dispatch /tokens 2" });
    assert.ok(last(chat).parts.some((part) => part.type === "data-subagent" && part.data.text.includes("tok0")));
    assert.equal(chat.error, undefined);
  });

  test(`${name}: parallel client tools are answered, and the turn goes on in the same message`, async () => {
    proxy.frames = 3;
    const chat = chatOf(sdk, {
      sendAutomaticallyWhen: sdk.lastAssistantMessageIsCompleteWithToolCalls,
      onToolCall: ({ toolCall }) => {
        if (!toolCall.dynamic) void chat.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: "fog" });
      },
    });
    await chat.sendMessage({ text: "/calls 2" });
    await until(() => chat.status === "ready" && textOf(last(chat)), "the answer");
    assert.equal(chat.error, undefined);
    assert.equal(chat.messages.length, 2);
    const tools = last(chat).parts.filter((part) => part.type.startsWith("tool-"));
    assert.deepEqual(tools.map((part) => part.state), ["output-available", "output-available"]);
    assert.match(textOf(last(chat)), /fog/);
  });

  for (const approved of [true, false]) {
    test(`${name}: an approval is ${approved ? "given" : "refused"}`, async () => {
      const chat = chatOf(sdk, { sendAutomaticallyWhen: sdk.lastAssistantMessageIsCompleteWithApprovalResponses });
      await chat.sendMessage({ text: "/approve files" });
      const asked = last(chat).parts.find((part) => part.state === "approval-requested");
      assert.equal(asked.toolName, "delete_everything");
      await chat.addToolApprovalResponse({ id: asked.approval.id, approved });
      await until(() => chat.status === "ready" && textOf(last(chat)), "the answer");
      assert.equal(chat.error, undefined);
      assert.equal(chat.messages.length, 2);
      assert.equal(/files is gone/.test(textOf(last(chat))), approved);
      assert.equal(last(chat).parts.filter((part) => part.type === "dynamic-tool").length, 1, "it is shown once");
    });
  }

  test(`${name}: a page that is reloaded finds the turn that runs, and nothing when it has ended`, async () => {
    const first = chatOf(sdk);
    const sent = first.sendMessage({ text: "/tokens 80 20" });
    await until(() => first.messages.length === 2 && textOf(last(first)).includes("tok5"), "some of the answer");
    const reloaded = chatOf(sdk, { id: first.id, messages: structuredClone(first.messages) });
    await reloaded.resumeStream();
    assert.equal(reloaded.error, undefined);
    assert.equal(textOf(last(reloaded)), tokens(80));
    assert.equal(reloaded.messages.length, 2);
    await sent;
    assert.equal(textOf(last(first)), tokens(80));
    const late = chatOf(sdk, { id: first.id });
    await late.resumeStream();
    assert.deepEqual([late.messages, late.error], [[], undefined]);
  });

  test(`${name}: a reload behind an answered call tells the whole turn`, async () => {
    const first = chatOf(sdk);
    await first.sendMessage({ text: '/call weather {"city": "Bern"}' });
    const asked = last(first).parts.find((part) => part.toolCallId);
    assert.deepEqual([asked.state, asked.input], ["input-available", { city: "Bern" }]);
    // What runs behind the answer waits, so that the page comes in between.
    for (const pid of deployment.workers) process.kill(pid, "SIGSTOP");
    let resumed;
    const reloaded = chatOf(sdk, { id: first.id });
    try {
      await clientAt(deployment.urls[1]).session(first.id).answer(asked.toolCallId, "sun");
      const { total } = proxy;
      resumed = reloaded.resumeStream();
      await until(() => proxy.total > total, "the page to come back");
    } finally {
      for (const pid of deployment.workers) process.kill(pid, "SIGCONT");
    }
    await resumed;
    assert.equal(reloaded.error, undefined);
    assert.equal(textOf(last(reloaded)), "The result is sun.");
    assert.equal(last(reloaded).id, last(first).id);
    const told = last(reloaded).parts.find((part) => part.toolCallId);
    assert.deepEqual([told.state, told.output], ["output-available", "sun"]);
  });

  test(`${name}: a page that leaves a turn finds it again, in the same message`, async () => {
    const chat = chatOf(sdk);
    const sent = chat.sendMessage({ text: "/tokens 80 20" });
    await until(() => chat.messages.length === 2 && textOf(last(chat)).includes("tok5"), "some of the answer");
    await chat.stop();
    await sent;
    assert.deepEqual([chat.status, chat.error], ["ready", undefined]);
    await chat.resumeStream();
    assert.equal(chat.error, undefined);
    assert.equal(textOf(last(chat)), tokens(80));
    assert.equal(chat.messages.length, 2);
  });

  test(`${name}: a page that is reloaded while it is asked is asked again, and its answer is taken`, async () => {
    const first = chatOf(sdk);
    await first.sendMessage({ text: '/call weather {"city": "Bern"}' });
    const reloaded = chatOf(sdk, { id: first.id, sendAutomaticallyWhen: sdk.lastAssistantMessageIsCompleteWithToolCalls });
    await reloaded.resumeStream();
    const asked = last(reloaded).parts.find((part) => part.toolCallId);
    assert.equal(asked.state, "input-available");
    await reloaded.addToolOutput({ tool: "weather", toolCallId: asked.toolCallId, output: "fog" });
    await until(() => reloaded.status === "ready" && textOf(last(reloaded)), "the answer");
    assert.equal(textOf(last(reloaded)), "The result is fog.");
    assert.equal(reloaded.messages.length, 1);
  });

  test(`${name}: a stop ends the turn; a failure is an error; what cannot be says so`, async () => {
    const transport = new TurnstreamChatTransport({ client: clientAt(proxy.url) });
    const chat = chatOf(sdk, { transport });
    const sent = chat.sendMessage({ text: "/tokens 1000 20" });
    await until(() => chat.messages.length === 2 && textOf(last(chat)), "the answer to begin");
    await transport.stop(chat.id);
    await sent;
    assert.deepEqual([chat.status, chat.error], ["ready", undefined]);
    await chat.sendMessage({ text: "/fail on purpose" });
    assert.equal(chat.status, "error");
    const other = chatOf(sdk);
    await other.sendMessage({ text: "hello" });
    await other.regenerate();
    assert.match(other.error.message, /send the message again/);
    const edited = chatOf(sdk);
    await edited.sendMessage({ text: "hello" });
    await edited.sendMessage({ text: "edited", messageId: edited.messages[0].id });
    assert.match(edited.error.message, /send the edited text as a further message/);
    assert.deepEqual(edited.messages.map((message) => message.role), ["user"], "a refused message has no answer");
  });
}
