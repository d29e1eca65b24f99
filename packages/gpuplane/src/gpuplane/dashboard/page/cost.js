// The page of costs: what `gpuplane cost` answers, the dearest first.

import { make, table } from "./elements.js";

const BY = { namespace: "namespace", owner: "owner", pod: "pod", gpu: "GPU" };
const SINCE = { "1d": "day", "7d": "week", "30d": "30 days" };

const number = (value) => (value === undefined ? "-" : value.toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 }));
const dollars = (value) => (value === undefined ? "-" : `$${value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`);

function choice(label, choices, chosen, address) {
  return make("p", { class: "choice" }, `${label} `, Object.entries(choices).map(([key, text]) => [
    key === chosen ? make("strong", { "aria-current": "true" }, text) : make("a", { href: address(key) }, text), " "]));
}

function row({ name, heldHours, usedHours, idleHours, energyKwh, dollars: spent }) {
  return [name, ...[number(heldHours), number(usedHours), number(idleHours), number(energyKwh), dollars(spent)].map((text) => make("span", { class: "number" }, text))];
}

export function costPage(main, found) {
  const address = (by, since) => `/cost?by=${encodeURIComponent(by)}&since=${encodeURIComponent(since)}`;
  const heads = [BY[found.by] || found.by, "Held h", "Used h", "Idle h", "kWh", "Dollars"];
  const rows = [...found.rows.map(row), row(found.total)];
  const notes = [
    found.complete ? "" : found.sourceKind === "store" ? `Since ${found.begins}, not the last ${SINCE[found.since]}: the store of sums began then.`
      : `Since the exporters started, not the last ${SINCE[found.since]}: there is no Prometheus and no store. Pods that ended more than ten minutes ago are missing.`,
    found.silent.length ? `${found.silent.length} exporters did not answer, ${found.silent[0]} first.` : "",
    found.total.unpricedHours > 0.005 ? `${number(found.total.unpricedHours)} GPU hours have no price: gpuplane cost --prices FILE.` : "",
    found.more ? `${found.more} more rows are in the total: gpuplane cost lists them.` : "",
  ].filter(Boolean);
  main.replaceChildren(
    make("h1", {}, "Cost", " ", make("small", {}, `from ${found.source}`)),
    choice("By", BY, found.by, (by) => address(by, found.since)),
    choice("Of the last", SINCE, found.since, (since) => address(found.by, since)),
    ...notes.map((note) => make("p", { class: "notice" }, note)),
    make("section", { class: "costs" }, table(heads, rows, "GPU hours, energy and dollars", "plain"),
      found.rows.length ? "" : make("p", { class: "soft" }, "No container held a GPU in this time."),
      found.total.pricesFrom.length ? make("p", { class: "soft" }, `Prices: ${found.total.pricesFrom.join("; ")}.`) : ""));
}
