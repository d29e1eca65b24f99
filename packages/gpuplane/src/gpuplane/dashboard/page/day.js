// The last 24 hours below the first page: GPUs held and busy of each hour, and pods that waited, as bars and as a table.

import { draw, make, table } from "./elements.js";

const FRESH = 300000; // ms between two readings
const HIGH = 130, WAITS = 34; // of the bars, in units of the drawing
const WIDE = 30, GAP = 4;

const number = (value) => (value === undefined ? "-" : value.toLocaleString("en", { maximumFractionDigits: 1 }));
const clock = (at) => new Date(at).toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", hour12: false });

// Bars of each hour in units of the drawing, from below: busy, held and not busy, free. Plain data.
export function bars(hours) {
  const most = Math.max(1, ...hours.map(({ held = 0, free = 0 }) => held + free));
  const longest = Math.max(1, ...hours.map(({ waiting = 0 }) => waiting));
  return hours.map(({ held = 0, free = 0, busy, waiting = 0 }, at) => {
    const used = Math.min(held, busy ?? 0);
    const [a, b, c] = [used, held - used, free].map((gpus) => (gpus / most) * HIGH);
    const x = at * WIDE;
    return { x, known: busy !== undefined, busy: [HIGH - a, a], held: [HIGH - a - b, b], free: [HIGH - a - b - c, c], waits: (waiting / longest) * WAITS };
  });
}

function chart(hours) {
  const wide = WIDE * Math.max(24, hours.length);
  const rect = (kind, x, [y, high]) => (high > 0 ? draw("rect", { class: kind, x, y, width: WIDE - GAP, height: high }) : []);
  const parts = bars(hours).flatMap(({ x, known, busy, held, free, waits }) => [
    rect("free", x, free), rect(known ? "idle" : "held", x, held), rect("busy", x, busy),
    waits ? draw("rect", { class: "waiting", x, y: HIGH + 8 + WAITS - waits, width: WIDE - GAP, height: waits }) : []]);
  const last = hours[hours.length - 1];
  const text = `24 hours of GPUs. In the last hour ${number(last.held ?? 0)} held, ${number(last.busy)} busy, ${number(last.waiting)} pods waited. The table below has every hour.`;
  return draw("svg", { class: "day", role: "img", "aria-label": text, viewBox: `0 0 ${wide} ${HIGH + WAITS + 9}`, preserveAspectRatio: "none" }, parts,
    draw("line", { x1: 0, x2: wide, y1: HIGH + 0.5, y2: HIGH + 0.5 }));
}

export class DayChart {
  constructor() {
    this.asked = -Infinity;
    this.body = make("div", {}, make("p", { class: "soft" }, "reading"));
    this.about = make("small");
    this.rows = make("div");
    this.details = make("details", { hidden: true }, make("summary", {}, "As a table"), this.rows);
    this.section = make("section", { class: "history" }, make("h2", {}, "24 hours", " ", this.about), this.body, this.details);
    this.tick();
  }

  // Called every second: the hours are read again after some minutes.
  async tick() {
    if (performance.now() - this.asked < FRESH) return;
    this.asked = performance.now();
    try {
      const answer = await fetch("/api/day");
      const found = await answer.json();
      this.show(answer.ok ? found : { hours: [], why: found.what });
    } catch {
      this.asked -= FRESH - 15000; // soon again; what is displayed stays
    }
  }

  show({ hours, source, why }) {
    this.details.hidden = !hours.length;
    if (!hours.length) {
      this.about.textContent = "";
      this.body.replaceChildren(make("p", { class: "soft" }, `Not known: ${why}.`));
      return;
    }
    const most = Math.max(...hours.map(({ held = 0, free = 0 }) => held + free));
    const longest = Math.max(...hours.map(({ waiting = 0 }) => waiting));
    this.about.textContent = `average of each hour, from ${source}: up to ${number(most)} GPUs and ${number(longest)} pods that waited`;
    const ends = hours.length > 1 ? [clock(hours[0].at), clock(hours[Math.floor(hours.length / 2)].at), clock(hours[hours.length - 1].at)] : [clock(hours[0].at)];
    const unknown = hours.some(({ busy }) => busy === undefined) ? [["held", "held, not measured"]] : [];
    const legend = [["busy", "busy"], ["unused", "held, not busy"], ...unknown, ["spare", "free"], ["waiting", "pods that waited"]];
    this.body.replaceChildren(chart(hours), make("p", { class: "hours", "aria-hidden": "true" }, ends.map((text) => make("span", {}, text))),
      make("ul", { class: "legend" }, legend.map(([kind, text]) => make("li", {}, make("i", { class: kind }), text))));
    const cells = hours.map(({ at, held = 0, busy, free = 0, waiting }) => [make("time", { title: at }, clock(at)), number(held), number(busy), number(free), number(waiting)]);
    this.rows.replaceChildren(table(["Hour from", "Held", "Busy", "Free", "Pods that waited"], cells.reverse(), "GPUs and pods of each hour, the newest first", "plain"));
  }
}
