// A table of any length. Its rows are drawn in parts, and only parts near the screen are on the page.
// Two gaps of the height of the others make it scroll as if every row were there. While it scrolls,
// each frame draws a few rows, those on the screen first.
import { h } from "./dom.js";

const PART = 4;  // weight of a part
const SAMPLE = 4;  // parts at the start that tell how high the others may be
const FRAME = 8;  // weight of the parts that a frame draws
const FAR = 600;  // pixels around the screen that get rows

// `draw` makes the <tr> of a row, `weigh` says how much there is to draw. `old` is the table that
// this one replaces with about the same rows.
export function longTable(name, head, rows, { draw, weigh, old }) {
  const parts = [];
  rows.forEach((row, i) => {
    if (!parts.length || parts.at(-1).weight >= PART) parts.push({ from: i, rows: [], weight: 0, height: 0, body: null });
    parts.at(-1).rows.push(row);
    parts.at(-1).weight += weigh(row);
  });
  const gap = () => h("tbody", { "aria-hidden": "true" }, h("tr.gap", {}, h("td", { colspan: head.length })));
  const above = gap(), below = gap(), table = h(name, { "aria-rowcount": rows.length + 1 }, h("thead", {}, h("tr", { "aria-rowindex": 1 }, head)));
  let unit = old?.unit ?? 0, first = 0, end = 0;  // the parts on the page
  let waiting = 0;
  const heightOf = part => part.height || unit * part.weight;
  // The parts between two heights of the rows.
  function between(low, high) {
    let y = 0, from = parts.length - 1, to = 1;
    parts.forEach((part, i) => {
      if (y < high) to = i + 1;
      y += heightOf(part);
      if (y > low) from = Math.min(from, i);
    });
    return [Math.min(from, to - 1), to];
  }
  function put(body, before) {
    if (body.parentNode !== table || body.nextSibling !== before) table.insertBefore(body, before);
    return body;
  }
  // Puts a gap of the height of some parts before a node, none if there are no parts.
  function close(body, hidden, before) {
    if (!hidden.length) { body.remove(); return before; }
    body.style.setProperty("--gap", `${hidden.reduce((sum, part) => sum + heightOf(part), 0)}px`);
    return put(body, before);
  }
  function measure() {
    const drawn = parts.slice(first, end), sum = key => drawn.reduce((all, part) => all + part[key], 0);
    for (const part of drawn) part.height = part.body.getBoundingClientRect().height;
    unit ||= sum("height") / (sum("weight") || 1);  // once: another estimate of the rest would move the screen
  }
  function show(from, to) {
    parts.slice(first, end).forEach((part, i) => { if (first + i < from || first + i >= to) { part.body.remove(); part.body = null; } });
    let next = close(below, parts.slice(to), null);
    for (const part of parts.slice(from, to).reverse()) {
      part.body ??= h("tbody", {}, part.rows.map((row, i) => { const node = draw(row); node.setAttribute("aria-rowindex", part.from + i + 2); return node; }));
      next = put(part.body, next);
    }
    [first, end] = [from, to];
    close(above, parts.slice(0, from), next);
  }
  // Draws parts of about this weight, from the screen outwards.
  function update(room) {
    measure();
    const top = table.getBoundingClientRect().top + table.tHead.offsetHeight, screen = between(-top, innerHeight - top), around = between(-FAR - top, innerHeight + FAR - top);
    const isAway = end <= screen[0] || first >= screen[1];
    let from = isAway ? screen[0] : Math.max(first, around[0]), to = isAway ? from : Math.min(end, around[1]);
    for (const [low, high] of [screen, around]) {
      for (; room > 0 && to < high; to += 1) room -= parts[to].weight;
      for (; room > 0 && from > low; room -= parts[from].weight) from -= 1;
    }
    if (from !== first || to !== end) show(from, to);
    if (from > around[0] || to < around[1]) soon();
  }
  // A scroll event comes before the frame's callbacks, so this draws in the frame that is due.
  function soon() {
    table.setAttribute("aria-busy", "true");
    waiting ||= requestAnimationFrame(() => {
      waiting = 0;
      update(FRAME);
      if (!waiting) table.removeAttribute("aria-busy");
    });
  }
  function resized() {
    for (const part of parts) part.height = 0;
    soon();
  }
  const options = { capture: true, passive: true };
  return { table, get unit() { return unit; },
    // To be called once the table is on the page.
    start() {
      show(0, Math.min(SAMPLE, parts.length));
      measure();
      show(0, end);
      update(Infinity);
      addEventListener("scroll", soon, options);
      addEventListener("resize", resized);
    },
    stop() {
      cancelAnimationFrame(waiting);
      removeEventListener("scroll", soon, options);
      removeEventListener("resize", resized);
    } };
}
