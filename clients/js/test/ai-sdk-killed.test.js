/** Front ends stop and are killed under pages of the AI SDK's. What it ends does not come back. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { VERSIONS, brokenOf, chatOf, headers, held, history, last, textOf } from "./ai-sdk-pages.js";
import { deployment, tokens, until } from "./support.js";

const [survivor, killed, stopped] = deployment.urls;
const COUNT = 200;
const text = `/tokens ${COUNT} 50`;

/** What Node reads of a turn without a page, by the SDK's transport and Node's own fetch. */
async function readInNode({ sdk, path }, url, chunks) {
  const transport = new sdk.DefaultChatTransport({ api: `${url}${path}`, headers });
  const messages = [{ id: "m1", role: "user", parts: [{ type: "text", text }] }];
  const stream = await transport.sendMessages({ chatId: sdk.generateId(), messages, trigger: "submit-message" });
  for await (const chunk of stream) chunks.push(chunk);
}

for (const [signal, url] of [["SIGTERM", stopped], ["SIGKILL", killed]]) {
  test(`a front end ends in mid-answer (${signal}): an error, never half an answer; then the whole one at another front end`, async (t) => {
    const pages = VERSIONS.map((version) => {
      const ends = [];
      const chat = chatOf(version, { url, resume: "?ended=true", onFinish: (end) => ends.push(end) });
      const chunks = [];
      const read = assert.rejects(readInNode(version, url, chunks));
      return { version, chat, ends, sent: chat.sendMessage({ text }), read, chunks };
    });
    for (const { chat, chunks } of pages) {
      await until(() => chat.messages.length === 2 && textOf(last(chat)).includes("tok3 "), "some of the answer");
      await until(() => chunks.length > 5, "some of the answer in Node");
    }
    process.kill(deployment.pids[url], signal);
    for (const { version, chat, ends, sent, read, chunks } of pages) {
      await t.test(version.name, async () => {
        await sent;
        const half = textOf(last(chat));
        assert.deepEqual([chat.status, chat.error?.message], ["error", brokenOf(version)]);
        assert.ok(tokens(COUNT).startsWith(half) && half.length < tokens(COUNT).length);
        assert.deepEqual(ends.map(({ isAbort, isError }) => [isAbort, isError]), [[false, true]]);
        await read;
        assert.ok(!chunks.some(({ type }) => type.startsWith("finish") || type === "text-end"));
        chat.front = survivor;
        await chat.resumeStream();
        assert.deepEqual([chat.status, chat.error, textOf(last(chat)), chat.messages.length], ["ready", undefined, tokens(COUNT), 2]);
        assert.deepEqual(held(await history(version, chat, survivor)), held(chat.messages));
      });
    }
  });
}
