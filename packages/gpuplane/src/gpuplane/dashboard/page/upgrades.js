// The page of upgrades: each node's driver with the steps of its upgrade, and gpuplane's own operands.

import { agoOf, count, draw, make, nodePath, table } from "./elements.js";

const WORDS = {
  "upgrade-required": "waits for its turn", "cordon-required": "cordon", "wait-for-jobs-required": "wait for jobs",
  "pod-deletion-required": "evict pods with GPUs", "drain-required": "drain", "pod-restart-required": "replace the driver",
  "validation-required": "validate", "uncordon-required": "uncordon", "upgrade-done": "done", "upgrade-failed": "failed",
};
const word = (state) => WORDS[state] || state || "unknown";

// One cell for each state, filled up to the one in which the node is.
function steps(states, state) {
  const at = states.indexOf(state);
  const wide = 100 / states.length;
  const failed = state === "upgrade-failed";
  const cells = states.map((_, index) => draw("rect", { class: failed ? "bad" : index < at || state === "upgrade-done" ? "good" : index === at ? "warn" : "rest",
    x: `${index * wide + 0.4}%`, y: 0, width: `${wide - 0.8}%`, height: 14 }));
  const text = failed ? "failed" : `step ${at + 1} of ${states.length}: ${word(state)}`;
  return draw("svg", { class: "steps", role: "img", "aria-label": text }, cells);
}

function nodeRow(states, { name, driver, state, since, why }) {
  const kind = state === "upgrade-failed" ? "bad" : state === "upgrade-done" ? "good" : "";
  return [[make("a", { href: nodePath(name) }, name), make("div", { class: "soft" }, driver || "driver unknown")],
    [steps(states, state), make("span", { class: kind }, word(state)), why ? make("div", { class: "soft" }, why) : ""], agoOf(since)];
}

function operandRow({ name, image, nodes, updated, ready }) {
  const whole = updated >= nodes;
  const bar = draw("svg", { class: "parts", role: "img", "aria-label": `${updated} of ${nodes}` }, draw("rect", { x: 0, y: 0, width: `${nodes ? (100 * Math.min(updated, nodes)) / nodes : 100}%`, height: 14 }));
  return [[name, make("div", { class: "soft" }, image)], [bar, make("span", { class: whole ? "" : "warn" }, `${updated} of ${nodes}`),
    make("div", { class: ready < nodes ? "warn" : "soft" }, `${ready} ready`)]];
}

export function upgradesPage(main, found) {
  const counted = [...found.states, "upgrade-failed"].filter((state) => found.counts[state]).map((state) => `${found.counts[state]} ${word(state)}`);
  const total = found.nodes.length + found.more;
  main.replaceChildren(
    make("h1", {}, "Upgrades", " ", make("small", {}, found.version ? `gpuplane ${found.version}` : "")),
    found.paused.policy ? make("p", { class: "notice" }, `The operator is paused by ${found.paused.policy}: nothing is upgraded. `, agoOf(found.paused.since)) : "",
    make("div", { class: "stack upgrades" },
      make("section", {}, make("h2", {}, "Drivers", " ", make("small", {}, total ? `${count(total, "node")}: ${counted.join(", ")}` : "")),
        total ? table(["Node", "Steps", "Since"], found.nodes.map((node) => nodeRow(found.states, node)), "Driver upgrades by node", "rows")
          : make("p", { class: "soft" }, "No node has driver upgrades: the ClusterPolicy switches them on."),
        found.more ? make("p", { class: "soft" }, `and ${found.more} more: gpuplane status -o json`) : ""),
      make("section", {}, make("h2", {}, "Operands", " ", make("small", {}, "nodes that run the newest version of each")),
        found.operands.length ? table(["Operand", "Updated"], found.operands.map(operandRow), "Operands and their rollout", "rows")
          : make("p", { class: "soft" }, found.operandsHidden ? "You may not list DaemonSets of gpuplane." : "No operand yet."))));
}
