// Makes elements whose texts are text: nothing that the cluster says is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== false && value !== undefined) node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

// make("a", { href: "/" }, "text", otherElement): functions among the attributes are listeners.
export function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function draw(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

// "4s", "14m", "3h", "9d", as gpuplane status writes ages.
export function age(since, now = Date.now()) {
  const began = Date.parse(since || "");
  if (Number.isNaN(began)) return "";
  return lasting(Math.max(0, Math.floor((now - began) / 1000)));
}

export function lasting(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "m"]]) {
    if (seconds >= 2 * size || (seconds >= size && unit === "m")) return `${Math.floor(seconds / size)}${unit}`;
  }
  return `${Math.floor(seconds)}s`;
}

// An age that goes on: `refreshAges` brings all of them up to date.
export function agoOf(since) {
  return make("time", { datetime: since || "", title: since || "" }, age(since));
}

export function refreshAges() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    const text = age(time.getAttribute("datetime"));
    if (time.textContent !== text) time.textContent = text;
  }
}

export function count(number, thing) {
  return `${number} ${thing}${number === 1 ? "" : "s"}`;
}

export const nodePath = (name) => `/node/${encodeURIComponent(name)}`;

// A pod without a name is one that the viewer may not list.
export function podLink(pod) {
  if (!pod) return make("span", { class: "soft" }, "a pod of another namespace");
  const [namespace, name] = pod.split("/", 2);
  return make("a", { href: `/pod/${encodeURIComponent(namespace)}/${encodeURIComponent(name || "")}` }, pod);
}

const COMMAND = /^(kubectl|gpuplane|helm|pip) /;

// What to do next: a sentence, or a command with a button that copies it.
export function cure(text) {
  if (!COMMAND.test(text)) return make("p", { class: "cure" }, text);
  const button = make("button", { type: "button", "aria-label": `Copy: ${text}`, click: copy }, "copy");
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      button.textContent = "no access";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  }
  return make("div", { class: "cure" }, make("code", {}, text), button);
}

export function table(heads, rows, caption, kind = false) {
  return make("div", { class: "scroll" }, make("table", { class: kind },
    make("caption", { class: "hidden" }, caption),
    make("thead", {}, make("tr", {}, heads.map((head) => make("th", { scope: "col" }, head)))),
    make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell) => make("td", {}, cell)))))));
}
