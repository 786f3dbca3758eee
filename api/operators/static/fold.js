// Events into turns and messages: plain objects, so that a reload can take them up where they were.

export const ENDED = new Set(["completed", "failed", "canceled", "rejected", "incomplete"]);
/** Said, and not at the server yet. */
export const UNSENT = "unsent";
const GROWING = { text: "text", refusal: "refusal" };

/** A turn as it is shown: `{id, said, status, error, started, sequence, messages: [message]}`. */
export function newTurn(id, said = null) {
  return { id, said, status: "queued", error: null, sequence: -1, messages: [] };
}

/** The conversation of one session. */
export class Conversation {
  constructor(turns = [], cursor = "") {
    this.turns = turns;
    this.cursor = cursor;
    this.messages = new Map();
    for (const turn of turns) for (const message of turn.messages) this.messages.set(message.id, { turn, message });
  }

  get live() {
    return this.turns.filter((turn) => !ENDED.has(turn.status));
  }

  turn(id) {
    return this.turns.find((turn) => turn.id === id);
  }

  /** The turn of an id, made if it is new. */
  begin(id) {
    let turn = this.turn(id);
    if (!turn) {
      turn = newTurn(id);
      // What others began comes before what is not sent yet.
      const first = this.turns.findIndex((each) => each.status === UNSENT);
      this.turns.splice(first < 0 ? this.turns.length : first, 0, turn);
    }
    return turn;
  }

  /** A turn that is not at the server yet. */
  unsent(id, said) {
    const turn = { ...newTurn(id, said), status: UNSENT };
    if (!this.turn(id)) this.turns.push(turn);
    return this.turn(id);
  }

  /** Take the next event; what it touched: `{turn, message}`. */
  take(cursor, event) {
    if (cursor && this.cursor && !isAfter(cursor, this.cursor)) return {};
    this.cursor = cursor || this.cursor;
    if (event.object === "response") return this.response(event);
    if (event.object === "message") return this.header(event);
    if (event.object === "content") return this.content(event);
    return {};
  }

  response(event) {
    const turn = this.begin(event.id);
    turn.status = event.status;
    turn.error = event.error ?? null;
    turn.sequence = event.sequence_number ?? turn.sequence;
    if (ENDED.has(event.status)) for (const whole of event.output ?? []) this.put(turn, whole);
    return { turn };
  }

  header(event) {
    const known = this.messages.get(event.id);
    const turn = known?.turn ?? this.speaker(event.sequence_number);
    if (!turn) return {};
    turn.sequence = event.sequence_number ?? turn.sequence;
    return { turn, message: this.put(turn, event) };
  }

  content(event) {
    const found = this.messages.get(event.msg_id);
    if (!found) return {};
    const { turn, message } = found;
    turn.sequence = event.sequence_number ?? turn.sequence;
    const at = event.index ?? Math.max(0, message.parts.length - (event.delta ? 1 : 0));
    const field = GROWING[event.type];
    const part = message.parts[at];
    if (part && event.delta && field) part[field] = (part[field] ?? "") + (event[field] ?? "");
    else message.parts[at] = partOf(event);
    return { turn, message };
  }

  /** Put a message into its turn, or bring it up to date. */
  put(turn, event) {
    const known = this.messages.get(event.id);
    const message = known?.message ?? { id: event.id, type: event.type, role: event.role, status: "", parts: [], inner: turn.open?.length > 0 };
    message.status = event.status ?? message.status;
    if (Array.isArray(event.content)) message.parts = event.content.map(partOf);
    if (!known) turn.messages.push(message);
    else if (known.turn !== turn) {
      known.turn.messages = known.turn.messages.filter((each) => each !== message);
      turn.messages.push(message);
    }
    this.messages.set(event.id, { turn, message });
    this.dispatches(turn, message);
    return message;
  }

  /** While a sub-agent works, what is said is said by it. */
  dispatches(turn, message) {
    const ids = message.parts.map((part) => part?.data?.dispatchId).filter(Boolean);
    turn.open ??= [];
    if (message.type === "component_call") {
      message.inner = false;
      turn.open = [...new Set([...turn.open, ...ids])];
    } else if (message.type === "component_call_output") {
      message.inner = false;
      turn.open = turn.open.filter((id) => !ids.includes(id));
    }
  }

  /** Whose message begins with this number: numbers of a turn are dense. */
  speaker(sequence) {
    const running = this.turns.filter((turn) => !ENDED.has(turn.status) && turn.status !== "queued" && turn.status !== UNSENT);
    return running.find((turn) => turn.sequence + 1 === sequence) ?? running.at(-1) ?? this.turns.findLast((turn) => turn.status !== UNSENT);
  }

  /** Answers by the call they answer; consents by `consent:` and the call, since the tool's result has its id, too. */
  answers(turn) {
    const found = new Map();
    for (const message of turn.messages) {
      if (!/_output$|_response$/.test(message.type)) continue;
      for (const part of message.parts) {
        const data = part?.data;
        if (data?.approval_request_id) found.set(`consent:${data.approval_request_id}`, data);
        const id = data?.call_id ?? data?.dispatchId;
        if (id) found.set(id, data);
      }
    }
    return found;
  }
}

function partOf(event) {
  const { type, text, data, image_url: image, refusal, file_url: file, filename, video_url: video, format } = event;
  return { type, text, data, image, refusal, file, filename, video, format };
}

function isAfter(cursor, other) {
  const [epoch, seq] = cursor.split("-").map(Number);
  const [oldEpoch, oldSeq] = other.split("-").map(Number);
  return epoch > oldEpoch || (epoch === oldEpoch && seq > oldSeq);
}

export const textOf = (message) => message.parts.filter((part) => part?.type === "text").map((part) => part.text ?? "").join("");

/** What users said, by task, from a session's history. */
export function saidBy(history) {
  const found = new Map();
  for (const each of history) {
    if (each.role !== "user") continue;
    const parts = Array.isArray(each.content) ? each.content : [{ type: "text", message: String(each.content) }];
    found.set(each.taskId, parts.map((part) => (part.type === "imageUrl" ? { type: "image", image: part.message } : { type: "text", text: part.message })));
  }
  return found;
}

/** Turns from the history alone, for a session whose events are no longer kept. */
export function turnsOf(history) {
  const turns = new Map();
  const said = saidBy(history);
  history.forEach((each, at) => {
    if (!turns.has(each.taskId)) turns.set(each.taskId, { ...newTurn(each.taskId, said.get(each.taskId)), status: "completed" });
    const kinds = { text: "message", reasoningContent: "reasoning" };
    const type = kinds[each.type];
    if (each.role === "user" || !type) return;
    turns.get(each.taskId).messages.push({
      id: `history-${at}`, type, role: "assistant", status: "completed", inner: Boolean(each.agentId),
      parts: [{ type: "text", text: String(each.content) }],
    });
  });
  return [...turns.values()];
}
