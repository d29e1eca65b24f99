// The page of node pools: nodes with prices, what is on its way, and why a pool does not grow.

import { agoOf, count, cure, make, nodePath, table } from "./elements.js";
import { lines } from "./first.js";

const dollars = (value) => `$${value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
const soft = (...texts) => make("div", { class: "soft" }, texts.filter(Boolean).join(", "));

function price({ dollars: spent, from }) {
  return spent === undefined ? make("span", { class: "soft" }, "no price") : make("span", { title: from }, dollars(spent));
}

function poolRow({ name, kind, nodes, joining, ending, types, limits, dollars: spent, unpriced }) {
  const what = Object.entries(types).map(([type, many], at) => [at ? make("br") : "", `${many} × ${type}`]);
  const of = limits.map(({ resource, used, limit }) => soft(`${resource} ${used} of ${limit}`));
  const hour = [spent || !unpriced ? dollars(spent) : "", unpriced ? soft(`${unpriced} without a price`) : ""];
  return [[name, soft(kind)], [String(nodes), soft(joining ? `${joining} joining` : "", ending ? `${ending} ending` : "")], hour, [what, of]];
}

function trouble({ name, trouble: why, cure: what }) {
  return make("div", { class: "entry warn" }, make("p", {}, make("span", { class: "hidden" }, "Warning: "), make("strong", {}, name), " does not grow"),
    make("p", {}, lines(why)), what ? what.split("\n").map(cure) : "");
}

function launchRow({ claim, pool, type, capacity, step, since, why }) {
  return [[claim, soft(pool, type, capacity)], [step, why ? soft(why) : ""], agoOf(since)];
}

function nodeRow(node) {
  return [[make("a", { href: nodePath(node.name) }, node.name), soft(node.pool)], [node.type, soft(node.capacity, node.zone)],
    price(node), [agoOf(node.since), node.ending ? make("div", { class: "warn" }, "ending") : ""]];
}

function section(title, about, rows, heads, caption, none, more) {
  return make("section", {}, make("h2", {}, title, " ", make("small", {}, about)),
    rows.length ? table(heads, rows, caption, "rows") : make("p", { class: "soft" }, none),
    more ? make("p", { class: "soft" }, `and ${more} more: kubectl get nodeclaims`) : "");
}

export function poolsPage(main, found) {
  const troubled = found.pools.filter((pool) => pool.trouble);
  const events = found.events.map(({ at, about, reason, message, warning }) => [[make("span", { class: warning ? "warn" : "" }, reason), soft(about)], message, agoOf(at)]);
  main.replaceChildren(
    make("h1", {}, "Node pools", " ", make("small", {}, count(found.pools.length, "pool"))),
    make("div", { class: "stack pools" },
      troubled.length ? make("section", {}, make("h2", {}, "Does not grow"), troubled.map(trouble)) : "",
      section("Pools", "", found.pools.map(poolRow), ["Pool", "Nodes", "$ an hour", "Types and limits"], "Node pools",
        "No node pool, or none that you may list."),
      section("On their way", "launches that are not complete, and nodes that end", found.launches.map(launchRow), ["Claim", "Step", "Age"], "Launches",
        "No node is on its way.", found.moreLaunches),
      section("Nodes", "dollars an hour, as gpuplane cost counts them", found.nodes.map(nodeRow), ["Node", "Type", "Dollars", "Age"], "Nodes of pools",
        "No node of a pool.", found.moreNodes),
      section("Events", "of pools and claims, the newest first", events, ["Reason", "Message", "Age"], "Events", "No events, or none that you may read.")));
}
