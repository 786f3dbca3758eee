/** What users write, checked by the compiler; nothing runs. */

import { useChat as useAiChat } from "@ai-sdk/react";
import type { UIMessage } from "ai";

import { Client, FunctionError, Gone, type Approval, type Call, type ConnectionNews, type ResponseEvent, type TurnEvent } from "@turnstream/client";
import { TurnstreamChatTransport } from "@turnstream/client/ai-sdk";
import { useChat } from "@turnstream/client/react";

const client = new Client({ url: "https://agents.example", key: "sk-…", patience: 1000, backoff: { first: 10 }, onConnection: (news: ConnectionNews) => console.log(news) })
  .function("weather", async ({ city }: { city: string }, call: Call) => ({ city, asked: call.name }))
  .otherFunctions((call) => Promise.reject(new FunctionError(call.id)))
  .approval((approval: Approval) => ({ approve: approval.name === "read" }));

type Mine = UIMessage<{ usage?: { total_tokens: number } }>;

export async function talk(): Promise<ResponseEvent> {
  const session = client.session("s1", { user: "u1" });
  const reply = session.chat(["look", { type: "image", image_url: "https://example.com/cat.png" }], { settings: { temperature: 0 } });
  for await (const event of reply) {
    const each: TurnEvent = event;
    if (each.object === "message") console.log(each.role, each.content?.[0]?.text);
    else if (each.object === "content") console.log(each.msg_id, each.delta);
    else console.log(each.output?.length, each.usage?.total_tokens);
  }
  try {
    for await (const event of session.watch({ cursor: reply.cursor })) if (event.object === "response") break;
  } catch (error) {
    if (error instanceof Gone) console.log(error.status, error.reason);
  }
  return reply.finished();
}

export function Talk() {
  const { turns, calls, send, answer, stop } = useChat(client.session("s1"));
  const { messages } = useAiChat<Mine>({ transport: new TurnstreamChatTransport<Mine>({ client, user: "u1" }), resume: true });
  return (
    <main onClick={() => void stop()}>
      {turns.map((turn) => turn.messages.map((message) => <p key={message.id}>{message.parts.map((part) => part.text)}</p>))}
      {calls.map((call) => <button key={call.id} onClick={() => void answer(call, call.kind === "approval" ? { approve: true } : "fog")} />)}
      <button onClick={() => void send("hello")}>{messages.at(-1)?.metadata?.usage?.total_tokens}</button>
    </main>
  );
}
