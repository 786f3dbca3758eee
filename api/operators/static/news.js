// News for who looks elsewhere: the browser's notifications, where the user wants them.

import { byId } from "./dom.js";

const WANTED = "turnstream.notify";

export class News {
  /** @param {(session: string) => void} onOpen the user follows a notification */
  constructor(onOpen) {
    this.onOpen = onOpen;
    this.button = byId("notify");
    this.button.hidden = !("Notification" in window);
    this.button.addEventListener("click", () => this.change());
    this.show();
  }

  get wanted() {
    return "Notification" in window && Notification.permission === "granted" && localStorage.getItem(WANTED) === "1";
  }

  async change() {
    if (this.wanted) localStorage.removeItem(WANTED);
    else if ((await Notification.requestPermission()) === "granted") localStorage.setItem(WANTED, "1");
    this.show();
  }

  show() {
    const refused = "Notification" in window && Notification.permission === "denied";
    const words = refused ? "Notifications are blocked by the browser" : this.wanted ? "Notifications are on" : "Notify me when an answer is ready or I am needed";
    this.button.setAttribute("aria-pressed", String(this.wanted));
    this.button.setAttribute("aria-label", words);
    this.button.title = words;
  }

  /** Tell of a conversation, unless its user looks at the page. */
  tell(title, body, session) {
    if (!this.wanted || (document.visibilityState === "visible" && document.hasFocus())) return;
    // One for each conversation: the newest replaces the one before it.
    const shown = new Notification(title, { body, tag: session });
    shown.addEventListener("click", () => {
      window.focus();
      shown.close();
      this.onOpen(session);
    });
  }
}
