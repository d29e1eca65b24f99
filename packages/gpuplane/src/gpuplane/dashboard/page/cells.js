// Every GPU as a cell on one canvas: the fill is held, its colour busy, loud where nobody uses it; hatched is a node that is
// not ready, a ring a GPU that is lost.

const ROWS = 64; // with more nodes than this, nodes lie next to each other and have no names
const LABEL = 124;

function groups(nodes) {
  const found = new Map();
  for (const [name, node] of Object.entries(nodes).sort(([a], [b]) => (a < b ? -1 : 1))) {
    if (!found.has(node.model)) found.set(node.model, []);
    found.get(node.model).push([name, node]);
  }
  return [...found].sort(([a], [b]) => (a < b ? -1 : 1));
}

// Where everything lies at a width: { height, heads, labels, cells }. Plain data.
export function layout(nodes, width) {
  const dense = Object.keys(nodes).length > ROWS;
  const most = Math.max(1, ...Object.values(nodes).map((node) => node.held.length));
  const label = dense ? 0 : Math.min(LABEL, Math.floor(width / 3));
  const pitch = dense ? 11 : Math.min(112, Math.max(11, Math.floor((width - label) / most)));
  const gap = dense ? 2 : Math.min(6, Math.floor(pitch / 5));
  const tall = dense ? 9 : 17;
  const heads = [], labels = [], cells = [];
  let y = 0;
  for (const [model, members] of groups(nodes)) {
    heads.push({ text: `${model}  ${members.length} node${members.length === 1 ? "" : "s"}`, y: y + 12 });
    y += 20;
    let x = label;
    members.forEach(([name, node], at) => {
      const wide = Math.max(1, node.held.length) * pitch;
      if (at && (!dense || x + wide > width)) {
        x = label;
        y += tall + (dense ? 5 : 6);
      }
      if (!dense) labels.push({ text: name, y: y + 13, name });
      let left = x;
      node.held.forEach((held, index) => {
        if (left + pitch > width + gap && left > label) { left = label; y += tall + 3; }
        cells.push({ name, index, node, held, x: left, y, w: pitch - gap, h: tall });
        left += pitch;
      });
      x = left + (dense ? 7 : 0);
    });
    y += tall + 14;
  }
  return { height: Math.max(40, y), heads, labels, cells, label };
}

export class Cells {
  constructor(canvas, { chosen, open }) {
    this.canvas = canvas;
    this.chosen = chosen; // (cell, byKeyboard), cell may be null
    this.open = open; // (name)
    this.place = { height: 40, heads: [], labels: [], cells: [], label: 0 };
    this.at = null; // [name, index] of the chosen cell
    this.nodes = {};
    this.matches = () => true;
    this.wanted = 0;
    this.whole = false; // whether the next drawing is of all cells, not of the chosen one alone
    this.plain = document.createElement("canvas"); // all cells, none of them chosen
    this.ringed = null; // the cell that has the ring
    canvas.addEventListener("mousemove", (event) => this.choose(this.under(event), false));
    canvas.addEventListener("mouseleave", () => this.choose(null, false));
    canvas.addEventListener("click", (event) => {
      const cell = this.under(event);
      if (cell) this.open(cell.name);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => { if (!this.at && this.place.cells.length) this.choose(this.place.cells[0], true); });
    this.observer = new ResizeObserver(() => this.later());
    this.observer.observe(canvas.parentElement);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", () => this.later());
  }

  show(nodes, matches) {
    this.nodes = nodes;
    this.matches = matches;
    this.later();
  }

  later(whole = true) {
    this.whole ||= whole;
    this.wanted ||= requestAnimationFrame(() => {
      this.wanted = 0;
      if (this.whole) this.draw();
      else this.ring();
    });
  }

  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    return this.place.cells.find((c) => x >= c.x && x < c.x + c.w + 2 && y >= c.y && y < c.y + c.h + 2)
      || this.place.cells.find((c) => x < this.place.label && y >= c.y && y < c.y + c.h) || null;
  }

  choose(cell, byKeyboard) {
    this.at = cell ? [cell.name, cell.index] : null;
    this.chosen(cell, byKeyboard);
    this.later(false);
  }

  key(event) {
    const cells = this.place.cells;
    if (!cells.length) return;
    const now = Math.max(0, cells.findIndex((c) => this.at && c.name === this.at[0] && c.index === this.at[1]));
    const here = cells[now];
    const nearest = (row) => row.reduce((best, c) => (Math.abs(c.x - here.x) < Math.abs(best.x - here.x) ? c : best), row[0]);
    let next = null;
    if (event.key === "ArrowRight") next = cells[Math.min(cells.length - 1, now + 1)];
    else if (event.key === "ArrowLeft") next = cells[Math.max(0, now - 1)];
    else if (event.key === "Home") next = cells[0];
    else if (event.key === "End") next = cells[cells.length - 1];
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const down = event.key === "ArrowDown";
      const others = cells.filter((c) => (down ? c.y > here.y : c.y < here.y));
      if (others.length) {
        const y = down ? Math.min(...others.map((c) => c.y)) : Math.max(...others.map((c) => c.y));
        next = nearest(others.filter((c) => c.y === y));
      }
    } else if (event.key === "Enter") {
      this.open(here.name);
      return;
    } else return;
    event.preventDefault();
    if (next) this.choose(next, true);
  }

  draw() {
    const width = Math.floor(this.canvas.parentElement.clientWidth - 28);
    if (width <= 0 || !this.canvas.isConnected) return;
    this.whole = false;
    this.place = layout(this.nodes, width);
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = width * scale;
    this.canvas.height = this.place.height * scale;
    this.canvas.style.height = `${this.place.height}px`;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const paint = this.canvas.getContext("2d");
    paint.scale(scale, scale);
    paint.font = '13px system-ui, "DejaVu Sans", sans-serif';
    for (const head of this.place.heads) { paint.fillStyle = colour("soft"); paint.fillText(head.text, 0, head.y); }
    paint.fillStyle = colour("text");
    for (const label of this.place.labels) paint.fillText(fitted(paint, label.text, this.place.label - 8), 0, label.y);
    const colours = Object.fromEntries(["held", "busy", "little", "idle", "free", "edge", "hatch", "lost", "sick"].map((name) => [name, colour(name)]));
    const hatch = hatched(paint, colours);
    for (const cell of this.place.cells) this.cell(paint, cell, colours, hatch);
    [this.plain.width, this.plain.height] = [this.canvas.width, this.canvas.height];
    this.plain.getContext("2d").drawImage(this.canvas, 0, 0);
    this.ringed = null;
    this.ring();
  }

  // Moves the ring to the chosen cell. All cells again, at each move of the pointer, would be a few frames a second.
  ring() {
    const scale = window.devicePixelRatio || 1;
    const paint = this.canvas.getContext("2d");
    if (this.ringed) {
      const [x, y] = [this.ringed.x - 2, this.ringed.y - 2].map((at) => Math.max(0, Math.floor(at * scale)));
      const [w, h] = [this.ringed.w + 5, this.ringed.h + 5].map((size) => Math.ceil(size * scale));
      paint.setTransform(1, 0, 0, 1, 0, 0);
      paint.clearRect(x, y, w, h);
      paint.drawImage(this.plain, x, y, w, h, x, y, w, h);
      paint.setTransform(scale, 0, 0, scale, 0, 0);
    }
    this.ringed = (this.at && this.place.cells.find(({ name, index }) => name === this.at[0] && index === this.at[1])) || null;
    if (!this.ringed) return;
    const { x, y, w, h } = this.ringed;
    paint.lineWidth = 2;
    paint.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--text").trim();
    paint.strokeRect(x - 1, y - 1, w + 2, h + 2);
  }

  cell(paint, { name, index, node, held, x, y, w, h }, colours, hatch) {
    const meant = this.matches(name, node, index);
    paint.globalAlpha = meant ? 1 : 0.13;
    // The frame is filled, not stroked: 8,000 cells are drawn in half the time.
    paint.fillStyle = colours.edge;
    paint.fillRect(x, y, w, h);
    if (!meant) paint.clearRect(x + 1, y + 1, w - 2, h - 2);
    paint.fillStyle = "waits" in node ? hatch : colours.free;
    paint.fillRect(x + 1, y + 1, w - 2, h - 2);
    if (held > 0) {
      paint.fillStyle = colours[use(node, index)];
      paint.fillRect(x + 1, y + 1, Math.max(0, Math.min(w - 2, (w * held) / 100 - 1)), h - 2);
    }
    const lost = (node.lost || []).includes(index);
    if (lost || String(index) in (node.faults || {})) {
      paint.setLineDash(lost ? [] : [3, 2]);
      paint.lineWidth = 2;
      paint.strokeStyle = lost ? colours.lost : colours.sick;
      paint.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
      paint.setLineDash([]);
    }
    paint.globalAlpha = 1;
  }
}

const BUSY = 50; // percent of what is held, from which a GPU is drawn as busy

// The colour of what is held: "idle" where nobody has used it for minutes, "held" where its use is not measured.
export function use(node, index) {
  if ((node.idle || []).includes(index)) return "idle";
  const busy = node.busy ? node.busy[index] : -1;
  return busy < 0 ? "held" : busy * 100 < BUSY * node.held[index] ? "little" : "busy";
}

function fitted(paint, text, width) {
  if (paint.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && paint.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
}

function hatched(paint, colours) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.fillStyle = colours.free;
  pen.fillRect(0, 0, 6, 6);
  pen.strokeStyle = colours.hatch;
  pen.lineWidth = 1.4;
  pen.beginPath();
  for (const shift of [-6, 0, 6]) { pen.moveTo(shift, 6); pen.lineTo(shift + 6, 0); }
  pen.stroke();
  return paint.createPattern(tile, "repeat");
}
