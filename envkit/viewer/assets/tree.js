// Branches of one episode as lanes, as a graph of commits shows them: a lane for each end, which
// starts where it left another one, so shared turns are drawn once. A stretch of a lane has the
// colour of its value: the mean reward of all ends that contain it.
import { h, s, num, many, plain } from "./dom.js";
import { hue } from "./model.js";
import { chip } from "./parts.js";

const MANY_TURNS = 60, TICKS = 12, MOST_LANES = 100;

// Lanes in the order in which they are drawn: what left last stands next to its parent, so that no
// line crosses another. A lane is {from, shared, end, reward}; `from` is another lane or null.
export function inOrder(lanes) {
  const children = new Map(lanes.map(lane => [lane, []])), roots = [];
  for (const lane of lanes) (children.get(lane.from) ?? roots).push(lane);
  for (const own of children.values()) own.reverse().sort((a, b) => a.shared - b.shared);  // the last one is taken first
  const found = [], seen = new Set();
  for (const root of [...roots, ...lanes]) {  // a circle has no root, and is drawn too
    const waiting = [root];
    while (waiting.length) {
      const lane = waiting.pop();
      if (seen.has(lane)) continue;
      seen.add(lane);
      found.push(lane);
      waiting.push(...children.get(lane));
    }
  }
  return found;
}
// Stretches of each lane between the places where others left it, with their value.
function stretches(ordered) {
  const below = new Map(ordered.map(lane => [lane, [lane]])), rows = new Map(ordered.map((lane, i) => [lane, i]));
  const isChild = lane => rows.get(lane.from) < rows.get(lane);
  for (const lane of [...ordered].reverse()) if (isChild(lane)) below.get(lane.from).push(...below.get(lane));
  return ordered.map((lane, i) => {
    const own = ordered.filter(one => one.from === lane && isChild(one)), cuts = [...new Set(own.map(one => one.shared))].filter(x => x > lane.shared && x < lane.end).sort((a, b) => a - b);
    return [lane.shared, ...cuts].map((start, k) => {
      const end = cuts[k] ?? lane.end, ends = [lane, ...own.filter(one => one.shared >= end).flatMap(one => below.get(one))], rewards = ends.map(one => one.reward).filter(x => x !== null);
      return { row: i, start, end, count: ends.length, value: rewards.length ? rewards.reduce((a, b) => a + b, 0) / rewards.length : null };
    });
  });
}
function graph(ordered, row, { rows, parts, last }) {
  const lane = ordered[row], at = turn => 100 * turn / last, here = at(lane.shared), lines = [];
  const line = (d, value, title) => lines.push(s("path", { d, class: value === null ? "none" : "", vars: hue(value) }, title ? s("title", {}, title) : null));
  ordered.forEach((other, k) => {  // what passes this row from a parent above to a child below
    const parent = rows.get(other.from);
    if (!(parent < k) || row < parent || row > k) return;
    const x = at(other.shared), value = parts[k][0].value;
    if (row === k) line(`M${x} 0C${x} 50 ${x} 50 ${at(other.shared + .5)} 50`, value);
    else line(row === parent ? `M${x} 50V100` : `M${x} 0V100`, value);
  });
  parts[row].forEach((part, k) => line(`M${k || lane.from ? at(part.start + (k ? 0 : .5)) : here} 50H${at(part.end - (k === parts[row].length - 1 ? .5 : 0))}`, part.value,
    `turns ${part.start + 1} to ${part.end}: ${part.value === null ? "no reward" : `mean reward ${num(part.value)}`} of ${many(part.count, "branch", "branches")}`));
  const dots = last > MANY_TURNS ? [] : Array.from({ length: Math.max(0, lane.end - lane.shared) }, (_, i) => {
    const turn = lane.shared + i, part = parts[row].find(one => turn < one.end) ?? parts[row].at(-1);
    return h(`i${part.value === null ? ".none" : ""}`, { vars: { "--x": `${at(turn + .5)}%`, ...hue(part.value) } });
  });
  return h("span.graph", { "aria-hidden": "true" }, s("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none" }, lines), dots);
}
// `lanes` have {name, href, about, isCurrent, isOther, isDim, picture} besides; `label` names the list.
export function laneList(lanes, label) {
  const ordered = inOrder(lanes).slice(0, MOST_LANES), last = ordered.reduce((most, lane) => Math.max(most, lane.end), 1), every = Math.ceil(last / TICKS);
  const drawing = { rows: new Map(ordered.map((lane, i) => [lane, i])), parts: stretches(ordered), last }, rest = lanes.length - ordered.length;
  const ticks = Array.from({ length: last }, (_, i) => i + 1).filter(turn => turn === 1 || turn % every === 0);
  return h("div.tree", {},
    h("div.turnaxis", { "aria-hidden": "true" }, h("span.graph", {}, ticks.map(turn => h("span", { vars: { "--x": `${100 * (turn - .5) / last}%` } }, num(turn, 0))))),
    h("ol.lanes", { "aria-label": label }, ordered.map((lane, row) => h(`li${lane.isDim ? ".dim" : ""}${lane.isOther ? ".other" : ""}`, {}, h("a", { href: lane.href, "aria-current": lane.isCurrent ? "page" : null,
      "aria-label": [lane.name, lane.from ? `leaves ${lane.from.name} before turn ${lane.shared + 1}` : "", lane.reward === null ? "no reward" : `reward ${num(lane.reward)}`, lane.about].filter(Boolean).join(", ") },
    h("b.lanename", {}, lane.name), graph(ordered, row, drawing), chip(lane), h("span.about.cut", { title: plain(lane.about) }, plain(lane.about)), lane.picture ?? null)))), rest ? h("p.muted.wholelane", {}, `and ${many(rest, "more leaf", "more leaves")}`) : null);
}
