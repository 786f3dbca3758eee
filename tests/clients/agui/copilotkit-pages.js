/** CopilotKit's browser half, straight at a front end. */

import { z } from "zod";

import { headers, until } from "./support.js";

// It asks the runtime only in a browser.
globalThis.window = { location: { origin: "http://localhost" } };
const { CopilotKitCore } = await import("@copilotkit/core");

/** The demo agent at a front end, for a thread. */
export async function coreAt(url, threadId, transport = "rest") {
  const core = new CopilotKitCore({
    runtimeUrl: `${url}/copilotkit`,
    runtimeTransport: transport,
    headers,
    tools: [
      {
        name: "client_function",
        description: "Answers.",
        parameters: z.object({ number: z.number() }),
        handler: async ({ number }) => `answer ${number}`,
      },
    ],
  });
  const errors = [];
  core.subscribe({ onError: ({ error }) => void errors.push(error) });
  const agent = await until(() => core.getAgent("demo"), "the runtime to tell its agents");
  agent.threadId = threadId;
  return { core, agent, errors };
}

export async function ask({ core, agent }, content) {
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
  await core.runAgent({ agent });
}
