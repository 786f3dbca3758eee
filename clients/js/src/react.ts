/** A React hook: a conversation that a component shows. */

import { useMemo, useSyncExternalStore } from "react";

import { Chat, type ChatSnapshot } from "./chat.js";
import type { Session } from "./session.js";

export type { ChatSnapshot };

export interface UseChat extends ChatSnapshot {
  send: Chat["send"];
  answer: Chat["answer"];
  stop: Chat["stop"];
}

const CHATS = new WeakMap<Session, Chat>();

/**
 * A session's turns as they grow, and what can be done. Components that show the same `Session` object share one
 * connection; the last one that is unmounted closes it. Make the client and its sessions outside of components, or with
 * `useMemo`.
 */
export function useChat(session: Session): UseChat {
  const chat = useMemo(() => {
    const known = CHATS.get(session) ?? new Chat(session);
    CHATS.set(session, known);
    return known;
  }, [session]);
  const snapshot = useSyncExternalStore(chat.subscribe, chat.getSnapshot, chat.getSnapshot);
  return useMemo(() => ({ ...snapshot, send: chat.send, answer: chat.answer, stop: chat.stop }), [snapshot, chat]);
}
