/** An agent that is silent for a minute: the AI SDK's transports wait for it. */

import assert from "node:assert/strict";
import { test } from "node:test";

import * as ai7 from "ai";
import * as ai5 from "ai5";
import * as ai6 from "ai6";

import { deployment } from "./support.js";

const VERSIONS = [
  [ai7, "/ai-sdk/chat"],
  [ai6, "/ai-sdk/chat"],
  [ai5, "/ai-sdk/v5/chat"],
];

test("a minute of silence", async () => {
  const headers = { authorization: `Bearer ${deployment.key}` };
  const said = VERSIONS.map(async ([sdk, path]) => {
    const transport = new sdk.DefaultChatTransport({ api: `${deployment.urls[0]}${path}`, headers });
    const messages = [{ id: sdk.generateId(), role: "user", parts: [{ type: "text", text: "/slow 60" }] }];
    const chatId = sdk.generateId();
    const stream = await transport.sendMessages({ trigger: "submit-message", chatId, messages });
    let message;
    for await (message of sdk.readUIMessageStream({ stream, terminateOnError: true }));
    return message.parts.filter((part) => part.type === "text").map((part) => part.text);
  });
  assert.deepEqual(await Promise.all(said), VERSIONS.map(() => ["The result is That took 60 seconds."]));
});
