/** Events fold into turns, in whatever order pieces of a conversation become known. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Conversation, textOf, turnsOf } from "@turnstream/client";

const response = (id, sequence_number, status, more = {}) => ({ object: "response", id, sequence_number, status, ...more });
const message = (id, sequence_number, text) => ({
  object: "message",
  id,
  sequence_number,
  type: "message",
  role: "assistant",
  status: "completed",
  content: [{ object: "content", type: "text", index: 0, text }],
});

test("a turn that the history had first is the one that the events tell of", () => {
  const history = [
    { taskId: "a", role: "user", type: "text", content: "one", createTime: "" },
    { taskId: "a", role: "assistant", type: "text", content: "answer", createTime: "" },
  ];
  const conversation = new Conversation(turnsOf(history));
  const events = [response("response_a", 0, "queued"), response("response_a", 1, "in_progress"), message("m", 2, "answer")];
  for (const event of [...events, response("response_a", 3, "completed"), response("response_b", 0, "queued")]) conversation.take(event);
  assert.deepEqual(conversation.turns.map((turn) => turn.id), ["a", "response_b"]);
  const [turn] = conversation.turns;
  assert.deepEqual([turn.said[0].text, turn.status, turn.messages.map(textOf)], ["one", "completed", ["answer"]]);
});

test("what others began comes before what is not heard of yet", () => {
  const conversation = new Conversation();
  conversation.unsent("response_mine", [{ type: "text", text: "mine" }]).status = "queued";
  conversation.take(response("response_theirs", 0, "queued"));
  conversation.take(response("response_mine", 0, "queued"));
  assert.deepEqual(conversation.turns.map((turn) => turn.id), ["response_theirs", "response_mine"]);
});

test("who comes late has all messages in their order at the end", () => {
  const conversation = new Conversation();
  conversation.begin("response_a").status = "in_progress";
  conversation.take(message("second", 9, "two"));
  const output = [message("first", undefined, "one"), message("second", undefined, "two")];
  conversation.take(response("response_a", 10, "completed", { output }));
  assert.deepEqual(conversation.turns[0].messages.map(textOf), ["one", "two"]);
});
