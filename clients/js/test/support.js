/** What tests have: a deployment that was started for them, and clients of it. */

import { Client } from "@turnstream/client";

export { Proxy } from "./proxy.js";

/** `{urls: [front end], pids: {url: pid}, workers: [pid], key, admin}`, from tests/clients/test_javascript.py. */
export const deployment = JSON.parse(process.env.TURNSTREAM_TEST ?? "null");

export const QUICK = { first: 1, most: 50 };

export function clientAt(url = deployment.urls[0], given = {}) {
  return new Client({ url, key: deployment.key, backoff: QUICK, ...given });
}

/** The JSON of a request with the admin key. */
export function operator() {
  return new Client({ url: deployment.urls[0], key: deployment.admin, backoff: QUICK });
}

/** Wait for a condition by name. */
export async function until(condition, what, seconds = 60) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > end) throw new Error(`waited ${seconds} s for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** The numbers of a reply's events. */
export async function numbersOf(reply) {
  const numbers = [];
  for await (const event of reply) numbers.push(event.sequence_number);
  return numbers;
}

export const dense = (count) => Array.from({ length: count }, (_, at) => at);

export const tokens = (count) => dense(count).map((number) => `tok${number} `).join("");
