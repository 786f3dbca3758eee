// What is attached to a message before it is sent: pictures, PDFs, whatever the agent takes.

import { byId, h } from "./dom.js";
import { picture } from "./pictures.js";

// What the rest of a request takes.
const ENVELOPE = 4096;

/** What may be attached, by the type of its part, and how many of it are called. */
export const KINDS = { image: "images", audio: "sound", video: "films", file: "files" };

export class Attachments {
  /** @param {(text: string) => void} onRefused why a file is not attached */
  constructor(onRefused) {
    this.onRefused = onRefused;
    this.list = byId("thumbs");
    this.parts = [];
    /** All that was added until now is among the parts. */
    this.read = Promise.resolve();
    /** Bytes that a message may have; what is not known is the server's to refuse. */
    this.most = Infinity;
    this.kinds = Object.keys(KINDS);
  }

  /** Offer these kinds alone: the agent takes no others. */
  take(kinds) {
    this.kinds = kinds;
    const field = byId("attach");
    field.accept = kinds.includes("file") ? "" : kinds.map((kind) => `${kind}/*`).join(",");
    field.disabled = !kinds.length;
    field.parentElement.hidden = !kinds.length;
  }

  /** Files are read one after the other, whichever way they come. */
  add(files) {
    // A copy: the list is emptied with the field that it came from.
    const given = [...(files ?? [])];
    this.read = this.read.then(() => this.addAll(given));
  }

  async addAll(files) {
    for (const file of files) {
      const room = this.most - ENVELOPE - this.parts.reduce((sum, part) => sum + sizeOf(part), 0);
      const kind = kindOf(file);
      if (!this.kinds.includes(kind)) this.onRefused(`${file.name} is not attached: this agent takes ${this.kinds.length ? `${this.kinds.map((each) => KINDS[each]).join(", ")} and ` : "nothing but "}text, no ${KINDS[kind]}.`);
      else if (!file.size) this.onRefused(`${file.name} is empty, or a folder: it is not attached.`);
      // Base64 takes four characters for three bytes.
      else if (Math.ceil(file.size / 3) * 4 > room) this.onRefused(`${file.name} is too large: a message to this agent may have ${words(this.most)} with all that is attached. It is not attached.`);
      else {
        const data = await dataUrl(file).catch(() => null);
        if (data) this.set([...this.parts, partOf(file, data)]);
        else this.onRefused(`${file.name} cannot be read: it is not attached.`);
      }
    }
  }

  set(parts) {
    this.parts = parts;
    this.list.hidden = !parts.length;
    this.list.replaceChildren(...parts.map((part, at) => h("div", { class: "thumb" }, attached(part),
      h("button", { type: "button", class: "quiet", "aria-label": `Remove ${part.type === "image" ? "image" : part.filename} ${at + 1}`, onclick: () => this.set(parts.filter((_, each) => each !== at)) }, "×"))));
  }
}

/** How an attachment looks that its user sees. */
export const attached = (part) => (part.type === "image" ? picture(part.image) : h("span", { class: "attached" }, part.filename ?? "File"));

/** A part as the server takes it. */
export function sentPart(part) {
  if (part.type === "image") return { type: "image", image_url: part.image };
  if (part.type === "audio") return { type: "audio", data: part.data, format: part.format };
  if (part.type === "video") return { type: "video", video_url: part.data };
  if (part.type === "file") return { type: "file", filename: part.filename, file_data: part.data };
  return { type: "text", text: part.text };
}

function kindOf(file) {
  const [kind] = file.type.split("/");
  return kind in KINDS ? kind : "file";
}

function partOf(file, data) {
  const [kind, format] = file.type.split("/");
  if (kind === "image") return { type: "image", image: data };
  if (kind === "audio") return { type: "audio", filename: file.name, data, format };
  return { type: kind === "video" ? "video" : "file", filename: file.name, data };
}

const sizeOf = (part) => (part.image ?? part.data ?? "").length;

const words = (bytes) => (bytes >= 1e6 ? `${Math.floor(bytes / 1e5) / 10} MB` : `${Math.floor(bytes / 1000)} kB`);

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
