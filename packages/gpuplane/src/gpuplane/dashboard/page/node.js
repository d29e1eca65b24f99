// The page of a node: its stages as a Gantt chart, its GPUs with their holders, its events.

import { agoOf, draw, lasting, make, podLink, table } from "./elements.js";
import { entry } from "./first.js";

const KINDS = { done: "good", present: "good", skipped: "good", failed: "bad", running: "warn" };

// Bars of the stages, each from the end of the one before it; what takes no time has a thin bar. Plain data.
export function bars(stages) {
  const total = stages.reduce((sum, stage) => sum + stage.took, 0);
  let begin = 0;
  return stages.map(({ name, state, took }) => {
    const bar = { name, state, took, from: total ? begin / total : 0, wide: total ? took / total : 0 };
    begin += took;
    return bar;
  });
}

function chart(stages) {
  const rows = bars(stages).flatMap(({ name, state, took, from, wide }) => {
    const left = Math.min(99, from * 100);
    const bar = state in KINDS ? draw("rect", { class: KINDS[state], x: `${left}%`, y: 0, width: `${Math.max(1, Math.min(100 - left, wide * 100))}%`, height: 14 }) : null;
    const time = ["done", "present"].includes(state) && took ? lasting(took) : state;
    return [make("span", {}, name), draw("svg", { role: "img", "aria-label": `${name}: ${state}, ${took} s` }, bar || []), make("span", { class: `number ${KINDS[state] === "bad" ? "bad" : "soft"}` }, time)];
  });
  return make("div", { class: "chart" }, rows);
}

function parts(gpu) {
  let at = 0;
  const rects = gpu.held.map(({ core }) => {
    const rect = draw("rect", { x: `${at}%`, y: 0, width: `${Math.min(core, 100 - at)}%`, height: 14 });
    at = Math.min(100, at + core);
    return rect;
  });
  return draw("svg", { class: "parts", role: "img", "aria-label": `${at}% held` }, rects);
}

// What is measured of a GPU, in words.
function measured({ busyPercent, memoryMib, powerWatts, temperatureCelsius, idle, idleSeconds }) {
  const words = [
    busyPercent === undefined ? "" : `${Math.round(busyPercent)}%`,
    memoryMib === undefined ? "" : `${(memoryMib / 1024).toFixed(1)} GiB`,
    powerWatts === undefined ? "" : `${Math.round(powerWatts)} W`,
    temperatureCelsius === undefined ? "" : `${Math.round(temperatureCelsius)} °C`,
  ].filter(Boolean).join("  ");
  return [words || make("span", { class: "soft" }, "not measured"), idle ? make("div", { class: "warn" }, `idle for ${lasting(idleSeconds)}`) : ""];
}

function gpuRow(gpu, { known, ready }) {
  const holders = gpu.held.map(({ pod, holds }, at) => [at ? make("br") : "", podLink(pod), ` ${holds}`]);
  return [String(gpu.index), `${gpu.model} ${Math.round(gpu.memoryMib / 1024)} GiB`, known ? parts(gpu) : "only the node knows", measured(gpu.use),
    [gpu.fault ? make("div", { class: "bad" }, gpu.fault) : "", holders.length ? holders : known && ready && !gpu.fault ? "free" : ""], make("span", { class: "soft" }, gpu.uuid)];
}

// Which way each GPU has to each other one, as nvidia-smi topo -m prints it.
function links({ links, gpus }) {
  if (!links.length) return "";
  const name = (at) => `GPU ${gpus[at].index}`;
  return make("section", { class: "links" }, make("h2", {}, "Links", " ", make("small", {}, "the way from each GPU to each")),
    table(["", ...gpus.map((_, at) => name(at))], links.map((ways, at) => [make("span", { class: "soft" }, name(at)),
      ...ways.map((way) => (way.startsWith("NV") ? make("strong", {}, way) : way))]), "Links between the GPUs of the node", "plain"),
    make("p", { class: "soft" }, "NV18: 18 NVLinks. PIX, PXB, PHB, NODE: over PCIe, the shortest first. SYS: between sockets."));
}

export function nodePage(main, found) {
  const trouble = found.trouble.effect
    ? [entry({ ...found.trouble, verdict: found.ready ? "warn" : "bad", head: found.stage, since: found.since, nodes: [found.name] })] : [];
  main.replaceChildren(
    make("a", { class: "back", href: "/" }, "All GPUs"),
    make("h1", {}, found.name, " ", make("small", {}, found.machine.join(", "))),
    make("p", {}, make("span", { class: found.ready ? "good" : "bad" }, found.ready ? "ready" : `not ready: ${found.stage}`), " for ", agoOf(found.since)),
    make("div", { class: "stack" },
      trouble,
      make("section", {}, make("h2", {}, "Stages", " ", make("small", {}, "each from the end of the one before")), chart(found.stages)),
      make("section", {}, make("h2", {}, "GPUs"),
        table(["GPU", "Model", "Held", "Busy", "By", "UUID"], found.gpus.map((gpu) => gpuRow(gpu, found)), "GPUs of the node", "plain"),
        found.holders.length ? make("ul", { class: "pods" }, found.holders.map(({ pod, holds }) => make("li", {}, podLink(pod), ` ${holds}`))) : ""),
      links(found),
      make("section", {}, make("h2", {}, "Events", " ", make("small", {}, "the newest first")),
        found.events.length ? table(["Age", "Reason", "Message"], found.events.map(({ at, reason, message }) => [agoOf(at), reason, message]), "Events of the node") : make("p", { class: "soft" }, "No events, or none that you may read."))));
}
