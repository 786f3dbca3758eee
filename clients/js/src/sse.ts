/** Server-sent events, read as the specification says, whatever a proxy made of the line ends. */

export interface Frame {
  id: string;
  data: string;
}

/** The frames of a body that hold something; comments and a torn last frame are left out. */
export async function* frames(body: ReadableStream<Uint8Array>, heard: () => void = () => {}): AsyncGenerator<Frame, void> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let id = "";
  let data: string[] = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      const text = rest + decoder.decode(value, { stream: true });
      // What was looked through before has no line end, but perhaps half of one.
      const lineEnd = /\r\n|\n|\r(?!$)/g;
      lineEnd.lastIndex = Math.max(0, rest.length - 1);
      let from = 0;
      for (let found = lineEnd.exec(text); found; found = lineEnd.exec(text)) {
        const line = text.slice(from, found.index);
        from = lineEnd.lastIndex;
        if (line === "") {
          if (data.length) yield { id, data: data.join("\n") };
          id = "";
          data = [];
          continue;
        }
        const colon = line.indexOf(":");
        const field = colon < 0 ? line : line.slice(0, colon);
        const content = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
        if (field === "data") data.push(content);
        else if (field === "id") id = content;
      }
      rest = text.slice(from);
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
