/** OpenAI's own client in Node: text, tools, stream, resume at the other front end, stop, and a cut that is no end. */

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";

import { Proxy } from "../../../clients/js/test/support.js";

const { urls, key } = JSON.parse(process.env.TURNSTREAM_TEST);
const at = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const [client, other] = urls.map(at);
const model = "demo";
const weather = { type: "function", name: "weather", parameters: { type: "object", properties: {} } };

test("text, whole and by the stream helper", async () => {
  const whole = await client.responses.create({ model, input: "/tokens 3" });
  assert.equal(whole.output_text, "tok0 tok1 tok2 ");
  const helper = client.responses.stream({ model, input: "/think", previous_response_id: whole.id });
  const final = await helper.finalResponse();
  assert.deepEqual(
    final.output.map((item) => item.type),
    ["reasoning", "message"],
  );
  assert.equal((await other.responses.retrieve(final.id)).output_text, final.output_text);
});

test("a function, answered at the other front end", async () => {
  const asked = await client.responses.create({ model, input: "/call weather {}", tools: [weather] });
  const [call] = asked.output.filter((item) => item.type === "function_call");
  const input = [{ type: "function_call_output", call_id: call.call_id, output: "sun" }];
  const helper = other.responses.stream({ model, input, previous_response_id: asked.id });
  assert.equal((await helper.finalResponse()).output_text, "The result is sun.");
});

test("a stream that is left goes on at the other front end, each event once", async () => {
  const seen = [];
  let id;
  const stream = await client.responses.create({ model, input: "/tokens 60 50", stream: true });
  for await (const event of stream) {
    id ??= event.response.id;
    seen.push(event);
    if (seen.length === 9) break;
  }
  const rest = await other.responses.retrieve(id, {
    stream: true,
    starting_after: seen.at(-1).sequence_number,
  });
  for await (const event of rest) seen.push(event);
  assert.deepEqual(
    seen.map((event) => event.sequence_number),
    seen.map((_, place) => place),
  );
  const text = seen.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta);
  assert.equal(text.join(""), Array.from({ length: 60 }, (_, number) => `tok${number} `).join(""));
  assert.equal(seen.at(-1).type, "response.completed");
  const helper = client.responses.stream({ response_id: id, starting_after: 5 });
  assert.equal((await helper.finalResponse()).status, "completed");
});

test("a cut behind each of a hundred events, and the rest at the other front end: each event once", async () => {
  const read = async (stream, into) => {
    for await (const event of stream) into.push(event);
  };
  const whole = [];
  await read(await client.responses.create({ model, input: "/tokens 100 50", stream: true }), whole);
  assert.ok(whole.length > 100);
  const { id } = whole[0].response;
  const proxy = await new Proxy(urls[0]).start();
  try {
    for (let frames = 1; frames <= whole.length; frames += 1) {
      Object.assign(proxy, { frames, torn: frames % 2 ? 7 : 0 });
      const seen = [];
      await assert.rejects(read(await at(proxy.url).responses.retrieve(id, { stream: true }), seen), `cut behind ${frames}`);
      assert.equal(seen.length, frames);
      const starting_after = seen.at(-1).sequence_number;
      await read(await other.responses.retrieve(id, { stream: true, starting_after }), seen);
      assert.deepEqual(seen, whole, `cut behind ${frames}`);
    }
  } finally {
    await proxy.close();
  }
});

test("in the background, and canceled", async () => {
  const begun = await client.responses.create({ model, input: "/tokens 1000 50", background: true });
  assert.equal((await other.responses.cancel(begun.id)).status, "cancelled");
  await other.responses.delete(begun.id);
  await assert.rejects(client.responses.retrieve(begun.id), OpenAI.NotFoundError);
});

test("a conversation", async () => {
  const { id } = await client.conversations.create({ metadata: { topic: "tea" } });
  await client.responses.create({ model, input: "one", conversation: id });
  const said = [];
  for await (const item of other.conversations.items.list(id, { order: "asc", limit: 1 })) said.push(item.role);
  assert.deepEqual(said, ["user", "assistant"]);
});

test("chat completions: stream, functions, failure", async () => {
  const messages = [{ role: "user", content: "/call weather {}" }];
  const tools = [{ type: "function", function: { name: "weather", parameters: weather.parameters } }];
  const helper = client.chat.completions.stream({ model, messages, tools });
  const { choices } = await helper.finalChatCompletion();
  assert.equal(choices[0].finish_reason, "tool_calls");
  const [call] = choices[0].message.tool_calls;
  messages.push(choices[0].message, { role: "tool", tool_call_id: call.id, content: "sun" });
  const answer = await other.chat.completions.create({ model, messages });
  assert.equal(answer.choices[0].message.content, "The result is sun.");
  const failing = [{ role: "user", content: "/fail boo" }];
  await assert.rejects(client.chat.completions.create({ model, messages: failing }), OpenAI.InternalServerError);
});
