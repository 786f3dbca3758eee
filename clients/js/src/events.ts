/** Events as a client gets them. What this version does not know is kept as it came. */

/** Where a response, a message or a part stands. */
export type Status =
  | "created"
  | "queued"
  | "in_progress"
  | "completed"
  | "incomplete"
  | "canceled"
  | "failed"
  | "rejected"
  | (string & {});

/** A response, message or part with one of these says nothing more. */
export const ENDED: ReadonlySet<string> = new Set(["completed", "failed", "canceled", "rejected", "incomplete"]);

/** What a message is. The client answers a `function_call`; a `plugin_call` is a tool that the server runs. */
export type MessageType =
  | "message"
  | "reasoning"
  | "function_call"
  | "function_call_output"
  | "plugin_call"
  | "plugin_call_output"
  | "component_call"
  | "component_call_output"
  | "mcp_list_tools"
  | "mcp_approval_request"
  | "mcp_approval_response"
  | "mcp_call"
  | "mcp_call_output"
  | "error"
  | (string & {});

interface Numbered {
  /** Dense from 0 over the events of a response; messages in an output have none. */
  sequence_number?: number;
  status?: Status;
}

export interface ErrorInfo {
  code: string;
  message: string;
}

/** A content part, or with `delta` a piece to append to one. */
export interface ContentEvent extends Numbered {
  object: "content";
  type: "text" | "data" | "image" | "audio" | "file" | "refusal" | "video" | (string & {});
  index?: number;
  delta?: boolean;
  msg_id?: string;
  text?: string;
  refusal?: string;
  image_url?: string;
  video_url?: string;
  file_url?: string;
  filename?: string;
  format?: string;
  // Structured data, or sound as base64.
  data?: any;
}

export interface MessageEvent extends Numbered {
  object: "message";
  id: string;
  type: MessageType;
  role: "assistant" | "user" | "system" | "tool" | (string & {});
  content?: ContentEvent[] | null;
  code?: string;
  message?: string;
}

/** The state of a turn; the last one has all its output. */
export interface ResponseEvent extends Numbered {
  object: "response";
  id: string;
  session_id?: string;
  created_at?: number;
  completed_at?: number;
  output?: MessageEvent[] | null;
  error?: ErrorInfo | null;
  usage?: { input_tokens?: number; output_tokens?: number; total_tokens?: number; cost_usd?: number } | null;
  metadata?: Record<string, unknown>;
}

/** What a stream brings; tell them apart by `object`. */
export type TurnEvent = ContentEvent | MessageEvent | ResponseEvent;

/** What a turn is called by: the server takes a task's id for its response's. */
export function sameTurn(one: string, other: string): boolean {
  return one.replace(/^response_/, "") === other.replace(/^response_/, "");
}

/** Whether this is the last event of a response. */
export function isEnd(event: TurnEvent, response: string): event is ResponseEvent {
  return event.object === "response" && ENDED.has(event.status ?? "") && sameTurn(event.id, response);
}

/** All text of a message. */
export function textOf(message: MessageEvent): string {
  return (message.content ?? []).map((part) => (part.type === "text" ? (part.text ?? "") : "")).join("");
}

/** Whether a cursor is behind another one. */
export function isAfter(cursor: string, other: string): boolean {
  const [epoch = 0, seq = 0] = cursor.split("-").map(Number);
  const [oldEpoch = 0, oldSeq = 0] = other.split("-").map(Number);
  return epoch > oldEpoch || (epoch === oldEpoch && seq > oldSeq);
}
