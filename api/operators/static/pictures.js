// Pictures that agents and users show.

import { h, short } from "./dom.js";

/** A picture. One that lies elsewhere is loaded when its reader wants it: its address could carry secrets out. */
export function picture(source, about = "") {
  if (/^data:image\/(png|jpeg|gif|webp|avif);/i.test(source)) return h("img", { class: "picture", src: source, alt: about || "Image" });
  if (!/^https?:/i.test(source) || !URL.canParse(source)) return h("span", { class: "aside" }, `Image: ${short(about ? `${about} (${source})` : source, 80)}`);
  const holder = h("span", { class: "aside" }, about ? `${about} ` : null);
  const { host } = new URL(source);
  holder.append(h("button", { type: "button", class: "quiet", onclick: () => holder.replaceWith(h("img", { class: "picture", src: source, alt: about || `Image from ${host}`, referrerPolicy: "no-referrer" })) }, `Load image from ${host}`));
  return holder;
}
