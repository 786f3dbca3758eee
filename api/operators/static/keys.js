// All API keys, for operators: made, listed and revoked.

import { copyButton, h, say } from "./dom.js";
import { ask, insist, wordsOf } from "./server.js";
import { head, moment, row, table, wrap } from "./tables.js";

const COLUMNS = ["Key", "Owner", "Agent", "May", "Made", "Last used", "Expires", "Note", ""];
const LIMITS = { rate: "turns a minute", concurrency: "turns at once", followers: "streams", storage: "bytes" };

export class Keys {
  /** @param {() => string} token of the operator's own key */
  constructor(token) {
    this.token = token;
    this.body = h("tbody");
    this.problem = h("p", { class: "error", role: "alert", hidden: true });
    this.made = h("p", { class: "made", role: "status", hidden: true });
    this.owner = h("input", { id: "key-owner", type: "text", required: true, autocomplete: "off", pattern: "[A-Za-z0-9_.:@\\-]{1,128}", placeholder: "acme" });
    this.agent = h("select", { id: "key-agent" });
    this.days = h("input", { id: "key-days", type: "number", min: 0, max: 36500, value: 30 });
    this.note = h("input", { id: "key-note", type: "text", autocomplete: "off", maxlength: 200, placeholder: "Who is it for?" });
    this.form = h("form", { class: "row make-key", onsubmit: (event) => { event.preventDefault(); this.make(); } },
      h("label", { class: "inline" }, h("span", {}, "Owner"), this.owner), h("label", { class: "inline" }, h("span", {}, "Speaks to"), this.agent),
      h("label", { class: "inline" }, h("span", {}, "Days (0: for ever)"), this.days),
      h("label", { class: "inline" }, h("span", {}, "Note"), this.note), h("button", { type: "submit", class: "primary" }, "Make a key"));
  }

  elements() {
    return [head("keys-of-all", "API keys"), this.form, this.problem, this.made, wrap("keys-of-all", table(COLUMNS, this.body, "API keys"))];
  }

  async load() {
    try {
      const [{ keys }, { agents }] = await Promise.all([ask(this.token(), "GET", "admin/v1/keys"), ask(this.token(), "GET", "admin/v1/agents")]);
      this.show(keys);
      if (!this.agent.options.length) this.agent.append(...agents.map(({ agent }) => h("option", { value: agent }, agent)));
      this.problem.hidden = true;
    } catch (error) {
      this.fail(error);
    }
  }

  show(keys) {
    this.body.replaceChildren(...keys.sort((one, other) => other.created_at - one.created_at).map((key) => {
      const limits = Object.entries(LIMITS).filter(([name]) => key[name]).map(([name, words]) => `${key[name].toLocaleString()} ${words}`);
      const revoke = h("button", { type: "button", class: "danger small", "aria-label": `Revoke ${key.shown}`, onclick: () => this.revoke(key, revoke) }, "Revoke");
      return row(COLUMNS, [
        key.replaced_by ? `${key.shown}… (rotated)` : `${key.shown}…`, key.owner, [key.agent, ...(key.others ?? [])].filter(Boolean).join(", "), [key.scopes.join(", "), ...limits].join("; "),
        moment(key.created_at), key.used_at ? moment(key.used_at) : "–", key.expires_at ? moment(key.expires_at) : "never", key.note ?? "–", revoke,
      ]);
    }));
  }

  async make() {
    try {
      const body = { owner: this.owner.value.trim(), agent: this.agent.value, days: Number(this.days.value), note: this.note.value.trim() };
      const key = await ask(this.token(), "POST", "admin/v1/keys", { body });
      this.made.replaceChildren(`The key of ${key.owner}, which is not shown again: `, h("code", {}, key.token), copyButton("Copy the key", () => key.token));
      this.made.hidden = false;
      this.owner.value = this.note.value = "";
      await this.load();
    } catch (error) {
      this.fail(error);
    }
  }

  async revoke(key, button) {
    if (!confirm(`Revoke ${key.shown}… of ${key.owner}? Whoever uses it is refused within seconds.`)) return;
    button.disabled = true;
    try {
      await insist(this.token(), "POST", `admin/v1/keys/${key.id}/revoke`);
      await this.load();
    } catch (error) {
      this.fail(error);
      button.disabled = false;
    }
  }

  fail(error) {
    say(this.problem, wordsOf(error));
    this.problem.hidden = false;
  }
}
