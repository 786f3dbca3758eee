// The conversations of a key: the server's list, by day, with those in front that it does not have yet.

import { byId, h } from "./dom.js";
import { ask, insist } from "./server.js";

const PAGE = 30;
const MOST_AT_ONCE = 100;
const EVERY_MS = 20_000;
// The server lists a conversation a moment after its first message.
const SOON_MS = 400;
const WORKING = new Set(["running", "queued"]);
const STATES = { needs_you: "needs you", running: "running", queued: "waiting" };

const path = (session) => `console/sessions/${encodeURIComponent(session)}`;

export class Conversations {
  /**
   * @param {object} given
   * @param {(session: string) => void} given.onPick one is to be shown
   * @param {() => void} given.onChange something is known of the one that is shown
   */
  constructor(given) {
    Object.assign(this, given);
    /** Told which of them wait for their user, and of each that is not shown when it has answered or asks. */
    this.onNeeds = () => {};
    this.onNews = () => {};
    /** Whether that is wanted while the page is hidden, too. */
    this.isWanted = () => false;
    this.key = null;
    this.shown = "";
    this.rows = new Map();
    this.begun = new Map();
    /** All that was ever listed, whatever is searched for by now, and what those that are shown branched off from. */
    this.seen = new Map();
    this.gone = new Set();
    this.version = 0;
    this.next = null;
    this.search = "";
    this.list = byId("session-list");
    this.more = byId("more-sessions");
    this.more.addEventListener("click", () => this.load(true));
    const field = byId("search");
    field.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => { this.search = field.value.trim(); this.rows.clear(); this.next = null; this.load(); }, 250);
    });
    document.addEventListener("visibilitychange", () => this.soon());
    setInterval(() => {
      const awaited = this.isWanted() && [...this.rows.values()].some((row) => WORKING.has(row.state));
      if (document.visibilityState === "visible" || awaited) this.load();
    }, EVERY_MS);
  }

  use(key) {
    if (this.key?.token === key?.token) return;
    this.key = key;
    this.rows.clear();
    this.begun.clear();
    this.seen.clear();
    this.gone.clear();
    this.next = null;
    this.onNeeds([]);
    this.draw();
    this.load();
  }

  /** Mark the one that is shown. */
  show(session) {
    this.shown = session;
    this.draw();
  }

  row(session) {
    return this.rows.get(session) ?? this.begun.get(session);
  }

  /** One that begins with these words; the server will know it. */
  begin(session, title) {
    if (!this.rows.has(session) && !this.begun.has(session)) this.begun.set(session, { session, title, state: "queued", active_at: Date.now() / 1000, calls: [] });
    this.draw();
  }

  soon() {
    clearTimeout(this.coming);
    if (document.visibilityState === "visible") this.coming = setTimeout(() => this.load(), SOON_MS);
  }

  /** Ask for what is shown anew, or for what comes after it. */
  async load(further = false) {
    const { key, search } = this;
    if (!key) return;
    const query = { search, limit: further ? PAGE : Math.min(MOST_AT_ONCE, Math.max(PAGE, this.rows.size)), cursor: further ? this.next : "" };
    const list = (given) => ask(key.token, "GET", "console/sessions", { query: given });
    let page, needs;
    try {
      // What waits is told, whatever is searched for.
      [page, needs] = await Promise.all([list(query), search ? list({ state: "needs_you", limit: MOST_AT_ONCE }) : null]);
    } catch {
      // The stream's light tells what is wrong; the list is asked for again.
      return;
    }
    if (key !== this.key || search !== this.search) return;
    const whole = !further && (page.next === null || this.rows.size <= query.limit);
    const before = new Map(this.rows);
    if (whole) this.rows.clear();
    if (whole && !search) this.seen.clear();
    for (const row of page.conversations) {
      if (WORKING.has(before.get(row.session)?.state) && !WORKING.has(row.state) && row.session !== this.shown) this.onNews(row);
      this.rows.set(row.session, row);
      this.seen.set(row.session, row);
      this.begun.delete(row.session);
    }
    this.version += 1;
    if (further || whole) this.next = page.next;
    this.draw();
    this.onChange();
    this.onNeeds((needs?.conversations ?? [...this.rows.values()]).filter((row) => row.state === "needs_you"));
  }

  /** What is known of one, also where it is not in the list. */
  async about(session) {
    return this.rows.get(session) ?? ask(this.key.token, "GET", path(session));
  }

  /** Get to know what one branched off from, and that one in turn, as far as they are kept. */
  async trace(session) {
    const { key } = this;
    for (let each = session; each && !this.gone.has(each); each = this.seen.get(each)?.forked_from?.session) {
      if (this.seen.has(each)) continue;
      try {
        const row = await this.about(each);
        if (key !== this.key) return;
        this.seen.set(each, row);
        this.version += 1;
      } catch {
        // It may be one of which the server knows nothing yet: of those that are shown it is asked again.
        if (each !== session) this.gone.add(each);
        return;
      }
    }
  }

  async rename(session, title) {
    await insist(this.key.token, "POST", path(session), { body: { title } });
    await this.load();
  }

  /** Delete one for good. */
  async remove(session, key) {
    await insist(key.token, "DELETE", path(session));
    this.drop(session);
  }

  drop(session) {
    this.rows.delete(session);
    this.begun.delete(session);
    this.seen.delete(session);
    this.version += 1;
    this.draw();
  }

  draw() {
    const found = [...this.begun.values()].filter((row) => !this.search).concat([...this.rows.values()]);
    found.sort((one, other) => other.active_at - one.active_at);
    const groups = new Map();
    for (const row of found) {
      const name = groupOf(row);
      groups.set(name, [...(groups.get(name) ?? []), row]);
    }
    // A stable order: the days stay as the times have them.
    const names = [...groups.keys()].sort((one, other) => rank(one) - rank(other));
    const drawn = JSON.stringify([this.shown, this.key?.token, names, found.map((row) => [row.session, row.title, row.state, when(row.active_at)])]);
    this.more.hidden = this.next === null;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.session : null;
    this.list.replaceChildren(...names.flatMap((name, at) => [
      h("p", { class: "group", id: `group-${at}` }, name),
      h("ul", { "aria-labelledby": `group-${at}` }, ...groups.get(name).map((row) => h("li", {}, this.button(row)))),
    ]));
    if (!found.length && this.key) this.list.append(h("p", { class: "note" }, this.search ? "None is called so." : "None yet."));
    if (focused) this.list.querySelector(`[data-session="${CSS.escape(focused)}"]`)?.focus();
  }

  button(row) {
    const words = [STATES[row.state], when(row.active_at), row.forked_from ? "branch" : ""].filter(Boolean).join(" · ");
    const made = h("button", {
      type: "button", class: "session", title: row.title, "aria-current": row.session === this.shown ? "true" : null, onclick: () => this.onPick(row.session),
    }, h("span", { class: "session-title", dir: "auto" }, row.title || "Conversation"), h("span", { class: "session-words" }, words));
    made.dataset.session = row.session;
    made.dataset.state = row.state;
    return made;
  }
}

const FIRST = ["Needs you", "Working"];
const rank = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);

function groupOf(row) {
  if (row.state === "needs_you") return "Needs you";
  if (row.state !== "ended") return "Working";
  const day = new Date(row.active_at * 1000);
  const days = Math.round((midnight(new Date()) - midnight(day)) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days < 7) return "Last 7 days";
  return day.toLocaleDateString(undefined, { month: "long", year: "numeric" });
}

const midnight = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();

/** A time today, else a day. */
function when(seconds) {
  const date = new Date(seconds * 1000);
  if (midnight(date) === midnight(new Date())) return date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  return date.toLocaleDateString(undefined, { day: "numeric", month: "short" });
}

/** Have a field in a heading's place until its text is changed or not. */
export function editTitle(heading, text, done) {
  const field = h("input", { type: "text", class: "title-field", value: text, maxLength: 200, dir: "auto", "aria-label": "Name of the conversation" });
  let over = false;
  const end = (keep) => {
    if (over) return;
    over = true;
    const back = document.activeElement === field;
    field.remove();
    heading.hidden = false;
    if (back) byId("rename-chat").focus();
    if (keep && field.value.trim() !== text) done(field.value.trim());
  };
  field.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter") { event.preventDefault(); end(true); }
    if (event.key === "Escape") { event.stopPropagation(); end(false); }
  });
  field.addEventListener("blur", () => end(true));
  heading.hidden = true;
  heading.after(field);
  field.focus();
  field.select();
}
