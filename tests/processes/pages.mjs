/** Two pages at one session, with the clients that they have: the AI SDK's, and AG-UI's. What they show, as lines of JSON. */

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

/** `{urls: {aiSdk, agUi}, key, session, packages: {aiSdk, agUi}}`, from tests/processes/test_six_clients.py. */
const given = JSON.parse(process.env.TURNSTREAM_TEST);
const headers = { Authorization: `Bearer ${given.key}` };

const load = (folder, name) => import(pathToFileURL(createRequire(`${folder}/package.json`).resolve(name)));
const show = (client, line) => console.log(JSON.stringify({ client, ...line }));

/** How many texts have begun; shown when there is another one. */
function counting(client) {
  let most = 0;
  return (texts) => {
    if (texts.length > most && texts.at(-1)) {
      most = texts.length;
      show(client, { begun: most });
    }
  };
}

async function aiSdk() {
  const { DefaultChatTransport, readUIMessageStream } = await load(given.packages.aiSdk, "ai");
  const transport = new DefaultChatTransport({ api: `${given.urls.aiSdk}/ai-sdk/chat`, headers });
  const [told, shown] = (await transport.reconnectToStream({ chatId: given.session })).tee();
  const begun = counting("ai-sdk");
  let texts = [];
  const reading = (async () => {
    for await (const message of readUIMessageStream({ stream: shown })) {
      texts = message.parts.filter((part) => part.type === "text").map((part) => part.text);
      begun(texts);
    }
  })();
  const events = [];
  for await (const chunk of told) events.push(chunk);
  await reading;
  show("ai-sdk", { texts, events });
}

async function agUi() {
  const { HttpAgent, runHttpRequest, transformHttpEventStream } = await load(given.packages.agUi, "@ag-ui/client");
  class Agent extends HttpAgent {
    connect(input) {
      const init = this.requestInit(input);
      return transformHttpEventStream(runHttpRequest(() => fetch(`${this.url}/connect`, init)));
    }
  }
  const agent = new Agent({ url: `${given.urls.agUi}/ag-ui`, headers, threadId: given.session });
  const begun = counting("ag-ui");
  const events = [];
  const texts = () => agent.messages.filter((message) => message.role === "assistant").map((message) => message.content);
  await agent.connectAgent({}, { onEvent: ({ event }) => void events.push(event), onMessagesChanged: () => begun(texts()) });
  show("ag-ui", { texts: texts(), events });
}

await Promise.all([aiSdk(), agUi()]);
