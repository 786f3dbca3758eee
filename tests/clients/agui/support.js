/** What the tests have: a deployment that was started for them, and agents at it. */

import assert from "node:assert/strict";

import { HttpAgent, runHttpRequest, transformHttpEventStream } from "@ag-ui/client";

/** `{urls: [front end], pids: {url: pid}, key, admin}`, from tests/clients/test_agui.py. */
export const deployment = JSON.parse(process.env.TURNSTREAM_TEST);

// The client only warns of what the specification does not know.
const { warn } = console;
console.warn = (text, ...more) => {
  assert.ok(!String(text).startsWith("[ag-ui]"), text);
  warn(text, ...more);
};

export const headers = { Authorization: `Bearer ${deployment.key}` };

/** An agent that can connect: what docs/agui.md tells to write. */
export class Reconnecting extends HttpAgent {
  connect(input) {
    // That of a run that was aborted stays so.
    this.abortController = new AbortController();
    const init = this.requestInit(input);
    return transformHttpEventStream(runHttpRequest(() => fetch(`${this.url}/connect`, init)));
  }
}

export function agentAt(url, threadId = crypto.randomUUID(), Agent = Reconnecting) {
  return new Agent({ url: `${url}/ag-ui`, headers, threadId });
}

/** Say something, if anything; the events of the run, each checked by the client. */
export async function run(agent, text, parameters = {}, more = {}) {
  const events = [];
  if (text) agent.messages.push({ id: crypto.randomUUID(), role: "user", content: text });
  await agent.runAgent(parameters, { onEvent: ({ event }) => void events.push(event), ...more });
  return events;
}

export async function connect(agent) {
  const events = [];
  await agent.connectAgent({}, { onEvent: ({ event }) => void events.push(event) });
  return events;
}

/** Wait until something is so. */
export async function until(holds, what) {
  for (let at = 0; at < 1500; at += 1) {
    const found = await holds();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`in vain: ${what}`);
}

/** Within a test whose connections break: the client rejects in two places, of which one is nobody's to see to. */
export function allowRejections() {
  process.removeAllListeners("unhandledRejection").on("unhandledRejection", () => {});
}

export const kinds = (events) => events.map((event) => event.type);

/** What an agent's messages are, without ids. */
export const said = (agent) =>
  agent.messages.map(({ role, content, toolCalls }) =>
    toolCalls ? `${role} calls ${toolCalls.map((call) => call.function.name)}` : `${role}: ${content}`,
  );

export const tokens = (count) => Array.from({ length: count }, (_, at) => `tok${at} `).join("");

export function answerCalls(agent, content = "42") {
  const answered = new Set(agent.messages.map((message) => message.toolCallId));
  for (const message of [...agent.messages]) {
    for (const call of message.toolCalls ?? []) {
      if (!answered.has(call.id)) {
        agent.messages.push({ id: crypto.randomUUID(), role: "tool", toolCallId: call.id, content });
      }
    }
  }
}

export const resolved = (agent, payload) => ({
  resume: agent.pendingInterrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload })),
});

export { assert };
