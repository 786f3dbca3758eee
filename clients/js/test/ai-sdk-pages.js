/** Pages with the AI SDK's own chats and transport, of three versions, at `/ai-sdk`: nothing of ours is in between. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import * as ai7 from "ai";
import * as ai5 from "ai5";
import * as ai6 from "ai6";

import { deployment } from "./support.js";

export const VERSIONS = [
  { name: "7", sdk: ai7, path: "/ai-sdk/chat" },
  { name: "6", sdk: ai6, path: "/ai-sdk/chat" },
  { name: "5", sdk: ai5, path: "/ai-sdk/v5/chat" },
];

export const headers = { authorization: `Bearer ${deployment.key}` };

/** What a page's fetch does: a connection that breaks is a network error, behind all that came. */
async function pageFetch(...given) {
  const answer = await fetch(...given);
  if (!answer.body) return answer;
  const reader = answer.body.getReader();
  const body = new ReadableStream({
    async pull(controller) {
      try {
        const { done, value } = await reader.read();
        if (done) controller.close();
        else controller.enqueue(value);
      } catch (error) {
        controller.error(error.name === "AbortError" ? error : new TypeError("network error"));
      }
    },
    cancel: (reason) => reader.cancel(reason),
  });
  return new Response(body, { status: answer.status, headers: answer.headers });
}

/** What docs/ai-sdk.md gives the fifth version. */
const [shown] = /async function fetchAnew[^]*?\n}\n/.exec(readFileSync("../../docs/ai-sdk.md", "utf8"));
const fifthFetch = new Function(`${shown} return fetchAnew;`)();

/** What a broken connection is to a page. */
export const brokenOf = ({ name }) => (name === "5" ? "The connection broke." : "network error");

/** What the SDK's chat keeps, without a page. */
export function stateOf(given) {
  const state = {
    status: "ready",
    error: undefined,
    messages: given.messages ?? [],
    pushMessage: (message) => (state.messages = [...state.messages, message]),
    popMessage: () => (state.messages = state.messages.slice(0, -1)),
    replaceMessage: (at, message) => (state.messages = state.messages.map((each, place) => (place === at ? structuredClone(message) : each))),
    snapshot: (thing) => structuredClone(thing),
  };
  return state;
}

/** The SDK's chat without a page: at a front end, which a test changes by `front`; `answers`, if `noted`: what came. */
export function chatOf({ sdk, path, name }, { url, resume = "", noted = false, ...given }) {
  const state = stateOf(given);
  class Chat extends sdk.AbstractChat {}
  const prepareReconnectToStreamRequest = resume ? ({ id }) => ({ api: `${path}/${id}/stream${resume}` }) : undefined;
  const answers = [];
  const fetchAt = async (to, request) => {
    const answer = await (name === "5" ? fifthFetch : pageFetch)(`${chat.front}${to}`, request);
    if (noted) answers.push(answer.clone().text());
    return answer;
  };
  const transport = new sdk.DefaultChatTransport({ api: path, headers, fetch: fetchAt, prepareReconnectToStreamRequest });
  const chat = new Chat({ id: sdk.generateId(), generateId: sdk.generateId, onError: (error) => (state.error = error), ...given, transport, state });
  return Object.assign(chat, { front: url, answers });
}

/** The chunks of answers that came whole, one behind the other. */
export async function chunksOf({ answers }) {
  const frames = (await Promise.all(answers)).join("").split("\n\n").filter((frame) => frame.startsWith("data: {"));
  return frames.map((frame) => JSON.parse(frame.slice("data: ".length)));
}

export const textOf = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text).join("");
export const last = (chat) => chat.messages.at(-1);
export const toolsOf = (message) => message.parts.filter((part) => part.toolCallId);

export async function said(chat, text) {
  await chat.sendMessage({ text });
  return last(chat);
}

export const ask = (method, path, url = deployment.urls[1]) => fetch(`${url}${path}`, { method, headers });

/** What the server says that the page holds: without what only pages note. */
export function held(messages) {
  return JSON.parse(JSON.stringify(messages)).map(({ id, role, parts }) => ({
    id,
    role,
    parts: parts.map(({ state, id: _, title: __, rawInput: ___, preliminary: ____, ...part }) => ({ ...part, ...(part.toolCallId ? { state } : {}) })),
  }));
}

export async function history(version, chat, url = undefined) {
  const answer = await ask("GET", `${version.path}/${chat.id}/messages`, url);
  assert.equal(answer.status, 200);
  return answer.json();
}
