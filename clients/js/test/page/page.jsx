/** A page with both hooks: ours, and the AI SDK's over our transport. Opened by tests/browser/test_hooks.py. */

import { useChat as useAiChat } from "@ai-sdk/react";
import { useMemo, useState } from "react";
import { createRoot } from "react-dom/client";

import { Client } from "@turnstream/client";
import { TurnstreamChatTransport } from "@turnstream/client/ai-sdk";
import { useChat } from "@turnstream/client/react";

const { key, session: id } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const client = new Client({ url: location.origin, key, backoff: { first: 10, most: 100 } });
const session = client.session(id);
const transport = new TurnstreamChatTransport({ client });

function Ours() {
  const { turns, working, calls, connection, send, answer, stop } = useChat(session);
  const said = (turn) => turn.said?.map((part) => part.text).join("");
  return (
    <section id="ours" data-connection={connection} data-working={working}>
      {turns.map((turn) => (
        <article key={turn.id} data-status={turn.status}>
          <h2>{said(turn)}</h2>
          {turn.messages.map((message) => <p key={message.id}>{message.parts.map((part) => part?.text)}</p>)}
        </article>
      ))}
      {calls.map((call) => <button key={call.id} onClick={() => answer(call, "fog")}>answer {call.name}</button>)}
      {working && <button onClick={() => stop()}>stop</button>}
      <Composer send={(text) => send(text)} />
    </section>
  );
}

function Theirs() {
  const chat = useAiChat({ id: `${id}-ai`, transport, resume: true });
  const text = (message) => message.parts.map((part) => (part.type === "text" ? part.text : "")).join("");
  return (
    <section id="theirs" data-status={chat.status}>
      {chat.messages.map((message) => <p key={message.id} className={message.role}>{text(message)}</p>)}
      <Composer send={(said) => chat.sendMessage({ text: said })} />
    </section>
  );
}

function Composer({ send }) {
  const [text, setText] = useState("");
  return useMemo(() => (
    <form onSubmit={(event) => { event.preventDefault(); send(text); setText(""); }}>
      <input value={text} onChange={(event) => setText(event.target.value)} />
    </form>
  ), [text, send]);
}

createRoot(document.body.appendChild(document.createElement("main"))).render(<><Ours /><Theirs /></>);
