// Conversations that begin with what was said in another one, up to the end of a turn.

import { newId, NotFound } from "./client.js";
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
