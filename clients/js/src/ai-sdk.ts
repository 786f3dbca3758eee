/** A transport for the AI SDK's `useChat`: turns that survive reloads, lost connections and front ends. */

import type { ChatTransport, UIMessage, UIMessageChunk } from "ai";

import { argumentsOf, callsIn, dataOf } from "./calls.js";
import type { Client } from "./client.js";
import { ClientError, NotFound, Refused } from "./errors.js";
import { ENDED, isAfter, type ContentEvent, type MessageEvent, type ResponseEvent, type TurnEvent } from "./events.js";
import type { Following } from "./following.js";
import type { SaidPart, Session } from "./session.js";
import { dispatches } from "./speech.js";

export interface TransportOptions {
  client: Client;
  /** Whose conversations these are, for keys that serve several users. */
  user?: string;
}

type SendOptions = Parameters<ChatTransport<UIMessage>["sendMessages"]>[0];
type ReconnectOptions = Parameters<ChatTransport<UIMessage>["reconnectToStream"]>[0];

/**
 * `useChat({ transport: new TurnstreamChatTransport({ client }) })`
 *
 * 1. The chat's id is the session's, an assistant message's id is its turn's.
 * 2. A stream that is cut goes on by itself; after a reload `resume: true` finds the turn that runs.
 * 3. Outputs of client tools and decisions on approvals answer the agent's calls; the turn goes on in the same message.
 * 4. `useChat`'s own `stop()` leaves the stream; `stop` here ends the turn.
 */
export class TurnstreamChatTransport<UI_MESSAGE extends UIMessage = UIMessage> implements ChatTransport<UI_MESSAGE> {
  /** Reconnecting tells the turn from its beginning. */
  readonly resumeStreamIsReplay = true;

  private readonly client: Client;
  private readonly user: string | undefined;

  constructor({ client, user }: TransportOptions) {
    this.client = client;
    this.user = user;
  }

  /** @throws ClientError: what is asked cannot be done, with what to do instead */
  async sendMessages(options: Pick<SendOptions, "trigger" | "chatId" | "abortSignal" | "body"> & { messages: UI_MESSAGE[] }): Promise<ReadableStream<UIMessageChunk>> {
    const { trigger, chatId, messages, abortSignal, body } = options;
    if (trigger === "regenerate-message") {
      throw new ClientError("The server keeps the conversation and cannot say an answer anew: send the message again.");
    }
    const last = messages.at(-1);
    if (!last) throw new ClientError("messages = []: there is nothing to send");
    const session = this.session(chatId);
    if (last.role === "assistant") {
      const answers = answersOf(last);
      if (!answers.length) throw new ClientError(`The message ${last.id} answers no call: add a tool's output, or a user's message.`);
      const following = session.resumeWith(answers);
      return streamOf(following, following, last.id, abortSignal, toolsOf(last));
    }
    const id = `response_${last.id}`;
    const following = session.part(id, saidIn(last), body as Record<string, unknown> | undefined);
    return streamOf(following, following, id, abortSignal);
  }

  /** The turn that runs or waits for this client, from its beginning; null when there is none. */
  async reconnectToStream(options: Pick<ReconnectOptions, "chatId" | "abortSignal">): Promise<ReadableStream<UIMessageChunk> | null> {
    const session = this.session(options.chatId);
    const newest = session.part(undefined);
    options.abortSignal?.addEventListener("abort", () => newest.close(), { once: true });
    try {
      const begun = await newest.next();
      if (begun.done || begun.value.object !== "response") return null;
      const [turn = "", segment] = begun.value.id.split("~");
      const events = segment ? behind(session.watchTurn(turn), newest) : newest;
      return streamOf(events, newest, turn, options.abortSignal);
    } catch (error) {
      if (error instanceof NotFound) return null;
      throw error;
    }
  }

  /**
   * End what runs in a chat; when this resolves it has ended.
   *
   * @throws NotFound: the chat is unknown
   */
  async stop(chatId: string): Promise<void> {
    await this.session(chatId).stop();
  }

  private session(chatId: string): Session {
    return this.client.session(chatId, this.user === undefined ? {} : { user: this.user });
  }
}

/** The events of a turn's newest part, behind all that came before it, the client's answers too. */
async function* behind(whole: Following, newest: Following): AsyncGenerator<TurnEvent, void> {
  let first = await newest.next();
  while (!first.done && first.value.object === "response" && !ENDED.has(first.value.status ?? "")) first = await newest.next();
  if (first.done) return;
  for await (const event of whole) {
    if (!isAfter(newest.cursor, whole.cursor)) break;
    yield event;
  }
  yield first.value;
  yield* newest;
}

function streamOf(
  events: AsyncIterableIterator<TurnEvent> | AsyncGenerator<TurnEvent, void>,
  following: Following,
  id: string,
  signal: AbortSignal | undefined,
  tools: Map<string, Flags> = new Map(),
): ReadableStream<UIMessageChunk> {
  const encoder = new ChunkEncoder(tools);
  let begun = false;
  const waiting: UIMessageChunk[] = [];
  const close = () => following.close();
  signal?.addEventListener("abort", close, { once: true });
  return new ReadableStream<UIMessageChunk>({
    async pull(controller) {
      try {
        while (!waiting.length) {
          signal?.throwIfAborted();
          const result = await events.next();
          // Not sooner: what is refused leaves no message.
          if (!begun) waiting.push({ type: "start", messageId: id }, { type: "start-step" });
          begun = true;
          if (!result.done) waiting.push(...encoder.feed(result.value));
          else {
            signal?.throwIfAborted();
            signal?.removeEventListener("abort", close);
            controller.close();
            return;
          }
        }
        for (const chunk of waiting.splice(0)) controller.enqueue(chunk);
      } catch (error) {
        close();
        controller.error(explained(error));
      }
    },
    cancel: close,
  });
}

/** Why a request was refused, in terms of the page. */
function explained(error: unknown): unknown {
  if (!(error instanceof Refused) || error.code !== "idempotency_mismatch") return error;
  return new ClientError("The server keeps the conversation and cannot take a message back: send the edited text as a further message.");
}

/** What a user says. */
function saidIn(message: UIMessage): SaidPart[] {
  const said: SaidPart[] = [];
  for (const part of message.parts) {
    if (part.type === "text") said.push({ type: "text", text: part.text });
    else if (part.type === "file" && part.mediaType.startsWith("image/")) said.push({ type: "image", image_url: part.url });
    else if (part.type === "file") said.push({ type: "file", file_url: part.url, ...(part.filename ? { filename: part.filename } : {}) });
  }
  return said;
}

/** The answers to the calls of a message's last step. */
function answersOf(message: UIMessage): unknown[] {
  const step = message.parts.slice(message.parts.findLastIndex((part) => part.type === "step-start") + 1);
  const answers: unknown[] = [];
  const answer = (type: string, role: string, data: Record<string, unknown>) => {
    answers.push({ type, role, content: [{ type: "data", data }] });
  };
  for (const each of step as any[]) {
    if (!each.toolCallId || each.providerExecuted) continue;
    if (each.state === "output-available") answer("function_call_output", "tool", { call_id: each.toolCallId, output: outputText(each.output) });
    else if (each.state === "output-error") answer("function_call_output", "tool", { call_id: each.toolCallId, output: JSON.stringify({ error: each.errorText }) });
    else if (each.state === "approval-responded") {
      const { id, approved, reason } = each.approval;
      answer("mcp_approval_response", "user", { approval_request_id: id, approve: approved === true, ...(reason ? { reason } : {}) });
    }
  }
  return answers;
}

const outputText = (output: unknown) => (typeof output === "string" ? output : JSON.stringify(output ?? null));

/** How a tool is told: the flags of its input and of its output must be the same. */
interface Flags {
  dynamic?: true;
  providerExecuted?: true;
}

function toolsOf(message: UIMessage): Map<string, Flags> {
  const tools = new Map<string, Flags>();
  for (const part of message.parts as any[]) {
    if (!part.toolCallId) continue;
    tools.set(part.toolCallId, {
      ...(part.type === "dynamic-tool" ? { dynamic: true } : {}),
      ...(part.providerExecuted ? { providerExecuted: true } : {}),
    });
  }
  return tools;
}

const SERVER: Flags = { dynamic: true, providerExecuted: true };

/** One part of a turn as chunks; one object for each stream, fed with the events in order. */
class ChunkEncoder {
  /** Messages whose parts grow, and how. */
  private readonly speaking = new Map<string, "text" | "reasoning">();
  /** Parts that were begun: how much of each was said; closed ones. */
  private readonly said = new Map<string, number>();
  private readonly closed = new Set<string>();
  private readonly open = new Set<string>();
  private readonly dispatched = new Map<string, string>();
  private answered = false;

  /** @param tools the tools that the message has already */
  constructor(private readonly tools: Map<string, Flags>) {}

  feed(event: TurnEvent): UIMessageChunk[] {
    if (event.object === "response") return ENDED.has(event.status ?? "") ? this.end(event) : [];
    if (event.object === "content") return this.content(event);
    if (event.object !== "message") return [];
    return event.status === "completed" || event.status === "incomplete" ? this.whole(event) : this.header(event);
  }

  private header(message: MessageEvent): UIMessageChunk[] {
    if (message.type === "reasoning") this.speaking.set(message.id, "reasoning");
    else if (message.type === "message" && message.role === "assistant" && !this.dispatched.size) this.speaking.set(message.id, "text");
    return [];
  }

  private content(part: ContentEvent): UIMessageChunk[] {
    const message = part.msg_id ?? "";
    const kind = this.speaking.get(message);
    if (!kind || part.type !== "text" || part.index === undefined) return [];
    const id = `${message}:${part.index}`;
    const text = part.text ?? "";
    return part.delta ? this.say(kind, id, text) : [...this.say(kind, id, text.slice(this.said.get(id) ?? 0)), ...this.close(kind, id)];
  }

  /** A message that is complete: what of it was not told yet. */
  private whole(message: MessageEvent): UIMessageChunk[] {
    if (!this.speaking.has(message.id)) this.header(message);
    const kind = this.speaking.get(message.id);
    const chunks: UIMessageChunk[] = [];
    if (kind) {
      (message.content ?? []).forEach((part, at) => chunks.push(...this.part(kind, message.id, part, part.index ?? at)));
      const begun = [...this.said.keys()].filter((id) => id.startsWith(`${message.id}:`));
      return [...chunks, ...begun.flatMap((id) => this.close(kind, id))];
    }
    if (message.type === "message" && message.role === "assistant") return this.subagent(message);
    if (message.type === "error") return [{ type: "data-error", id: message.id, data: { code: message.code, message: message.message } }];
    return this.call(message);
  }

  private part(kind: "text" | "reasoning", message: string, part: ContentEvent, at: number): UIMessageChunk[] {
    const id = `${message}:${at}`;
    const text = part.type === "refusal" ? part.refusal : part.text;
    if (text !== undefined) return [...this.say(kind, id, text.slice(this.said.get(id) ?? 0)), ...this.close(kind, id)];
    const url = part.image_url ?? part.file_url ?? part.video_url;
    if (url) return [...this.step(), { type: "file", url, mediaType: mediaType(url, part.type) }];
    if (part.type === "data") return [...this.step(), { type: "data-output", id, data: part.data }];
    return [];
  }

  private say(kind: "text" | "reasoning", id: string, delta: string): UIMessageChunk[] {
    if (!delta || this.closed.has(id)) return [];
    const begun = this.said.has(id);
    this.said.set(id, (this.said.get(id) ?? 0) + delta.length);
    return [...(begun ? [] : [...this.step(), { type: `${kind}-start` as const, id }]), { type: `${kind}-delta`, id, delta }];
  }

  private close(kind: "text" | "reasoning", id: string): UIMessageChunk[] {
    if (!this.said.has(id) || this.closed.has(id)) return [];
    this.closed.add(id);
    return [{ type: `${kind}-end`, id }];
  }

  /** What the model says after the results of its calls is a further step. */
  private step(): UIMessageChunk[] {
    if (!this.answered) return [];
    this.answered = false;
    return [{ type: "finish-step" }, { type: "start-step" }];
  }

  private subagent(message: MessageEvent): UIMessageChunk[] {
    const text = (message.content ?? []).map((part) => part.text ?? "").join("");
    const agent = [...this.dispatched.values()].at(-1) ?? "";
    return text ? [{ type: "data-subagent", id: message.id, data: { agent, text } }] : [];
  }

  private call(message: MessageEvent): UIMessageChunk[] {
    const [call] = callsIn(message);
    if (call) {
      this.open.add(call.id);
      const flags: Flags = call.kind === "approval" ? { dynamic: true } : {};
      const asked = this.input(call.id, call.name, call.arguments, flags);
      return call.kind === "approval" ? [...asked, { type: "tool-approval-request", approvalId: call.id, toolCallId: call.id }] : asked;
    }
    const [data = {}] = dataOf(message);
    const id = String(data["call_id"] ?? dispatches(message)[0] ?? data["approval_request_id"] ?? data["id"] ?? "");
    switch (message.type) {
      case "plugin_call":
      case "mcp_call":
        return this.input(id, String(data["name"] ?? "tool"), argumentsOf(data["arguments"]), SERVER);
      case "component_call": {
        const name = String(data["name"] ?? data["agentId"] ?? "agent");
        if (!id) return [];
        this.dispatched.set(id, name);
        return this.input(id, name, { content: data["content"] ?? null }, SERVER);
      }
      case "mcp_approval_response":
        this.open.delete(id);
        return [];
      case "component_call_output":
        this.dispatched.delete(id);
        return this.output(id, data, data["content"] ?? data["output"] ?? null);
      case "function_call_output":
        this.open.delete(id);
        return this.output(id, data, data["output"]);
      case "plugin_call_output":
      case "mcp_call_output":
        return this.output(id, data, data["output"]);
      default:
        return [];
    }
  }

  private input(toolCallId: string, toolName: string, input: unknown, flags: Flags): UIMessageChunk[] {
    if (this.tools.has(toolCallId)) return [];
    this.tools.set(toolCallId, flags);
    const told = { toolCallId, toolName, ...flags };
    return [...this.step(), { type: "tool-input-start", ...told }, { type: "tool-input-available", ...told, input }];
  }

  private output(toolCallId: string, data: Record<string, any>, output: unknown): UIMessageChunk[] {
    const flags = this.tools.get(toolCallId);
    if (!flags) return [];
    this.answered = true;
    if (data["error"]) return [{ type: "tool-output-error", toolCallId, errorText: String(data["error"]), ...flags }];
    return [{ type: "tool-output-available", toolCallId, output: output ?? null, ...flags }];
  }

  private end(response: ResponseEvent): UIMessageChunk[] {
    const messageMetadata = response.usage ? { usage: response.usage } : undefined;
    if (response.status === "failed" || response.status === "rejected") {
      return [{ type: "error", errorText: response.error?.message ?? "The turn failed." }];
    }
    if (response.status === "canceled") return [{ type: "abort" }, { type: "finish" }];
    const finishReason = this.open.size ? "tool-calls" : "stop";
    return [{ type: "finish-step" }, { type: "finish", finishReason, ...(messageMetadata ? { messageMetadata } : {}) }];
  }
}

function mediaType(url: string, type: string): string {
  return /^data:([^;,]+)/.exec(url)?.[1] ?? (type === "file" ? "application/octet-stream" : `${type}/*`);
}
