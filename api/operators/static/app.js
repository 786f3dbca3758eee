// The page: keys, views, the connection light.

import { Chat } from "./chat.js";
import { byId, h, say } from "./dom.js";
import { Inbox } from "./inbox.js";
import { News } from "./news.js";
import { Operate } from "./operate.js";
import * as store from "./store.js";
import { ask, wordsOf } from "./server.js";

const VIEWS = ["chat", "operate"];
const chat = new Chat(light);
const operate = new Operate(byId("view-operate"), byId("detail"));
let current = "chat";
const news = new News((session) => { show("chat"); if (session !== chat.session) chat.visit(session); });
const inbox = new Inbox(() => store.keys().filter((key) => key.scopes.includes("chat")), (key, session) => {
  show("chat");
  chat.use(key);
  chat.offer(store.keys());
  chat.answerIn(session);
});
chat.list.onNeeds = (rows) => inbox.count(rows);
chat.list.isWanted = () => news.wanted;
chat.list.onNews = (row) => news.tell(row.title || "Conversation", row.state === "needs_you" ? "The agent waits for you." : "The agent has answered.", row.session);
chat.onNews = (title, words, session) => news.tell(title, words, session);

function light(state, text) {
  const element = byId("light");
  element.dataset.state = state;
  say(byId("light-text"), text);
}

// ── views ──

function show(view) {
  current = VIEWS.includes(view) ? view : "chat";
  for (const each of VIEWS) {
    byId(`view-${each}`).hidden = each !== current;
    if (each === current) byId(`tab-${each}`).setAttribute("aria-current", "page");
    else byId(`tab-${each}`).removeAttribute("aria-current");
  }
  byId("light").hidden = current !== "chat";
  if (current === "operate") operate.begin(store.keys().find((key) => key.scopes.includes("admin")) ?? null);
  else operate.end();
  // Without a key, what the address says is shown when there is one.
  if (chat.key || current !== "chat" || addressed().view !== "chat") address(current === "chat" ? chat.session : "");
}

/** What the address says: a view, and in it a conversation, or which tasks. */
function addressed() {
  const [place, query = ""] = location.hash.slice(1).split("?");
  const [view, session = ""] = place.split("/");
  try {
    return { view, query, session: decodeURIComponent(session) };
  } catch {
    return { view, query, session: "" };
  }
}

function address(session, anew = false) {
  const query = current === "operate" ? operate.params() : "";
  const wanted = `#${current}${session ? `/${encodeURIComponent(session)}` : ""}${query ? `?${query}` : ""}`;
  if (location.hash === wanted) return;
  if (anew) history.pushState(null, "", wanted);
  else history.replaceState(null, "", wanted);
}

/** Go where the address leads. */
function go() {
  // Such a link may be pasted where the page is open.
  if (location.hash.startsWith("#key=")) { begin(); return; }
  const { view, session, query } = addressed();
  if (view === "operate") operate.read(query);
  if (view === "chat" && !chat.key) chat.wanted = session;
  if (view === "chat" && chat.key && session !== chat.session) chat.open(session, []);
  show(view);
}

operate.onPlace = () => { if (current === "operate") address(""); };
chat.onPlace = (session, anew) => { if (current === "chat") address(session, anew); };
for (const each of VIEWS) byId(`tab-${each}`).addEventListener("click", () => show(each));
addEventListener("popstate", go);

// ── keys ──

const dialog = byId("keys");

function listKeys() {
  byId("key-list").replaceChildren(...store.keys().map((key) => h("li", {},
    h("div", {}, h("strong", {}, key.scopes.includes("chat") ? key.agent : "operator"),
      h("span", { class: "note" }, `${key.owner} · ${key.shown} · ${key.scopes.join(", ")}${key.kept ? " · remembered" : ""}`)),
    h("button", { type: "button", class: "quiet", onclick: () => remove(key) }, "Remove"))));
}

function remove(key) {
  chat.forget(key);
  store.saveKeys(store.keys().filter((each) => each.token !== key.token));
  refresh();
}

async function add(token, kept) {
  const use = await ask(token, "GET", "console/key");
  const key = { token, kept, shown: `${token.slice(0, 9)}…`, owner: use.owner, agent: use.agent, scopes: use.scopes, most: use.largest_message, kinds: use.attachments };
  store.saveKeys([...store.keys().filter((each) => each.token !== token), key]);
  return key;
}

function refresh(chosen = null) {
  const keys = store.keys();
  chat.outbox.resume(keys.map((key) => key.token));
  const chats = keys.filter((key) => key.scopes.includes("chat"));
  const before = chats.find((key) => key.token === chosen?.token) ?? chats.find((key) => key.token === (chat.key?.token ?? store.view().token));
  chat.use(before ?? chats[0] ?? null);
  if (!chat.key) chat.open("", []);
  chat.offer(keys);
  listKeys();
  if (current === "operate") show("operate");
}

/** With an admin key, any agent can be tried: a key of its own is made for it, for a day. */
chat.onMakeKey = async (agent) => {
  const admin = store.keys().find((key) => key.scopes.includes("admin"));
  try {
    const made = await ask(admin.token, "POST", "admin/v1/keys", { body: { owner: "console", agent, days: 1 } });
    refresh(await add(made.token, admin.kept));
  } catch (error) {
    chat.tell(wordsOf(error));
  }
};

/** Show in the dialog why a key is not taken. */
function refuse(problem) {
  if (!dialog.open) dialog.showModal();
  say(byId("key-error"), wordsOf(problem));
  byId("key-error").hidden = false;
  byId("key-token").focus();
}

byId("open-keys").addEventListener("click", () => { listKeys(); dialog.showModal(); byId("key-token").focus(); });
byId("add-key").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = byId("key-token");
  const error = byId("key-error");
  error.hidden = true;
  try {
    const token = field.value.trim().replace(/^(authorization:\s*)?bearer\s+/i, "");
    if (!/^sk-[\w-]{16,128}$/.test(token)) throw new Error("This is no API key: one begins with sk- and has no spaces. Copy it whole.");
    const key = await add(token, byId("key-keep").checked);
    field.value = "";
    refresh(key);
    dialog.close();
    if (key.scopes.includes("chat")) byId("said").focus();
    else show("operate");
  } catch (problem) {
    refuse(problem);
  }
});

/**
 * The link that `turnstream serve` prints brings a key, which leaves the address at once. Only on the reader's own machine:
 * elsewhere a stranger's link could have somebody chat under the stranger's key.
 */
async function keyOfLink() {
  const found = /^#key=(sk-[\w-]{16,128})$/.exec(location.hash);
  if (!found) return null;
  history.replaceState(null, "", "#chat");
  if (!/^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(location.hostname)) return null;
  return add(found[1], store.keys().some((key) => key.token === found[1] && key.kept));
}

async function begin() {
  let key = null;
  let problem = null;
  try {
    key = await keyOfLink();
  } catch (error) {
    problem = error;
  }
  const { view, session, query } = addressed();
  operate.read(view === "operate" ? query : "");
  chat.wanted = session;
  const shown = key && !key.scopes.includes("chat") ? "operate" : view;
  current = shown === "operate" ? shown : "chat";
  refresh(key);
  show(shown);
  if (problem) refuse(problem);
}

begin();
