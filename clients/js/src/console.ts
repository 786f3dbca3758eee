/** What the console uses of the client; `npm run console` makes one file of it, which front ends serve. */

export { Client } from "./client.js";
export { answersIn, Conversation, saidBy, textOf, turnsOf, UNSENT } from "./conversation.js";
export { NotFound, Refused, Unavailable } from "./errors.js";
export { ENDED } from "./events.js";
export { newId } from "./session.js";
