// The page of one namespace: what runs, what waits, its quota, and what fits now with a manifest to copy.

import { lasting, make, podLink, table } from "./elements.js";
import { size, waits } from "./first.js";
import { against } from "./pod.js";

function runningRow({ pod, holds, use, idleMinutes }) {
  const gib = (mib) => (mib / 1024).toFixed(1);
  const sum = (name) => (use.length && use.every((one) => name in one) ? use.reduce((all, one) => all + one[name], 0) : undefined);
  const [core, of, memory, room] = ["core", "coreLimit", "memoryMib", "memoryLimitMib"].map(sum);
  return [podLink(pod), holds.map((one, at) => [at ? make("br") : "", one]),
    against(core, of, core === undefined ? "" : `${core.toFixed(1)}${of ? ` of ${of}` : ""}%`),
    against(memory, room, memory === undefined ? "" : `${gib(memory)}${room ? ` of ${gib(room)}` : ""} GiB`),
    idleMinutes ? make("span", { class: "warn" }, `idle for ${lasting(idleMinutes * 60)}`) : ""];
}

function fit({ size: name, pods, manifest }) {
  const row = make("li", {}, `${size(name)} ×${pods}`);
  if (manifest) {
    const button = make("button", { type: "button", "aria-label": `Copy a manifest with ${size(name)}`, click: copy }, "copy a manifest");
    async function copy() {
      try {
        await navigator.clipboard.writeText(manifest);
        button.textContent = "copied";
      } catch {
        button.textContent = "no access";
      }
    }
    row.append(" ", button);
  }
  return row;
}

export function minePage(main, found) {
  const others = found.spaces.filter((space) => space !== found.namespace);
  main.replaceChildren(
    make("h1", {}, found.namespace, " ", make("small", {}, "the pods of this namespace")),
    others.length ? make("p", { class: "choice" }, "Others: ", others.map((space) => [make("a", { href: `/mine?ns=${encodeURIComponent(space)}` }, space), " "])) : "",
    make("div", { class: "stack" },
      make("section", { class: "running" }, make("h2", {}, "Running", " ", make("small", {}, String(found.running.length + found.more))),
        found.running.length ? table(["Pod", "Holds", "Core", "Memory", ""], found.running.map(runningRow), "Pods with GPUs") : make("p", { class: "soft" }, "No pod of the namespace holds a GPU."),
        found.more ? make("p", { class: "soft" }, `and ${found.more} more: gpuplane status gpus -n ${found.namespace}`) : ""),
      make("section", {}, make("h2", {}, "Waiting", " ", make("small", {}, String(found.waiting.length || ""))),
        found.waiting.length ? make("ul", { class: "pods" }, found.waiting.map((one) => waits(one, one))) : make("p", { class: "soft" }, "No pod of the namespace waits for GPUs.")),
      make("section", {}, make("h2", {}, "Quota"),
        found.quota.length ? table(["Model", "GPUs"], found.quota.map(({ model, used, of }) => [model, against(used, of, `${used} of ${of}`)]), "GPUs that the namespace uses and may use") : make("p", { class: "soft" }, "No quota of GPUs, or none that you may read.")),
      make("section", {}, make("h2", {}, "Fits now", " ", make("small", {}, found.quota.length ? "pods of each size that could start, the quota aside" : "pods of each size that could start")),
        found.fits.length ? make("ul", { class: "pods" }, found.fits.map(fit)) : make("p", { class: "soft" }, "Nothing."))));
}
