// Chooses the page by the address, and says how old the data are.

import { make, lasting, refreshAges } from "./elements.js";
import { costPage } from "./cost.js";
import { minePage } from "./mine.js";
import { FirstPage } from "./first.js";
import { Live } from "./live.js";
import { nodePage } from "./node.js";
import { podPage } from "./pod.js";
import { poolsPage } from "./pools.js";
import { upgradesPage } from "./upgrades.js";

const main = document.getElementById("main");
const field = document.getElementById("words");
const status = document.getElementById("live");
const EVERY = 5000; // ms between two readings of the page of a node
const TIMES = { pod: 3, cost: 12 }; // how much longer between two readings of other pages

let first = null; // the first page, while it is displayed
let shown = ""; // the address that is displayed
let asked = 0;
let busy = false;

const words = {
  text: () => field.value,
  go: (path) => { history.pushState(null, "", path); route(true); },
};

const live = new Live(changed, heard);

function changed() {
  document.getElementById("cluster").textContent = live.data.cluster;
  document.title = `${live.data.cluster} - gpuplane`;
  if (first) first.show(live.data);
  heard();
}

function heard() {
  const old = live.oldness();
  status.classList.toggle("old", old > 0 || live.refused !== "" || live.trouble !== "");
  const why = live.trouble || (live.silent ? "the dashboard does not answer" : live.why);
  const text = live.refused || (old && live.data ? `${lasting(old)} old: ${why}` : live.data ? "live" : why || "connecting");
  if (status.textContent !== text) status.textContent = text;
}

function route(moved) {
  const path = location.pathname;
  const address = path === "/" ? path : path + location.search;
  const parts = path.split("/").slice(1).map(decodeURIComponent);
  field.form.hidden = path !== "/";
  if (path === "/") {
    field.value = new URLSearchParams(location.search).get("q") || "";
    if (!first || shown !== address) first = new FirstPage(main, words);
    if (live.data) first.show(live.data);
  } else {
    first = null;
    if (shown !== address) main.replaceChildren(make("p", { class: "soft" }, "reading"));
    read(parts, address);
  }
  shown = address;
  if (moved) { main.focus({ preventScroll: true }); scrollTo(0, 0); }
}

const PAGES = { node: nodePage, pod: podPage, cost: costPage, mine: minePage, upgrades: upgradesPage, pools: poolsPage };

// Fetch what a page is about. Another address chosen meanwhile wins.
async function read([kind, ...names], address) {
  asked = performance.now();
  busy = true;
  try {
    const answer = await fetch(`/api/${[kind, ...names.map(encodeURIComponent)].join("/")}${location.search}`);
    const found = answer.headers.get("content-type")?.startsWith("application/json") ? await answer.json()
      : { what: "the dashboard was started again: open the address that it printed" };
    if (location.pathname + location.search !== address) return;
    if (answer.status === 401) location.assign("/login");
    else if (!answer.ok) problem(found);
    else keepFocus(() => PAGES[kind](main, found));
  } catch {
    if (location.pathname + location.search === address && !main.querySelector("h1")) problem({ what: "the dashboard does not answer" });
  } finally {
    busy = false;
  }
}

function problem({ what, where, cure }) {
  main.replaceChildren(make("a", { class: "back", href: "/" }, "All GPUs"), make("h1", {}, "No answer"),
    make("p", {}, what), where ? make("p", { class: "soft" }, where) : "", cure ? make("code", {}, cure) : "");
}

// A page that is read again while the user is in it leaves the focus and the text that is selected.
function keepFocus(render) {
  const selected = String(getSelection());
  if (selected) return;
  const links = () => [...main.querySelectorAll("a, button, pre")];
  const at = links().indexOf(document.activeElement);
  render();
  if (at >= 0) links()[at]?.focus({ preventScroll: true });
}

field.form.addEventListener("submit", (event) => event.preventDefault());
field.addEventListener("input", () => {
  const query = field.value ? `?q=${encodeURIComponent(field.value)}` : "";
  history.replaceState(null, "", `/${query}`);
  if (first && live.data) first.show(live.data);
});
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='/']");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  words.go(link.getAttribute("href"));
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== field && !field.form.hidden) { event.preventDefault(); field.focus(); }
});
addEventListener("popstate", () => route(true));
setInterval(() => {
  heard();
  refreshAges();
  first?.tick();
  const every = EVERY * (TIMES[location.pathname.split("/")[1]] || 1);
  if (!first && !busy && !document.hidden && performance.now() - asked > every) route(false);
}, 1000);

// The cluster's dashboard names its viewer, who can log out of a session.
async function viewer() {
  const answer = await fetch("/api/viewer");
  if (!answer.ok) return;
  const { user, session } = await answer.json();
  if (!user) return;
  const out = make("button", { type: "button", click: async () => { await fetch("/logout", { method: "POST", redirect: "manual" }); location.assign("/login"); } }, "Log out");
  document.getElementById("viewer").replaceChildren(make("span", {}, user), session ? out : "");
}

route(false);
live.start();
viewer();
