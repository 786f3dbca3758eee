// What the page remembers. Keys and conversations stay in this tab unless the user wants them kept.

const KEYS = "turnstream.keys";
const SESSIONS = "turnstream.sessions";
const VIEW = "turnstream.view";

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
  } catch {
    storage.removeItem(name);
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

const home = (key) => (key.kept ? localStorage : sessionStorage);

/** The conversations of a key, newest first: `{id, title, at}`. */
export function sessions(key) {
  return read(home(key), SESSIONS, {})[key.shown] ?? [];
}

export function saveSessions(key, list) {
  const all = read(home(key), SESSIONS, {});
  all[key.shown] = list.slice(0, 100);
  write(home(key), SESSIONS, all);
}

export function forget(key) {
  const all = read(home(key), SESSIONS, {});
  delete all[key.shown];
  write(home(key), SESSIONS, all);
}

/** What this tab shows: `{view, token, session, cursor, turns}`; turns and cursor belong together. */
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
