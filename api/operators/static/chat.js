// The chat side: one conversation at a time, followed from wherever it stands.

import { Conversation, ENDED, newId, Refused, saidBy, textOf, turnsOf, UNSENT } from "./client.js";
import { Attachments, KINDS } from "./attachments.js";
import { branchSwitch, forkAt, partings } from "./branching.js";
import { Conversations, editTitle } from "./conversations.js";
import { byId, h, say, short } from "./dom.js";
import { canEdit, TurnView } from "./messages.js";
import { Outbox } from "./outbox.js";
import { ask, clientOf, wordsOf } from "./server.js";
import * as store from "./store.js";

const SAVE_MS = 1000;
const LEAST_DRAW_MS = 30;

export class Chat {
  /** @param {(state: string, text: string) => void} light */
  constructor(light) {
    this.light = light;
    this.key = null;
    this.session = "";
    this.known = false;
    this.conversation = new Conversation();
    this.cursor = "";
    this.views = new Map();
    this.dirty = new Map();
    this.attachments = new Attachments((text) => this.tell(text));
    this.following = null;
    this.log = byId("log");
    this.heading = byId("talk-title");
    this.stuck = true;
    this.top = 0;
    this.outbox = new Outbox({
      onSent: (message) => this.sent(message),
      onTrouble: (message, reason) => this.delayed(message, reason),
      onRefused: (message, error) => this.unsent(message, error),
    });
    /** Told when another conversation is shown; `anew`: its user went there. */
    this.onPlace = () => {};
    /** Told what happened in it that its user may wait for: title, words, session. */
    this.onNews = () => {};
    this.list = new Conversations({
      onPick: (session) => { this.drawer(false); if (session !== this.session) this.visit(session); },
      onChange: () => { this.refresh(); this.trace(); },
    });
    this.bind();
  }

  bind() {
    // Who went to another branch stays where the branches part, until they do something else.
    for (const act of ["pointerdown", "keydown", "wheel"]) addEventListener(act, () => { this.switched = null; }, { capture: true, passive: true });
    const said = byId("said");
    byId("composer").addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    said.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.send(); }
    });
    byId("leave-edit").addEventListener("click", () => this.leaveEdit());
    said.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") this.leaveEdit();
      if (event.key === "ArrowUp" && !said.value && this.editLast()) event.preventDefault();
    });
    said.addEventListener("input", () => { grow(said); this.keepDraft(); });
    said.addEventListener("paste", (event) => this.attachments.add(event.clipboardData?.files));
    byId("attach").addEventListener("change", (event) => { this.attachments.add(event.target.files); event.target.value = ""; });
    byId("stop").addEventListener("click", () => this.stop());
    byId("new-chat").addEventListener("click", () => { this.drawer(false); this.visit(""); said.focus(); });
    byId("delete-chat").addEventListener("click", () => this.remove());
    byId("rename-chat").addEventListener("click", () => editTitle(this.heading, this.title(), (title) => this.rename(title)));
    byId("pick-key").addEventListener("change", (event) => { this.drawer(false); this.pick(event.target.value); });
    byId("open-sessions").addEventListener("click", () => this.drawer());
    byId("backdrop").addEventListener("click", () => this.drawer(false));
    addEventListener("keydown", (event) => { if (event.key === "Escape") this.drawer(false); });
    byId("jump").addEventListener("click", () => { this.stuck = true; this.toEnd(); said.focus(); });
    this.log.addEventListener("scroll", () => this.scrolled());
    // A phone's keyboard, a picture that arrives, a draft that grows: who read the end goes on seeing it.
    new ResizeObserver(() => { if (this.stuck) this.toEnd(); }).observe(this.log);
    this.log.addEventListener("load", () => { if (this.stuck) this.toEnd(); }, true);
    // Whatever is dropped beside the page's fields would be opened in its place.
    addEventListener("dragover", (event) => event.preventDefault());
    addEventListener("drop", (event) => { event.preventDefault(); if (this.key) this.attachments.add(event.dataTransfer?.files); });
    for (const change of ["online", "offline"]) addEventListener(change, () => { if (!this.following) this.idle(); });
    addEventListener("pagehide", () => this.save());
    document.addEventListener("visibilitychange", () => { if (document.visibilityState === "hidden") this.save(); });
  }

  /** Chat with a key; take up what this tab showed before a reload. */
  use(key) {
    if (this.key?.token === key?.token) return;
    this.following?.close();
    this.key = key;
    this.attachments.most = key?.most ?? Infinity;
    this.attachments.take(key?.kinds ?? Object.keys(KINDS));
    this.list.use(key);
    const before = store.view();
    // The address says more than what was shown before.
    const wanted = key ? this.wanted : null;
    if (key) this.wanted = null;
    if (wanted && wanted !== before.session) this.open(wanted, []);
    else if (key && before.token === key.token && before.session) this.open(before.session, before.turns ?? [], before.cursor, before.known);
    else this.open("", []);
  }

  /** Nothing of what was said with this key stays. */
  forget(key) {
    this.outbox.forget(key.token);
    store.forget(key);
  }

  // ── conversations ──

  /** Show a conversation; `anew`: its user goes there. */
  open(session, turns, cursor = "", known = Boolean(session), anew = false) {
    this.following?.close();
    this.following = null;
    this.session = session;
    this.known = known;
    this.conversation = new Conversation(turns);
    this.cursor = cursor;
    for (const message of this.key ? this.outbox.of(this.key.token, session) : []) this.conversation.unsent(message.id, message.parts);
    this.views.clear();
    this.dirty.clear();
    this.log.replaceChildren();
    this.stuck = true;
    this.top = 0;
    if (!this.conversation.turns.length && !session) this.welcome();
    for (const turn of this.conversation.turns) this.view(turn);
    this.idle();
    if (known) this.follow(cursor);
    this.editing = null;
    this.seeking = false;
    this.switched = null;
    this.parted = "";
    byId("editing").hidden = true;
    this.write(this.key ? store.draft(this.key, session) : "");
    this.showJump();
    if (this.key) for (const each of this.outbox.messages.filter((one) => one.token === this.key.token)) this.list.begin(each.session, wordsIn(each.parts));
    this.list.show(session);
    this.refresh();
    this.trace();
    this.toEnd();
    this.save();
    if (this.key) this.onPlace(session, anew);
  }

  /** Go to a conversation, so that one can come back from it; `""`: a new one. */
  visit(session) {
    this.open(session, [], "", Boolean(session), true);
  }

  /** The light while nothing is followed. */
  idle() {
    if (!navigator.onLine) this.light("lost", "offline");
    else this.light("idle", this.key ? "ready" : "no key");
  }

  welcome() {
    const operator = !this.key && store.keys().length > 0;
    const without = operator ? "Pick an agent to talk to: a key is made for it, for a day." : "Add an API key to begin.";
    const text = this.key ? `You talk to ${this.key.agent}. A turn goes on even when this page is closed.` : without;
    const commands = ["/think", "/tool add 1 2", "/call weather {\"city\": \"Bern\"}", "/approve", "/dispatch", "/tokens 200 20"];
    const tries = this.key?.agent === "demo" ? h("div", { class: "tries" }, h("span", { class: "note" }, "The demo agent knows"), ...commands.map((each) => h("button", { type: "button", class: "chip", onclick: () => { byId("said").value = each; this.send(); } }, each))) : null;
    const act = operator ? () => { this.drawer(true); byId("pick-key").focus(); } : () => byId("open-keys").click();
    const add = this.key ? null : h("button", { type: "button", class: "primary", onclick: act }, operator ? "Pick an agent" : "Add a key");
    this.log.append(h("div", { class: "welcome" }, h("p", {}, text), add, tries));
  }

  /** Follow the whole session: turns of other tabs and terminals show, too. */
  follow(cursor = "") {
    this.following?.close();
    const mine = clientOf(this.key.token).session(this.session).watch({
      cursor, patience: Infinity,
      onState: (state, reason) => { if (this.following === mine) this.connected(state, reason); },
      isWorking: () => this.conversation.live.some((turn) => !this.views.get(turn.id)?.waits),
    });
    this.following = mine;
    this.read(mine);
    if (!cursor) this.recall();
  }

  async read(following) {
    try {
      for await (const event of following) {
        if (this.following !== following) return;
        this.cursor = following.cursor;
        this.event(event);
      }
    } catch (error) {
      if (this.following === following) this.refused(error);
    }
  }

  connected(state, reason) {
    if (state === "lost") this.light(state, navigator.onLine ? `${reason}; reconnecting` : "offline");
    else if (state !== "closed") this.light(state, state);
  }

  event(event) {
    const { turn, message } = this.conversation.take(event);
    if (!turn) return;
    if (!turn.said && event.object === "response") this.recallSoon();
    this.touch(turn, message);
    if (event.object === "response" && event.status !== "in_progress") this.list.soon();
    if (event.object === "response" && ENDED.has(event.status)) this.announceEnd(turn);
    else if (event.object === "message" && event.status === "completed" && /^(function_call|mcp_approval_request)$/.test(event.type)) this.announceAsk();
  }

  refused(error) {
    this.following = null;
    if (error.status === 410) {
      this.open(this.session, []);
      return;
    }
    if (error.status === 404) {
      this.known = false;
      this.cursor = "";
      this.idle();
      if (!this.conversation.turns.some((turn) => turn.status === UNSENT)) this.forgotten();
      return;
    }
    this.light("refused", "refused");
    this.tell(wordsOf(error));
  }

  forgotten() {
    this.list.drop(this.session);
    this.list.soon();
    this.tell("This conversation is no longer kept by the server. A new message starts it anew.");
  }

  /** What users said comes from the history: events of a response do not hold it. */
  async recall() {
    const { session, conversation } = this;
    try {
      const history = await clientOf(this.key.token).session(session).history();
      if (conversation !== this.conversation) return;
      const said = saidBy(history);
      for (const turn of conversation.turns) {
        if (!turn.said) turn.said = said.get(turn.id.replace(/^response_/, "")) ?? null;
        this.touch(turn);
      }
      // What was said before all that the stream has: in what this branched off from, or so long ago that its events are gone.
      const told = turnsOf(history);
      const first = told.findIndex((turn) => conversation.turn(turn.id));
      const before = first < 0 ? told : told.slice(0, first);
      if (before.length && (first >= 0 || conversation.turns.every((turn) => turn.status === UNSENT || turn.status === "queued"))) {
        conversation.turns.unshift(...before);
        for (const turn of conversation.turns) this.view(turn);
        this.refresh();
      }
    } catch {
      // The stream tells what is wrong, if something is.
    }
  }

  recallSoon() {
    clearTimeout(this.recalling);
    this.recalling = setTimeout(() => this.recall(), 150);
  }

  // ── drawing ──

  touch(turn, message = null) {
    const others = this.dirty.get(turn.id);
    this.dirty.set(turn.id, this.dirty.has(turn.id) && others !== message ? null : message);
    if (this.drawing) return;
    this.drawing = true;
    // Drawing gets at most a third of the time, however fast events come: taking them is what matters.
    setTimeout(() => {
      this.drawing = false;
      const began = performance.now();
      this.draw();
      this.rest = 2 * (performance.now() - began);
    }, Math.min(500, Math.max(LEAST_DRAW_MS, this.rest ?? 0)));
  }

  draw() {
    const dirty = [...this.dirty];
    this.dirty.clear();
    for (const [id, message] of dirty) {
      const turn = this.conversation.turn(id);
      if (turn) this.view(turn).update(turn, this.conversation, message);
    }
    this.refresh();
    if (this.stuck) this.toEnd();
    else this.unread = true;
    this.seek();
    this.showJump();
    if (!this.saving) this.saving = setTimeout(() => { this.saving = 0; this.save(); }, SAVE_MS);
  }

  view(turn) {
    let view = this.views.get(turn.id);
    if (!view) {
      this.log.querySelector(".welcome")?.remove();
      view = new TurnView(turn, {
        agent: this.key.agent, answer: (call, result) => this.answer(call, result), onward: () => this.onward(),
        edit: (which) => this.edit(which), again: (which) => this.instead(which, which.said), branch: (which) => this.branch(which),
      });
      view.update(turn, this.conversation);
      this.views.set(turn.id, view);
      const { turns } = this.conversation;
      const next = turns.slice(turns.indexOf(turn) + 1).map((each) => this.views.get(each.id)).find(Boolean);
      if (next) next.element.before(view.element);
      else this.log.append(view.element);
    }
    return view;
  }

  refresh() {
    const live = this.conversation.live.length > 0;
    const stop = byId("stop");
    // What has the focus and goes away would leave it to nobody.
    if (!live && document.activeElement === stop) byId("said").focus();
    stop.hidden = !live;
    for (const each of ["rename-chat", "delete-chat"]) byId(each).hidden = !this.known || !this.conversation.turns.length;
    // What is typed before a key is known would be replaced by that key's draft.
    for (const each of ["said", "send"]) byId(each).disabled = !this.key;
    say(this.heading, this.title() || (this.session ? "Conversation" : "New conversation"));
    document.title = live ? "● Turnstream console" : "Turnstream console";
    this.showBranches();
  }

  /** What its user calls the conversation, or how it begins. */
  title() {
    const listed = this.list.row(this.session);
    const first = this.conversation.turns[0];
    return listed?.named || !first ? listed?.title ?? "" : titleOf(first);
  }

  atEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60;
  }

  toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
  }

  /** Only who scrolls up leaves the end: the event of our own scrolling may come after the log has grown or become lower. */
  scrolled() {
    const top = this.log.scrollTop;
    if (this.atEnd()) this.stuck = true;
    else if (top < this.top) this.stuck = false;
    this.top = top;
    this.showJump();
  }

  showJump() {
    if (this.stuck) this.unread = false;
    const jump = byId("jump");
    jump.hidden = this.stuck;
    jump.classList.toggle("unread", Boolean(this.unread));
    say(jump, this.unread ? "New below" : "Jump to the latest");
  }

  tell(text, ...more) {
    this.log.append(h("div", { class: "notice", role: "alert" }, h("p", {}, text), ...more));
    if (this.stuck) this.toEnd();
  }

  announceAsk() {
    say(byId("announce"), "The agent waits for you.");
    this.onNews(this.title(), "The agent waits for you.", this.session);
  }

  announceEnd(turn) {
    const last = turn.messages.filter((message) => message.type === "message").at(-1);
    const words = { completed: last ? `The agent answered: ${short(textOf(last), 400)}` : "The turn is complete", canceled: "The turn was stopped", failed: `The turn failed: ${turn.error?.message ?? ""}` };
    say(byId("announce"), words[turn.status] ?? "");
    if (words[turn.status]) this.onNews(this.title(), short(words[turn.status], 160), this.session);
  }

  // ── acts ──

  async send() {
    await this.attachments.read;
    const field = byId("said");
    const text = field.value.trim();
    if (!this.key || (!text && !this.attachments.parts.length)) return;
    const parts = [...(text ? [{ type: "text", text }] : []), ...this.attachments.parts];
    const { editing } = this;
    this.editing = null;
    byId("editing").hidden = true;
    this.write("");
    this.keepDraft();
    this.attachments.set([]);
    if (editing) this.instead(editing, parts);
    else this.submit(parts);
  }

  submit(parts) {
    this.session ||= newId();
    const message = { id: `response_${newId()}`, token: this.key.token, session: this.session, parts };
    const turn = this.conversation.unsent(message.id, parts);
    this.stuck = true;
    this.touch(turn);
    this.list.begin(this.session, wordsIn(parts));
    this.list.show(this.session);
    this.onPlace(this.session, false);
    this.outbox.add(message);
  }

  /** Show a conversation that waits for its user, and what it asks. */
  answerIn(session) {
    if (session !== this.session) this.visit(session);
    this.seeking = true;
    this.seek();
  }

  seek() {
    const asked = this.log.querySelector(".ask:not([data-done], [data-sent])");
    if (!this.seeking || !asked) return;
    this.seeking = false;
    asked.querySelector("textarea, input")?.focus();
    asked.scrollIntoView({ block: "nearest" });
  }

  // ── branches ──

  /** Write a turn's message anew. */
  edit(turn) {
    this.editing = turn;
    this.write(wordsOfTurn(turn));
    this.attachments.set(turn.said.filter((part) => part.type !== "text" && (part.image || part.data)));
    byId("editing").hidden = false;
    byId("said").focus();
  }

  /** Write the last message anew, where nothing is written; whether there is one. */
  editLast() {
    const last = this.conversation.turns.findLast(canEdit);
    if (!last || this.editing || this.attachments.parts.length) return false;
    this.edit(last);
    return true;
  }

  leaveEdit() {
    if (!this.editing) return;
    this.editing = null;
    byId("editing").hidden = true;
    this.write("");
    this.attachments.set([]);
    this.keepDraft();
    byId("said").focus();
  }

  /** Go on from the end of a turn, in a conversation of its own. */
  branch(turn) {
    return this.branching(turn, (session) => { this.visit(session); byId("said").focus(); });
  }

  /** Say something in a turn's place: in a branch of what was said before it. */
  instead(turn, parts) {
    const before = this.conversation.turns[this.conversation.turns.indexOf(turn) - 1];
    const say_ = (session) => {
      this.visit(session);
      this.submit(parts);
      byId("said").focus();
    };
    if (before) return this.branching(before, say_);
    return say_("");
  }

  async trace() {
    if (!this.key || !this.known) return;
    const { session } = this;
    await this.list.trace(session);
    if (session === this.session) this.showBranches();
  }

  /** Behind each turn from which several conversations go on, the way to the others. */
  showBranches() {
    const { turns } = this.conversation;
    const parted = `${this.list.version} ${turns.length}`;
    if (parted !== this.parted && this.key) {
      this.parted = parted;
      const byTask = new Map(turns.map((turn) => [turn.id.replace(/^response_/, ""), this.views.get(turn.id)]));
      const before = [...this.log.querySelectorAll(".branches")];
      const made = partings(this.session, [...byTask.keys()], this.list.seen).filter(({ task }) => byTask.get(task)).map((parting) => {
        const words = JSON.stringify([parting, parting.sessions.map((session) => this.list.seen.get(session)?.title)]);
        const element = before.find((each) => each.dataset.words === words) ?? branchSwitch(parting, (session) => this.list.seen.get(session)?.title || "Conversation", (session, by) => this.goToBranch(session, parting.task, by));
        element.dataset.words = words;
        element.dataset.task = parting.task;
        const { element: turn } = byTask.get(parting.task);
        if (turn.nextSibling !== element) turn.after(element);
        return element;
      });
      for (const each of before.filter((one) => !made.includes(one))) each.remove();
    }
    this.stayAtBranches();
  }

  goToBranch(session, task, by) {
    this.visit(session);
    this.switched = { task, by };
  }

  stayAtBranches() {
    if (!this.switched) return;
    const { task, by, focused } = this.switched;
    const element = this.log.querySelector(`.branches[data-task="${CSS.escape(task)}"]`);
    if (!element) return;
    if (!focused || !element.contains(document.activeElement)) {
      const [previous, next] = element.querySelectorAll("button");
      const [wanted, other] = by > 0 ? [next, previous] : [previous, next];
      (wanted.disabled ? other : wanted).focus({ preventScroll: true });
      this.switched.focused = true;
    }
    this.stuck = false;
    element.scrollIntoView({ block: "center" });
    this.top = this.log.scrollTop;
  }

  async branching(turn, use) {
    if (this.forking) return;
    this.forking = true;
    const { key, session } = this;
    try {
      const made = await forkAt(key, session, turn, (each) => this.list.about(each));
      if (key === this.key && session === this.session) use(made);
    } catch (error) {
      this.tell(`There is no branch from here: ${wordsOf(error)}`);
    } finally {
      this.forking = false;
    }
  }

  /** The turn of a message, if its conversation is the one that is shown. */
  shown({ id, token, session }) {
    return token === this.key?.token && session === this.session ? this.conversation.turn(id) : undefined;
  }

  sent(message) {
    const turn = this.shown(message);
    if (!turn) return;
    if (turn.status === UNSENT) Object.assign(turn, { status: "queued", error: null });
    this.known = true;
    this.list.soon();
    this.touch(turn);
    this.save();
    if (!this.following) this.follow(this.cursor);
  }

  delayed(message, reason) {
    const turn = this.shown(message);
    if (turn?.status !== UNSENT) return;
    turn.error = { message: reason };
    this.touch(turn);
  }

  unsent(message, error) {
    const turn = this.shown(message);
    const key = store.keys().find((each) => each.token === message.token);
    const text = message.parts.find((part) => part.type === "text")?.text ?? "";
    if (turn) {
      Object.assign(turn, { status: "failed", error: { message: wordsOf(error) } });
      this.touch(turn);
      this.takeBack(message);
    } else {
      this.tell(`What you said in another conversation was not sent: ${wordsOf(error)}`);
      if (key && !store.draft(key, message.session)) store.saveDraft(key, message.session, text);
    }
  }

  /** Give what was said back to the field that it came from, unless something else stands there by now. */
  takeBack({ parts }) {
    if (!byId("said").value) this.write(parts.find((part) => part.type === "text")?.text ?? "");
    this.keepDraft();
    if (!this.attachments.parts.length) this.attachments.set(parts.filter((part) => part.type !== "text"));
  }

  write(text) {
    const field = byId("said");
    field.value = text;
    grow(field);
  }

  keepDraft() {
    if (this.key && !this.editing) store.saveDraft(this.key, this.session, byId("said").value);
  }

  async answer(call, result) {
    await clientOf(this.key.token).session(this.session).answer(call, result);
  }

  /** Where the keyboard goes when an answer is given: to what is asked next, else to the composer. */
  onward() {
    const next = [...this.log.querySelectorAll(".ask:not([data-done], [data-sent])")].at(0);
    (next?.querySelector("textarea, input") ?? byId("said")).focus();
  }

  async stop() {
    const button = byId("stop");
    if (button.ariaDisabled === "true") return;
    button.ariaDisabled = "true";
    const messages = this.outbox.of(this.key.token, this.session);
    this.outbox.withdraw(messages);
    for (const message of messages) {
      const turn = this.shown(message);
      Object.assign(turn, { status: "canceled", error: null });
      this.touch(turn);
      this.takeBack(message);
    }
    try {
      if (this.known) await clientOf(this.key.token).session(this.session).stop();
    } catch (error) {
      this.tell(wordsOf(error));
    } finally {
      button.ariaDisabled = null;
    }
  }

  async rename(title) {
    try {
      await this.list.rename(this.session, title);
    } catch (error) {
      this.tell(wordsOf(error));
    }
  }

  async remove() {
    if (!confirm("Delete this conversation? What runs is stopped, and all that was said is removed from the server for good.")) return;
    const { key, session } = this;
    try {
      await this.list.remove(session, key);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) {
        this.tell(wordsOf(error));
        return;
      }
    }
    this.outbox.withdraw(this.outbox.of(key.token, session));
    store.saveDraft(key, session, "");
    if (session === this.session) this.visit("");
    byId("said").focus();
  }

  // ── memory ──

  save() {
    if (!this.key) {
      // What is shown was said with a key that is removed; nothing of it stays.
      store.forgetView();
      return;
    }
    const { turns } = this.conversation;
    store.saveView({ token: this.key.token, session: this.session, known: this.known, cursor: this.cursor, turns: turns.filter((turn) => turn.status !== UNSENT) });
  }

  /** On a phone the conversations lie over the page, until one is picked or the rest is touched. */
  drawer(open = !byId("sessions").classList.contains("open")) {
    const inside = byId("sessions").contains(document.activeElement);
    byId("sessions").classList.toggle("open", open);
    byId("backdrop").hidden = !open;
    byId("open-sessions").setAttribute("aria-expanded", String(open));
    if (open) byId("new-chat").focus();
    else if (inside && byId("open-sessions").offsetParent) byId("open-sessions").focus();
  }

  // ── keys ──

  /** Offer the chat keys, and with an admin key every agent. */
  async offer(keys) {
    const pick = byId("pick-key");
    const chats = keys.filter((key) => key.scopes.includes("chat"));
    const options = chats.map((key) => h("option", { value: `key:${key.token}`, selected: key.token === this.key?.token }, `${key.agent} (${key.owner})`));
    if (!options.length) options.push(h("option", { value: "", disabled: true, selected: true }, "no key yet"));
    pick.replaceChildren(...options);
    const admin = keys.find((key) => key.scopes.includes("admin"));
    if (!admin) return;
    try {
      const { agents } = await ask(admin.token, "GET", "admin/v1/agents");
      const others = agents.filter(({ agent }) => !chats.some((key) => key.agent === agent));
      if (others.length) pick.append(h("optgroup", { label: "Make a key for a day" }, ...others.map(({ agent }) => h("option", { value: `make:${agent}` }, agent))));
    } catch {
      // Without the list there are still the keys.
    }
  }

  async pick(value) {
    if (value.startsWith("key:")) this.use(store.keys().find((key) => key.token === value.slice(4)) ?? null);
    else if (value.startsWith("make:")) await this.onMakeKey(value.slice(5));
  }
}

const titleOf = (turn) => short(wordsIn(turn.said ?? []) || "Conversation", 70);

const wordsOfTurn = ({ said }) => said.filter((part) => part.text).map((part) => part.text).join("\n\n");

/** The words of what was said. */
const wordsIn = (parts) => parts.map((part) => part.text ?? "").join(" ").replace(/\s+/g, " ").trim();

function grow(field) {
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight + 2, 220)}px`;
}
