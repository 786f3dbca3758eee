// Work that can wait until the page has nothing better to do: one thing at a time, and none for long.

const LEAST_MS = 2;
// A busy page does it all the same, some at a time.
const PATIENCE_MS = 400;
const BUSY_MS = 6;

const waiting = [];
let asked = false;

/** Do something soon. */
export function later(work) {
  waiting.push(work);
  ask();
}

function ask() {
  if (asked || !waiting.length) return;
  asked = true;
  if (window.requestIdleCallback) requestIdleCallback(run, { timeout: PATIENCE_MS });
  else setTimeout(run, LEAST_MS);
}

function run(deadline) {
  asked = false;
  const end = performance.now() + (deadline && !deadline.didTimeout ? deadline.timeRemaining() : BUSY_MS);
  do waiting.shift()(); while (waiting.length && performance.now() + LEAST_MS < end);
  ask();
}
