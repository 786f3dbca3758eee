// A line over time, small enough to stand beside its number.

import { h, say, svg } from "./dom.js";

const WIDTH = 160;
const HEIGHT = 40;

/** The last values of something, with its newest one in figures. */
export class Chart {
  constructor(label, { samples = 60, unit = "" } = {}) {
    this.label = label;
    this.samples = samples;
    this.unit = unit;
    this.values = [];
    this.area = svg("path", { class: "area" });
    this.line = svg("path", { class: "line" });
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${label}: nothing yet` }, this.area, this.line);
    this.figure = h("strong", {}, "–");
    this.most = h("span", { class: "most" });
    this.element = h("div", { class: "card" }, h("span", { class: "card-label" }, label), h("div", { class: "card-row" }, this.figure, this.most), this.picture);
  }

  /** What was pushed before a reload. */
  take(values) {
    this.values = values.filter(Number.isFinite).slice(-this.samples);
  }

  push(value, text = null) {
    this.values.push(Number.isFinite(value) ? value : 0);
    if (this.values.length > this.samples) this.values.shift();
    const most = Math.max(...this.values);
    const shown = text ?? `${tidy(value)}${this.unit}`;
    say(this.figure, shown);
    say(this.most, this.values.length > 1 ? `peak ${tidy(most)}${this.unit}` : "");
    this.picture.setAttribute("aria-label", `${this.label}: ${shown} now, ${tidy(most)}${this.unit} at most in the last ${this.values.length} samples`);
    const top = Math.max(most, 1);
    const points = this.values.map((each, at) => {
      const x = WIDTH - (this.values.length - 1 - at) * (WIDTH / (this.samples - 1));
      return `${x.toFixed(1)} ${(HEIGHT - 2 - (each / top) * (HEIGHT - 6)).toFixed(1)}`;
    });
    this.line.setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
    const left = points[0]?.split(" ")[0];
    this.area.setAttribute("d", points.length > 1 ? `M${left} ${HEIGHT}L${points.join("L")}L${WIDTH} ${HEIGHT}Z` : "");
  }
}

export function tidy(value) {
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return Number.isInteger(value) ? String(value) : value.toFixed(value < 10 ? 1 : 0);
}
