// What tests/support/screens.py runs in a page: the places of texts that change, the layout, and how two pictures differ.
({
  // Boxes of texts that change with the time, to the end of their line, and of the elements of `selector`.
  changing(selector) {
    const found = [];
    const add = (left, top, width, height) => {
      if (width > 0 && height > 0) found.push([left + scrollX, top + scrollY, width, height]);
    };
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
      if (!/\d\s?(s|m|h|d)\b|\d\d:\d\d/.test(walk.currentNode.data)) continue;
      let block = walk.currentNode.parentElement;
      while (getComputedStyle(block).display.startsWith("inline")) block = block.parentElement;
      const end = block.getBoundingClientRect().right;
      const range = document.createRange();
      range.selectNodeContents(walk.currentNode);
      for (const box of range.getClientRects()) add(box.left, box.top, end - box.left, box.height);
    }
    for (const one of selector ? document.querySelectorAll(selector) : []) {
      const box = one.getBoundingClientRect();
      add(box.left, box.top, box.width, box.height);
    }
    return found;
  },

  // [name, left, top, width, height] of what a page is made of, in its order; headings have their first text.
  layout() {
    const parts = "header, nav, main, h1, h2, section, .card, .entry, canvas, .plot, .legend, .chart, table, pre, details, button, input";
    return [...document.querySelectorAll(parts)].filter((one) => one.checkVisibility() && !one.classList.contains("hidden")).map((one) => {
      const box = one.getBoundingClientRect();
      const kind = one.classList[0] ? `${one.tagName.toLowerCase()}.${one.classList[0]}` : one.tagName.toLowerCase();
      const text = /^H\d$/.test(one.tagName) ? ` ${one.firstChild?.textContent.trim() ?? ""}` : "";
      return [kind + text, ...[box.left + scrollX, box.top + scrollY, box.width, box.height].map(Math.round)];
    });
  },

  // The largest area in which two pictures differ: { blocks, box }; blocks of 16 px, whose mean colours are compared.
  async difference([one, other, masks]) {
    const BLOCK = 8, MOST = 14; // in pixels of half the size; levels of 255 by which a mean may differ
    const sums = async (data) => {
      const image = new Image();
      image.src = `data:image/png;base64,${data}`;
      await image.decode();
      const [wide, high] = [image.width, image.height];
      const canvas = new OffscreenCanvas(wide, high);
      const pen = canvas.getContext("2d");
      pen.drawImage(image, 0, 0);
      const { data: pixels } = pen.getImageData(0, 0, wide, high);
      const [w, h] = [wide >> 1, high >> 1];
      const found = [0, 1, 2].map(() => new Float64Array((w + 1) * (h + 1)));
      for (let y = 0; y < h; y += 1) {
        const rows = [0, 0, 0];
        for (let x = 0; x < w; x += 1) {
          const at = 4 * (2 * y * wide + 2 * x);
          for (let part = 0; part < 3; part += 1) {
            rows[part] += (pixels[at + part] + pixels[at + 4 + part] + pixels[at + 4 * wide + part] + pixels[at + 4 * wide + 4 + part]) / 4;
            found[part][(y + 1) * (w + 1) + x + 1] = found[part][y * (w + 1) + x + 1] + rows[part];
          }
        }
      }
      return { w, h, found };
    };
    const [a, b] = [await sums(one), await sums(other)];
    if (a.w !== b.w || Math.abs(a.h - b.h) > 0.05 * a.h) return { blocks: Infinity, box: [0, 0, 2 * b.w, 2 * b.h] };
    const mean = ({ w, found }, part, x, y) => {
      const at = (left, top) => found[part][top * (w + 1) + left];
      return (at(x + BLOCK, y + BLOCK) - at(x, y + BLOCK) - at(x + BLOCK, y) + at(x, y)) / BLOCK ** 2;
    };
    const high = Math.min(a.h, b.h);
    // Fonts are drawn a little otherwise elsewhere: two pixels of a shift are no difference.
    const alike = (x, y) => [0, -1, 1].some((down) => [0, -1, 1].some((right) => {
      const [left, top] = [x + right, y + down];
      if (left < 0 || top < 0 || left + BLOCK > b.w || top + BLOCK > high) return false;
      return [0, 1, 2].every((part) => Math.abs(mean(a, part, x, y) - mean(b, part, left, top)) <= MOST);
    }));
    const masked = (x, y) => masks.some(([left, top, width, height]) => 2 * (x + BLOCK) > left - 2 && 2 * x < left + width + 2
      && 2 * (y + BLOCK) > top - 2 && 2 * y < top + height + 2);
    const different = new Set();
    const columns = Math.floor(a.w / BLOCK);
    for (let y = 0; y + BLOCK <= high; y += BLOCK) {
      for (let x = 0; x + BLOCK <= a.w; x += BLOCK) {
        if (!alike(x, y) && !masked(x, y)) different.add((y / BLOCK) * columns + x / BLOCK);
      }
    }
    let largest = { blocks: 0, box: [] };
    while (different.size) {
      const group = [different.values().next().value];
      different.delete(group[0]);
      for (const at of group) {
        for (const down of [-1, 0, 1]) for (const right of [-1, 0, 1]) {
          const next = at + down * columns + right;
          if (Math.abs((next % columns) - (at % columns)) <= 1 && different.delete(next)) group.push(next);
        }
      }
      if (group.length > largest.blocks) {
        const [xs, ys] = [group.map((at) => at % columns), group.map((at) => Math.floor(at / columns))];
        const [left, top] = [Math.min(...xs), Math.min(...ys)];
        largest = { blocks: group.length, box: [left, top, Math.max(...xs) - left + 1, Math.max(...ys) - top + 1].map((size) => 2 * BLOCK * size) };
      }
    }
    return largest;
  },
})
