/** Chats with Turnstream's agents over HTTP, and keeps its turns through every interruption. */

export { FunctionError, type Approval, type ApprovalHandler, type Call, type ClientFunction, type Consent, type OtherFunctions } from "./calls.js";
export { Chat, type ChatSnapshot } from "./chat.js";
export { Client, type ClientOptions, type Identity } from "./client.js";
export type { Asked } from "./connection.js";
export {
  answersIn,
  Conversation,
  newTurn,
  saidBy,
  textOf,
  turnsOf,
  UNSENT,
  type Part,
  type Remembered,
  type Touched,
  type Turn,
  type TurnMessage,
} from "./conversation.js";
export {
  BadAnswer,
  ClientError,
  Conflict,
  Gone,
  InvalidRequest,
  KeyRefused,
  NotFound,
  Refused,
  TurnCanceled,
  TurnError,
  TurnFailed,
  Unavailable,
  UnansweredCall,
} from "./errors.js";
export { ENDED, type ContentEvent, type ErrorInfo, type MessageEvent, type MessageType, type ResponseEvent, type Status, type TurnEvent } from "./events.js";
export { Following, type ConnectionState, type FollowOptions } from "./following.js";
export { Reply } from "./reply.js";
export type { Backoff, ConnectionNews } from "./retrying.js";
export { Session, type ChatOptions, type Said, type SaidPart, type SubmitOptions } from "./session.js";
export { Speech, type Piece, type Voice } from "./speech.js";
