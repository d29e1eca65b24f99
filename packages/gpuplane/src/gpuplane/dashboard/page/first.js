// The first page: what is held, what waits, what fits; every GPU; what needs a person.

import { Cells } from "./cells.js";
import { DayChart } from "./day.js";
import { reading } from "./filter.js";
import { agoOf, count, cure, draw, lasting, make, nodePath, podLink, table } from "./elements.js";

const FRESH = 15000; // ms after which the explanations of the pods that wait are asked for again

function number(value) {
  return String(Math.round(value * 100) / 100);
}

export function size(name) {
  if (name === "0.5") return "½ GPU";
  return /^\d+$/.test(name) ? count(Number(name), "GPU") : name;
}

function card(title, value, ...below) {
  return make("dl", { class: "card" }, make("dt", {}, title), make("dd", {}, value), below);
}

export function cards({ totals, fits, today }) {
  const share = totals.gpus ? totals.held / totals.gpus : 0;
  // The largest first; NB: an object lists keys that are numbers in their order, whatever the server's was.
  const sizes = Object.entries(fits).filter(([, pods]) => pods > 0).sort(([a], [b]) => (Number(b) || 0) - (Number(a) || 0));
  return make("div", { class: "cards" },
    card("Held", [number(totals.held), make("small", {}, ` of ${count(totals.gpus, "GPU")}, ${Math.round(share * 100)}%`)],
      make("progress", { max: 1, value: share, "aria-label": "Held" })),
    busy(totals),
    card("Waiting", [String(totals.waiting), make("small", {}, totals.waiting === 1 ? " pod" : " pods")],
      make("p", {}, `${totals.running} running`)),
    card("Fits now", sizes.length ? make("small", { class: "sizes" }, sizes.map(([name, pods]) => [make("span", {}, `${size(name)} ×${pods}`), " "])) : make("small", {}, "nothing"),
      make("p", {}, "pods of each size that could start now")),
    card("Today", ...spent(today)));
}

// How much of what is held works, and how much of it nobody has used for minutes.
function busy(totals) {
  if (!totals.measured) return card("Busy, of what is held", make("small", {}, "not measured"), make("p", {}, totals.why || ""));
  const of = totals.held ? Math.min(1, totals.busy / totals.held) : 0;
  const idle = totals.held ? Math.min(1 - of, totals.idle / totals.held) : 0;
  const bar = draw("svg", { class: "bar", role: "img", "aria-label": `${Math.round(of * 100)}% busy, ${Math.round(idle * 100)}% held and idle` },
    draw("rect", { class: "busy", x: 0, y: 0, width: `${of * 100}%`, height: 7 }),
    draw("rect", { class: "idle", x: `${of * 100}%`, y: 0, width: `${idle * 100}%`, height: 7 }));
  const part = totals.measured < totals.gpus ? `${totals.measured} of ${count(totals.gpus, "GPU")} measured` : "";
  return card("Busy, of what is held", [`${Math.round(of * 100)}%`, make("small", {}, ` ${number(totals.idle)} GPUs held idle`)],
    bar, make("p", {}, totals.why || part));
}

function spent(today) {
  if (today.why) return [make("small", {}, "not measured"), make("p", {}, today.why)];
  const hours = make("small", {}, `${number(today.gpuHours || 0)} GPU hours`);
  if (today.dollars === undefined) return [hours, make("p", {}, "no GPU has a price")];
  return [[`$${Math.round(today.dollars)}`, " ", hours], make("p", {}, today.unpricedHours ? `${number(today.unpricedHours)} GPU hours have no price` : "held since midnight")];
}

export function entry(one) {
  const names = one.nodes.map((name) => make("a", { href: nodePath(name) }, name));
  const who = names.length ? [names.slice(0, 5).map((link, at) => [at ? ", " : "", link]), names.length > 5 ? ` and ${names.length - 5} more` : ""] : make("strong", {}, one.head);
  return make("div", { class: `entry ${one.verdict}` },
    make("p", {}, make("span", { class: "hidden" }, one.verdict === "bad" ? "Error: " : "Warning: "), who,
      names.length ? ` ${one.head}` : "", one.since ? [" ", agoOf(one.since)] : "", one.effect ? `, ${one.effect}` : ""),
    one.what ? make("p", {}, lines(one.what)) : null,
    one.where ? make("p", { class: "where" }, lines(one.where)) : null,
    one.cure ? one.cure.split("\n").map(cure) : null);
}

export function lines(text) {
  return text.split("\n").map((line, at) => [at ? make("br") : "", line]);
}

export function waits(pod, found) {
  const row = make("li", {}, podLink(pod.pod), " ", agoOf(pod.since), found?.asks ? `, ${found.asks}` : "");
  if (!found) return row;
  if (found.findings.length) row.append(make("p", { class: "soft" }, found.findings[0]));
  else if (found.runsOn) row.append(make("p", { class: "soft" }, `fits on ${found.runsOn} now`));
  else if (found.canEverRun === "no") row.append(make("p", { class: "bad" }, "can never run on these nodes"));
  if (found.quota === "exceeded") row.append(make("p", { class: "soft" }, "over its namespace's quota"));
  const [best] = found.cures;
  if (best) row.append(cure(best.change), make("p", { class: "soft" }, `then it runs on ${best.place}`));
  return row;
}

// What the viewer of the cluster's dashboard may not list, and the page leaves out.
function limited({ hidden = [] }) {
  const parts = [hidden.includes("pods") ? "pods of other namespaces are counted without their names" : "", hidden.includes("nodes") ? "nodes have numbers and no states" : ""].filter(Boolean);
  return parts.length ? make("p", { class: "limited" }, `With your rights, ${parts.join(", and ")}.`) : "";
}

export class FirstPage {
  constructor(main, words) {
    this.words = words;
    this.explained = new Map();
    this.asked = -Infinity;
    this.trouble = "";
    this.top = make("div");
    this.canvas = make("canvas", { tabindex: 0, role: "img" });
    this.readout = make("p", { class: "readout", "aria-live": "off" });
    this.about = make("small");
    this.needs = make("section", { class: "needs", "aria-label": "Needs you" });
    this.waiting = make("section", { class: "waits", "aria-label": "Waits" });
    this.idle = make("section", { class: "idlers", "aria-label": "Held and idle" });
    this.day = new DayChart();
    this.details = make("details", { toggle: () => this.tabulate() }, make("summary", {}, "As a table"));
    this.rows = make("div");
    this.details.append(this.rows);
    const legend = make("ul", { class: "legend" }, [["busy", "busy"], ["little", "a little"], ["idle", "held, idle for 5 min"], ["held", "held, not measured"], ["", "free"], ["waits", "node not ready"], ["lost", "lost"], ["sick", "not usable"]]
      .map(([kind, text]) => make("li", {}, make("i", { class: kind }), text)));
    main.replaceChildren(make("h1", { class: "hidden" }, "GPUs of the cluster"), this.top,
      make("div", { class: "columns" },
        make("section", { class: "cells" }, make("h2", {}, "Every GPU", " ", this.about), this.canvas, this.readout, legend, this.details),
        make("div", { class: "beside" }, this.needs, this.idle), this.waiting), this.day.section);
    this.cells = new Cells(this.canvas, {
      chosen: (cell, byKeyboard) => {
        this.readout.setAttribute("aria-live", byKeyboard ? "polite" : "off");
        this.readout.textContent = cell ? said(cell) : "";
      },
      open: (name) => words.go(nodePath(name)),
    });
  }

  show(data) {
    this.data = data;
    this.top.replaceChildren(limited(data), cards(data));
    const { matches, unknown } = reading(this.words.text());
    const names = Object.keys(data.nodes);
    const all = names.reduce((sum, name) => sum + data.nodes[name].held.length, 0);
    const meant = names.reduce((sum, name) => sum + data.nodes[name].held.filter((_, at) => matches(name, data.nodes[name], at)).length, 0);
    const filtered = this.words.text().trim() !== "";
    this.about.textContent = `${filtered ? `${meant} of ` : ""}${count(all, "GPU")} in ${count(names.length, "node")}; filled as far as held, coloured by use`
      + (unknown.length ? `; not understood: ${unknown.join(" ")}` : "");
    this.canvas.setAttribute("aria-label", `${count(all, "GPU")} as cells, ${number(data.totals.held)} held. Arrow keys go from GPU to GPU, Enter opens the node; the table below has the same.`);
    this.cells.show(data.nodes, matches);
    this.matches = matches;
    if (this.details.open) this.tabulate();
    this.attention(data);
    this.idlers(data);
    this.queue(data);
  }

  idlers({ idlers }) {
    this.idle.hidden = !idlers.length;
    this.idle.replaceChildren(make("h2", {}, "Held and idle", " ", make("small", {}, "who to ask")),
      make("ul", { class: "pods" }, idlers.map(({ pod, gpus, minutes }) => make("li", {}, podLink(pod), ` ${number(gpus)} GPU${gpus === 1 ? "" : "s"}, idle for ${lasting(minutes * 60)}`))));
  }

  attention({ troubles, totals, nodes, hidden = [] }) {
    const none = hidden.includes("nodes") ? "You may not list nodes: their states are left out." : Object.keys(nodes).length ? "Every node is ready." : "No node carries a GPU that discovery has seen.";
    this.needs.replaceChildren(make("h2", {}, "Needs you", " ", make("small", {}, totals.troubles ? String(totals.troubles) : "")),
      ...(troubles.length ? troubles.map(entry) : [make("p", { class: "soft" }, none)]),
      totals.troubles > troubles.length ? make("p", { class: "soft" }, `and ${totals.troubles - troubles.length} more: gpuplane status`) : "");
  }

  queue({ waiting, totals }) {
    this.waiting.replaceChildren(make("h2", {}, "Waits", " ", make("small", {}, totals.waiting ? count(totals.waiting, "pod") : "")),
      this.trouble ? make("p", { class: "soft" }, `No reasons: ${this.trouble}`) : "",
      waiting.length ? make("ul", { class: "pods" }, waiting.slice(0, 20).map((pod) => waits(pod, this.explained.get(pod.pod)))) : make("p", { class: "soft" }, "No pod waits for GPUs."),
      totals.waiting > 20 ? make("p", { class: "soft" }, `and ${totals.waiting - Math.min(20, waiting.length)} more that wait less long`) : "");
    if (waiting.length && performance.now() - this.asked > FRESH) this.ask();
  }

  async ask() {
    this.asked = performance.now();
    try {
      const answer = await fetch("/api/waiting");
      const found = await answer.json();
      this.trouble = answer.ok ? "" : found.what;
      this.explained = new Map(answer.ok ? found.map((one) => [one.pod, one]) : []);
    } catch {
      this.trouble = "the dashboard does not answer";
    }
    if (this.data) this.queue(this.data);
  }

  // Called every second: what was explained is explained again after a while.
  tick() {
    this.day.tick();
    if (this.data?.waiting.length && performance.now() - this.asked > FRESH) this.ask();
  }

  tabulate() {
    if (!this.details.open || !this.data) return;
    const rows = Object.entries(this.data.nodes).sort(([a], [b]) => (a < b ? -1 : 1))
      .filter(([name, node]) => !node.held.length || node.held.some((_, at) => this.matches(name, node, at)))
      .map(([name, node]) => [make("a", { href: nodePath(name) }, name), node.model, "waits" in node ? node.stage : "ready",
        node.held.map((held, at) => `${at}: ${node.guessed ? "about " : ""}${held}%`).join("  "),
        node.busy ? node.busy.map((busy, at) => `${at}: ${busy < 0 ? "-" : `${busy}%`}${(node.idle || []).includes(at) ? " idle" : ""}`).join("  ") : "not measured",
        Object.entries(node.faults || {}).map(([at, why]) => `GPU ${at}: ${why}`).join("; ") || (node.waits || "")]);
    this.rows.replaceChildren(table(["Node", "Model", "Stage", "Held, by GPU", "Busy", "Trouble"], rows, "GPU nodes"));
  }
}

function said({ name, index, node, held }) {
  const fault = (node.faults || {})[String(index)];
  return [`${name}/${index}`, node.model, `${node.guessed ? "about " : ""}${held}% held`, node.busy?.[index] >= 0 ? `${node.busy[index]}% busy` : "",
    (node.idle || []).includes(index) ? "held and idle" : "", fault || "",
    "waits" in node ? `node not ready: ${node.waits}` : ""].filter(Boolean).join("   ");
}
