// The page of a pod: why it is where it is, or why it waits, as `gpuplane explain` answers.

import { agoOf, cure, draw, make, nodePath, table } from "./elements.js";

// One amount against its limit, as a bar and in words.
export function against(value, limit, words) {
  if (value === undefined) return make("span", { class: "soft" }, "not measured");
  const part = limit ? Math.min(1, value / limit) : 0;
  const bar = draw("svg", { class: "parts", role: "img", "aria-label": words },
    draw("rect", { class: "busy", x: 0, y: 0, width: `${part * 100}%`, height: 14 }));
  return [limit ? bar : "", words];
}

function useRow({ gpu, core, memoryMib, coreLimit, memoryLimitMib }) {
  const gib = (mib) => (mib / 1024).toFixed(1);
  return [gpu,
    against(core, coreLimit, core === undefined ? "" : `${core.toFixed(1)}${coreLimit ? ` of ${coreLimit}` : ""}%`),
    against(memoryMib, memoryLimitMib, memoryMib === undefined ? "" : `${gib(memoryMib)}${memoryLimitMib ? ` of ${gib(memoryLimitMib)}` : ""} GiB`)];
}

export function podPage(main, found) {
  const state = found.state === "placed"
    ? ["on ", make("a", { href: nodePath(found.node) }, found.node), " for ", agoOf(found.since), found.asks ? `, holds ${found.asks}` : ""]
    : found.state === "waiting" ? ["waiting ", agoOf(found.since), found.asks ? ` for ${found.asks}` : "", "; can ever run: ",
      make("span", { class: { yes: "good", no: "bad" }[found.canEverRun] || "" }, found.canEverRun), found.quota ? `; quota ${found.quota}` : ""]
      : [found.state === "ended" ? "ended" : "asks for no GPU"];
  const cures = found.cures.map(({ change, place, effect }) => make("li", {}, cure(change),
    make("p", { class: "soft" }, `then it runs on ${place}${effect ? `; ${effect}` : ""}`)));
  main.replaceChildren(
    make("a", { class: "back", href: "/" }, "All GPUs"),
    make("h1", {}, found.pod),
    make("p", {}, state),
    make("div", { class: "stack" },
      cures.length ? make("section", {}, make("h2", {}, "Cures", " ", make("small", {}, "each was decided again with the change made")), make("ul", { class: "pods" }, cures)) : "",
      found.use.length ? make("section", {}, make("h2", {}, "Use", " ", make("small", {}, "of the last minutes, against what it holds")),
        table(["GPU", "Core", "Memory"], found.use.map(useRow), "Use of GPUs by the pod")) : "",
      make("section", {}, make("h2", {}, "Explanation", " ", make("small", {}, `gpuplane explain ${found.pod}`)),
        make("pre", { tabindex: 0, role: "region", "aria-label": "Explanation" }, found.text))));
}
