/**
 * What can go wrong for a client.
 *
 *     ClientError
 *     ├── Refused                 the request is at fault; the same again would be refused again
 *     │   ├── InvalidRequest      400, 413, 422: a parameter or the body
 *     │   ├── KeyRefused          401, 403: the API key
 *     │   ├── NotFound            404: the session, the turn or the call
 *     │   ├── Conflict            409: the session is busy, or the call's turn has ended
 *     │   └── Gone                410: what was asked for is no more, or the call's deadline has passed
 *     ├── Unavailable             no front end answered, or all said "later", for as long as was agreed
 *     ├── BadAnswer               what answered does not speak Turnstream's protocol
 *     ├── UnansweredCall          the agent calls a function, or asks for approval, and no handler is registered
 *     └── TurnError               the turn ended otherwise than by an answer
 *         ├── TurnFailed          the agent failed
 *         └── TurnCanceled        somebody stopped it
 *
 * The text of each says what was wrong, where, and what to do. It never holds the API key.
 */

import type { ResponseEvent } from "./events.js";

/** Base of all errors of the client. */
export class ClientError extends Error {
  override name = "ClientError";
}

/** The server refused a request. */
export class Refused extends ClientError {
  override name = "Refused";

  /**
   * @param status the HTTP status
   * @param code the server's name or number for the error; empty when it gave none
   * @param reason the server's own text
   * @param where the request: method, path
   */
  constructor(
    readonly status: number,
    readonly code: string | number,
    readonly reason: string,
    readonly where: string,
    advice = "",
  ) {
    super([`${reason} (${where}: ${status})`, advice].filter(Boolean).join(" "));
  }
}

/** A parameter or the body is not valid; the text names the field. */
export class InvalidRequest extends Refused {
  override name = "InvalidRequest";
}

/** The API key is malformed, unknown, expired, or not for this. */
export class KeyRefused extends Refused {
  override name = "KeyRefused";

  constructor(status: number, code: string | number, reason: string, where: string) {
    super(status, code, reason, where, "Give the client a key that may do this; operators make one with `turnstream keys create`.");
  }
}

/** There is no such session, turn or call (any more). */
export class NotFound extends Refused {
  override name = "NotFound";
}

/** The session is busy with another turn, or the turn of the call has ended. */
export class Conflict extends Refused {
  override name = "Conflict";
}

/** The session was cleared since the cursor, its broker lost what followed, or the call's deadline has passed. */
export class Gone extends Refused {
  override name = "Gone";
}

/** No front end could serve the request for as long as the client's `patience`. */
export class Unavailable extends ClientError {
  override name = "Unavailable";

  /** @param where the request: method, path */
  constructor(
    readonly reason: string,
    readonly where: string,
  ) {
    super(
      `${reason} (${where}). The turn goes on without us, if it was accepted: follow it with the same id when the server is back.`,
    );
  }
}

/** What answered is not a Turnstream front end, or a proxy changed its answer. */
export class BadAnswer extends ClientError {
  override name = "BadAnswer";

  /** @param where the request: method, path */
  constructor(
    readonly reason: string,
    readonly where: string,
  ) {
    super(`${reason} (${where}). Check the URL: it must be the front end's, or that of a proxy before it.`);
  }
}

/** The agent waits for a function that is not registered, or for an approval that no handler decides. */
export class UnansweredCall extends ClientError {
  override name = "UnansweredCall";

  /** @param call the function, or the tool that needs approval */
  constructor(
    readonly call: string,
    approval: boolean,
  ) {
    const text = approval
      ? `The agent asks for approval of "${call}", and no handler is registered: add one with client.approval(…)`
      : `The agent calls "${call}", which is not registered: add it with client.function("${call}", …), or one for all others with client.otherFunctions(…)`;
    super(`${text}; or iterate over the reply's events, and answer with reply.answer(…).`);
  }
}

/** The turn ended without an answer. */
export class TurnError extends ClientError {
  override name = "TurnError";

  /** @param response the terminal event, with all output up to the end */
  constructor(
    text: string,
    readonly response: ResponseEvent,
  ) {
    super(text);
  }
}

/** The agent failed; `response.error` says why. */
export class TurnFailed extends TurnError {
  override name = "TurnFailed";

  constructor(response: ResponseEvent) {
    const { error } = response;
    const why = error ? `${error.message} (${error.code})` : "the server did not say why";
    super(`The turn ${response.id} failed: ${why}`, response);
  }
}

/** The turn was stopped: by this client, by another one, or by an operator. */
export class TurnCanceled extends TurnError {
  override name = "TurnCanceled";

  constructor(response: ResponseEvent) {
    super(`The turn ${response.id} was stopped before its end.`, response);
  }
}

const BY_STATUS: Record<number, new (status: number, code: string | number, reason: string, where: string) => Refused> = {
  400: InvalidRequest,
  401: KeyRefused,
  403: KeyRefused,
  404: NotFound,
  409: Conflict,
  410: Gone,
  413: InvalidRequest,
  422: InvalidRequest,
};

/** The error of an HTTP status. */
export function refusal(status: number, code: string | number, reason: string, where: string): Refused {
  return new (BY_STATUS[status] ?? Refused)(status, code, reason, where);
}
