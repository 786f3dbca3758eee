/** A page with the AI SDK's hook and its own transport, at `/ai-sdk`. Opened by tests/browser/test_ai_sdk.py. */

import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithToolCalls } from "ai";
import { useEffect, useState } from "react";
import { createRoot } from "react-dom/client";

const { key, chat: id, url } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const api = `${url}/ai-sdk/chat`;
const headers = { Authorization: `Bearer ${key}` };

function Talk({ initial }) {
  const { messages, status, error, sendMessage, addToolOutput, regenerate, resumeStream, stop } = useChat({
    id, messages: initial,
    transport: new DefaultChatTransport({ api, headers }),
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
  });
  const [text, setText] = useState("");
  const [resumed, setResumed] = useState(false);
  useEffect(() => {
    resumeStream().finally(() => setResumed(true));
  }, []);
  // The SDK is "ready" before it has asked for the stream, and keeps no result that is added while it reads one.
  const ready = resumed && status === "ready";
  const end = () => {
    fetch(`${api}/${id}/stop`, { method: "POST", headers });
    stop();
  };
  const asked = messages.flatMap((message) => message.parts).filter((part) => part.type.startsWith("tool-") && part.state === "input-available");
  return (
    <section data-status={status === "ready" && !resumed ? "resuming" : status} data-error={error?.message}>
      {messages.map((message) => (
        <p key={message.id} className={message.role}>{message.parts.map((part) => (part.type === "text" ? part.text : null))}</p>
      ))}
      {asked.map((part) => (
        <button key={part.toolCallId} disabled={!ready} onClick={() => addToolOutput({ tool: part.type.slice(5), toolCallId: part.toolCallId, output: "fog" })}>answer</button>
      ))}
      <button onClick={end}>stop</button>
      <button onClick={() => regenerate()}>again</button>
      <button onClick={() => resumeStream()}>resume</button>
      <form onSubmit={(event) => { event.preventDefault(); sendMessage({ text }); setText(""); }}>
        <input value={text} onChange={(event) => setText(event.target.value)} />
      </form>
    </section>
  );
}

function Page() {
  const [initial, setInitial] = useState();
  useEffect(() => {
    fetch(`${api}/${id}/messages`, { headers }).then((answer) => (answer.ok ? answer.json() : [])).then(setInitial);
  }, []);
  return initial && <Talk initial={initial} />;
}

createRoot(document.body.appendChild(document.createElement("main"))).render(<Page />);
