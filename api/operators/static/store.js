// What the page remembers. Keys stay in this tab unless the user wants them kept.

const KEYS = "turnstream.keys";
const VIEW = "turnstream.view";
const DRAFTS = "turnstream.drafts";
const SAMPLES = "turnstream.samples";
const OUTBOX = "turnstream.outbox";

// Browsers give a page about five megabytes; a conversation that is larger is asked for anew at a reload.
const MOST_VIEW = 2_000_000;

function read(storage, name, otherwise) {
  try {
    return JSON.parse(storage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function write(storage, name, value) {
  try {
    storage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    storage.removeItem(name);
    return false;
  }
}

/** All known keys: `{token, shown, owner, agent, scopes, kept}`. */
export function keys() {
  const found = [...read(sessionStorage, KEYS, []), ...read(localStorage, KEYS, [])];
  return found.filter((key, at) => found.findIndex((each) => each.token === key.token) === at);
}

export function saveKeys(all) {
  write(sessionStorage, KEYS, all.filter((key) => !key.kept));
  write(localStorage, KEYS, all.filter((key) => key.kept));
}

/** Everything that is kept of a key's conversations in this tab. */
export function forget(key) {
  const drafts = Object.entries(read(sessionStorage, DRAFTS, {})).filter(([place]) => !place.startsWith(`${key.shown} `));
  write(sessionStorage, DRAFTS, Object.fromEntries(drafts));
}

/** What was typed in a conversation and not sent. */
export function draft(key, session) {
  return read(sessionStorage, DRAFTS, {})[`${key.shown} ${session}`] ?? "";
}

export function saveDraft(key, session, text) {
  const all = read(sessionStorage, DRAFTS, {});
  all[`${key.shown} ${session}`] = text || undefined;
  write(sessionStorage, DRAFTS, all);
}

/** Messages that the server does not have yet: `{id, token, session, parts}`. */
export function outbox() {
  return read(sessionStorage, OUTBOX, []);
}

/** Whether they could be kept. */
export function saveOutbox(messages) {
  return write(sessionStorage, OUTBOX, messages);
}

/** What this tab shows: `{token, session, known, cursor, turns}`; turns and cursor belong together. */
export function view() {
  return read(sessionStorage, VIEW, {});
}

export function forgetView() {
  sessionStorage.removeItem(VIEW);
}

export function saveView(state) {
  const text = JSON.stringify(state);
  if (text.length <= MOST_VIEW) {
    try {
      sessionStorage.setItem(VIEW, text);
      return;
    } catch {
      // Full: the place alone has to do.
    }
  }
  write(sessionStorage, VIEW, { ...state, cursor: "", turns: [] });
}

/** The last samples of the operator's charts: `{at, values}`. */
export function samples(key) {
  return read(sessionStorage, SAMPLES, {})[key.shown];
}

export function saveSamples(key, kept) {
  write(sessionStorage, SAMPLES, { [key.shown]: kept });
}
