// Elements, made one way only: whatever is text stays text. Nothing here, or elsewhere, parses HTML.

/** An element with properties, listeners (`on…`) and children (nodes or text). */
export function h(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name in made && name !== "list" && name !== "form") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((each) => each !== null && each !== undefined && each !== false));
  return made;
}

/** An SVG element with attributes. */
export function svg(tag, given = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A button that copies; where the browser forbids it, as without TLS, the text is selected by a field of its own. */
export function copyButton(label, text) {
  const picture = svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" },
    svg("rect", { x: 5.5, y: 5.5, width: 8, height: 8, rx: 1.5 }), svg("path", { d: "M10.5 2.5h-6a2 2 0 0 0-2 2v6" }));
  const button = h("button", { type: "button", class: "copy", "aria-label": label, title: label }, picture);
  button.addEventListener("click", async () => {
    const done = await copied(text());
    button.dataset.done = done;
    button.setAttribute("aria-label", done ? "Copied" : "Copying failed");
    setTimeout(() => { delete button.dataset.done; button.setAttribute("aria-label", label); }, 2000);
  });
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const before = document.activeElement;
    const field = h("textarea", { class: "hidden-text", value: text, readOnly: true });
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    before?.focus();
    return done;
  }
}

export const byId = (id) => document.getElementById(id);

/** Set text only when it differs, so that selections and screen readers are left in peace. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Seconds as a person says them. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** US dollars, exact to three digits. */
export const money = (usd) => usd.toLocaleString("en-US", { style: "currency", currency: "USD", maximumSignificantDigits: 3 });

export const short = (text, most = 140) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** JSON for people; what is no JSON as it is. */
export function pretty(value) {
  if (typeof value === "string") {
    try {
      return JSON.stringify(JSON.parse(value), null, 2);
    } catch {
      return value;
    }
  }
  return JSON.stringify(value, null, 2) ?? "";
}

/** A call's arguments in one line. */
export function inline(given) {
  let value = given;
  if (typeof given === "string") {
    try {
      value = JSON.parse(given);
    } catch {
      return short(given);
    }
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) return short(JSON.stringify(value) ?? "");
  return short(Object.entries(value).map(([name, each]) => `${name}=${JSON.stringify(each)}`).join(", "));
}
