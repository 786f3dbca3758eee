/** Front ends and a worker that end under OpenAI's own client: an error each time, then the rest. What it ends does not come back. */

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";

import { dense, deployment, operator, tokens, until } from "../../../clients/js/test/support.js";

const { urls, pids, key } = deployment;
const at = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const [survivor, killed, stopped] = urls;
const model = "demo";

async function read(stream, got) {
  for await (const each of stream) got.push(each);
}

function moreOf(got) {
  const before = got.length;
  return until(() => got.length > before + 3, "more of it");
}

async function workerOf(id) {
  const session = id.slice("resp_".length).split("~")[0];
  const tasks = async () => (await operator().request("GET", "/admin/v1/tasks")).tasks;
  const { worker } = await until(async () => (await tasks()).find((each) => each.session === session && each.worker), "the turn to be listed");
  return Number(worker.split("-").at(-2));
}

const messages = [{ role: "user", content: "/tokens 600 50" }];

/** A completion as a stream, by the stream's helper and whole: each is to be an error. */
async function completions(url) {
  const client = at(url);
  const chunks = [];
  const helped = [];
  const stream = await client.chat.completions.create({ model, messages, stream: true });
  const helper = client.chat.completions.stream({ model, messages }).on("chunk", (chunk) => helped.push(chunk));
  const fails = Promise.all([
    assert.rejects(read(stream, chunks)),
    assert.rejects(helper.finalChatCompletion()),
    assert.rejects(client.chat.completions.create({ model, messages }), OpenAI.APIError),
  ]);
  await Promise.all([moreOf(chunks), moreOf(helped)]);
  return async () => {
    await fails;
    const reasons = [...chunks, ...helped].flatMap(({ choices }) => choices.map((choice) => choice.finish_reason));
    assert.deepEqual(new Set(reasons), new Set([null]));
  };
}

test("front ends and a worker end in mid-item: each event of a response once; half a completion is an error", async (t) => {
  const got = [];
  let stream = await at(stopped).responses.create({ model, input: "/tokens 4000 50", stream: true });
  for (const [signal, url, next] of [
    ["SIGTERM", stopped, killed],
    ["SIGKILL", killed, survivor],
  ]) {
    await t.test(signal, async () => {
      const completionsFail = await completions(url);
      const cut = assert.rejects(read(stream, got));
      await moreOf(got);
      process.kill(pids[url], signal);
      await cut;
      await completionsFail();
      assert.equal(got.at(-1).type, "response.output_text.delta");
      const starting_after = got.at(-1).sequence_number;
      stream = await at(next).responses.retrieve(got[0].response.id, { stream: true, starting_after });
    });
  }
  const { id } = got[0].response;
  const reading = read(stream, got);
  await moreOf(got);
  const deltas = (index) => got.filter((event) => event.type === "response.output_text.delta" && event.output_index === index);
  const { output_index: begun } = got.at(-1);
  process.kill(await workerOf(id), "SIGKILL");
  await until(() => deltas(begun + 1).length > 3, "another worker to say it anew");
  const canceled = await at(survivor).responses.cancel(id);
  await reading;
  assert.deepEqual(got.map((event) => event.sequence_number), dense(got.length));
  const { response, type } = got.at(-1);
  assert.deepEqual([type, response.status], ["response.incomplete", "cancelled"]);
  assert.deepEqual(response.output, canceled.output);
  assert.ok(response.output.length > 1);
  for (const [index, item] of response.output.entries()) {
    assert.equal(item.status, "incomplete");
    const said = deltas(index).map((event) => event.delta).join("");
    assert.equal(item.content[0].text, said);
    assert.ok(said && tokens(4000).startsWith(said));
  }
});
