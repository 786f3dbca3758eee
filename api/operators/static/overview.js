// The deployment in a few numbers, each with its last minutes; they outlive a reload of the page.

import { Chart } from "./charts.js";
import { duration, h, say } from "./dom.js";
import * as store from "./store.js";

// Processes report what they count every few seconds; a rate over less would jump.
const RATE_SECONDS = 12;
// Between two samples that are kept: what is older is forgotten.
const STALE_SECONDS = 600;

export class Overview {
  constructor(key) {
    this.key = key;
    this.charts = {
      depth: new Chart("Queue depth"), running: new Chart("Running"), parked: new Chart("Waiting for clients"),
      turns: new Chart("Turns ended", { unit: "/s" }), events: new Chart("Events", { unit: "/s" }), followers: new Chart("Followers"),
    };
    this.past = [];
    this.summary = h("p", { class: "note" });
    this.element = h("div", { class: "cards" }, ...Object.values(this.charts).map((chart) => chart.element));
    const kept = store.samples(key);
    if (kept && Date.now() / 1000 - kept.at < STALE_SECONDS) for (const [name, chart] of Object.entries(this.charts)) chart.take(kept.values[name] ?? []);
  }

  show(stats) {
    const { charts } = this;
    // Counters appear with their first count.
    const totals = { completed: 0, failed: 0, canceled: 0, events: 0, rescues: 0, ...stats.totals };
    charts.depth.push(stats.queue.depth, stats.queue.depth ? `${stats.queue.depth} · ${duration(stats.queue.oldest_seconds)}` : "0");
    charts.running.push(stats.tasks.running, stats.workers.slots ? `${stats.tasks.running} of ${stats.workers.slots}` : String(stats.tasks.running));
    charts.parked.push(stats.tasks.parked);
    charts.followers.push(stats.front_ends.followers);
    const ended = totals.completed + totals.failed + totals.canceled;
    this.past = [...this.past.filter((each) => each.now > stats.now - RATE_SECONDS), { now: stats.now, ended, events: totals.events }];
    const [first] = this.past;
    if (stats.now > first.now) {
      charts.turns.push(Math.max(0, ended - first.ended) / (stats.now - first.now));
      charts.events.push(Math.max(0, totals.events - first.events) / (stats.now - first.now));
    }
    say(this.summary, `${ended} turns ended, ${totals.failed} failed, ${totals.rescues} rescued since the beginning`);
    store.saveSamples(this.key, { at: Date.now() / 1000, values: Object.fromEntries(Object.entries(charts).map(([name, chart]) => [name, chart.values])) });
  }
}
