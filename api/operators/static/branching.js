// Conversations that begin with what was said in another one, up to the end of a turn.

import { newId, NotFound } from "./client.js";
import { h } from "./dom.js";
import { insist } from "./server.js";

/**
 * The session that goes on from the end of a turn.
 *
 * A branch has none of the turns that it began with: they stay where they were said, which is asked then.
 *
 * @param {(session: string) => Promise<{forked_from?: {session: string}}>} about what is known of a session
 */
export async function forkAt(key, session, turn, about) {
  const task = turn.id.replace(/^response_/, "");
  for (let source = session; ;) {
    try {
      const made = await fork(key, source, task);
      return made.sessionId;
    } catch (error) {
      if (!(error instanceof NotFound)) throw error;
      const origin = (await about(source)).forked_from;
      if (!origin) throw error;
      source = origin.session;
    }
  }
}

/** With a key of its own, so that a repeat finds the same session. */
const fork = (key, session, task) => insist(key.token, "POST", "liteAgent/v1/initSession", { query: { forkOf: session, forkTask: task }, headers: { "Idempotency-Key": newId() } });

/**
 * After which turns of a conversation others go on otherwise, and which: the one where the turn was said, then its branches by age.
 *
 * @param {string} session the one that is shown
 * @param {string[]} tasks its turns, in order; those of before it branched off, too
 * @param {Map<string, {forked_from?: {session: string, task: string}, created_at?: number}>} rows what is known of all
 * @returns {{task: string, at: number, sessions: string[]}[]} `at`: which of them is shown
 */
export function partings(session, tasks, rows) {
  const branches = new Map();
  for (const [name, { forked_from: from, created_at: created = 0 }] of rows) {
    if (!from) continue;
    const place = `${from.session} ${from.task}`;
    branches.set(place, [...(branches.get(place) ?? []), { name, created }]);
  }
  const found = [];
  let shown = session;
  for (const task of [...tasks].reverse()) {
    const origin = rows.get(shown)?.forked_from;
    const source = origin?.task === task ? origin.session : shown;
    const others = (branches.get(`${source} ${task}`) ?? []).sort((one, other) => one.created - other.created);
    const sessions = [source, ...others.map(({ name }) => name)].filter((name) => rows.has(name) || name === shown);
    if (sessions.length > 1) found.push({ task, at: sessions.indexOf(shown), sessions });
    shown = source;
  }
  return found.reverse();
}

/** ‹ 2/3 ›: leads to the branches beside the one that is shown. */
export function branchSwitch({ at, sessions }, titleOf, go) {
  const step = (by, sign, name) => {
    const session = sessions[at + by];
    const told = session ? `${name} branch, ${at + by + 1} of ${sessions.length}: ${titleOf(session)}` : `No ${name.toLowerCase()} branch`;
    return h("button", { type: "button", class: "icon", "aria-label": told, title: told, disabled: !session, onclick: () => go(session, by) }, sign);
  };
  return h("div", { class: "branches", role: "group", "aria-label": "Branches from here" },
    step(-1, "‹", "Previous"), h("span", { "aria-hidden": "true" }, `${at + 1}/${sessions.length}`), h("span", { class: "hidden-text" }, `Branch ${at + 1} of ${sessions.length}`), step(1, "›", "Next"));
}
