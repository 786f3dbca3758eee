// The server that the page came from, through the client that everybody has (client.js).

import { Client } from "./client.js";

// The page lies at …/console/, the API one level above it, whatever a proxy puts before both.
const ROOT = new URL("../", document.baseURI).href;

// So long a button's request is repeated.
const PATIENCE_MS = 8000;

const clients = new Map();

/** The client of a key. */
export function clientOf(key) {
  if (!clients.has(key)) {
    const given = { url: ROOT, key, patience: PATIENCE_MS, fetch: (url, asked) => fetch(url, { ...asked, credentials: "omit" }) };
    clients.set(key, new Client(given));
  }
  return clients.get(key);
}

/** One request, tried once: the JSON that it is answered with. */
export function ask(key, method, path, { query, body } = {}) {
  return clientOf(key).request(method, `/${path}`, { query, body, patience: 0 });
}

/** As `ask`, repeated while trouble may pass; for requests that bear it. */
export function insist(key, method, path, { query, body, headers } = {}) {
  return clientOf(key).request(method, `/${path}`, { query, body, headers });
}

/** What an error says to who reads the page: the server's own words, where it has some. */
export const wordsOf = (error) => error.reason ?? error.message;
