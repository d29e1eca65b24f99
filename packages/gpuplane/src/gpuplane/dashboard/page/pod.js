// The page of a pod: why it is where it is, or why it waits, as `gpuplane explain` answers.

import { agoOf, cure, make, nodePath } from "./elements.js";

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
      make("section", {}, make("h2", {}, "Explanation", " ", make("small", {}, `gpuplane explain ${found.pod}`)),
        make("pre", { tabindex: 0, role: "region", "aria-label": "Explanation" }, found.text))));
}
