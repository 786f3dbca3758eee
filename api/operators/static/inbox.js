// All that waits for its user, over all conversations of all keys.

import { byId, h, say } from "./dom.js";
import { ask, wordsOf } from "./server.js";

// Pages of a list that are looked through for what waits.
const MOST_PAGES = 10;

export class Inbox {
  /**
   * @param {() => object[]} keys the chat keys
   * @param {(key: object, session: string) => void} onOpen
   */
  constructor(keys, onOpen) {
    this.keys = keys;
    this.onOpen = onOpen;
    this.button = byId("open-inbox");
    this.dialog = byId("inbox");
    this.list = byId("inbox-list");
    this.words = byId("inbox-words");
    this.button.addEventListener("click", () => this.open());
  }

  /** Say how many calls of these conversations wait. */
  count(rows) {
    const count = rows.reduce((sum, row) => sum + row.calls.length, 0);
    say(this.button, count ? `Inbox (${count})` : "Inbox");
    this.button.classList.toggle("needed", count > 0);
  }

  async open() {
    this.list.replaceChildren();
    say(this.words, "Looking…");
    this.dialog.showModal();
    try {
      const found = (await Promise.all(this.keys().map((key) => waitingOf(key)))).flat();
      found.sort((one, other) => one.row.active_at - other.row.active_at);
      say(this.words, found.length ? "The one that has waited longest comes first." : "Nothing waits for you.");
      this.list.replaceChildren(...found.map((each) => this.item(each)));
    } catch (error) {
      say(this.words, wordsOf(error));
    }
  }

  item({ key, row, call }) {
    const what = call.kind === "approval" ? `Approve ${call.name}?` : `Result of ${call.name}`;
    const since = new Date(row.active_at * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
    return h("li", {}, h("div", {}, h("strong", { dir: "auto" }, what), h("span", { class: "note", dir: "auto" }, `${row.title} · ${key.agent} · since ${since}`)),
      h("button", { type: "button", class: "quiet", "aria-label": `Open: ${what}`, onclick: () => { this.dialog.close(); this.onOpen(key, row.session); } }, "Open"));
  }
}

async function waitingOf(key) {
  const found = [];
  let cursor = "";
  for (let pages = 0; pages < MOST_PAGES && cursor !== null; pages += 1) {
    const page = await ask(key.token, "GET", "console/sessions", { query: { state: "needs_you", limit: 100, cursor } });
    for (const row of page.conversations) for (const call of row.calls) found.push({ key, row, call });
    cursor = page.next;
  }
  return found;
}
