// The tree of an episode: paths from its first turn to each end, where its history was written
// anew, and other leaves of its tree. envkit/viewer/sequences.py says what a sequence holds.
import { h, num, many, plain, lazily } from "./dom.js";
import { link } from "./address.js";
import { sharedTurns, stopWords } from "./model.js";
import { chip } from "./parts.js";
import { textOf } from "./tokens.js";
import { laneList } from "./tree.js";

const LONGEST = 20_000, MOST_LEAVES = 9, MOST_COMPARED = 6, MOST_BRANCHES = 60, SMALL = matchMedia("(max-width: 760px)");
export const ends = sequences => sequences.flatMap((_, i) => sequences.some(one => one.parent === i) ? [] : [i]);

// The turns that lead to the end of a sequence. Each has its own place in the tree, and the
// sequence that starts there, if one does.
export function pathTo(sequences, at) {
  const one = sequences[at], isFirst = one.parent === null || one.parent >= at, own = one.turns.map((turn, i) => ({ ...turn, place: `${at}.${i}`, starts: i || !at ? null : one }));
  return { turns: isFirst ? own : [...pathTo(sequences, one.parent).turns.slice(0, one.branch_turn), ...own], final: one.final };
}
const rewardOf = (data, at) => data.sequences[at].reward ?? data.reward;
export const branchName = (data, at) => `branch ${ends(data.sequences).indexOf(at) + 1}`;
const inCommon = (a, b) => { const i = a.findIndex((turn, n) => turn.place !== b[n]?.place); return i < 0 ? a.length : i; };

// Other ends of the tree that an episode belongs to, with the turns that both have: leaves of a tree
// rollout, and branches within the record. `query` is the address of a comparison.
export function relatives(view) {
  const { data, row, at } = view;
  if (view.isBranched) return ends(data.sequences).filter(end => end !== at).slice(0, MOST_BRANCHES).map(end => ({ name: branchName(data, end), reward: rewardOf(data, end), shared: inCommon(view.turns, pathTo(data.sequences, end).turns), query: { vs: row.number, vb: end } }));
  return row.of.isTree ? row.of.members.filter(m => m !== row).map(m => ({ row: m, name: m.name, reward: m.reward, shared: sharedTurns(row, m), query: { vs: m.number } })) : [];
}
// The turns that two views of one tree have in common.
export const commonTurns = (view, other) => view.row === other.row ? inCommon(view.turns, other.turns) : view.run === other.run ? sharedTurns(view.row, other.row) : 0;

export function leafLanes(run, members, { current, other, isDim, pictures } = {}) {
  const lanes = new Map(members.map(m => [m, { shared: m.shared, end: m.shared + m.replies, reward: m.reward, name: m.name, href: link([run, "e", m.number], { t: m.shared ? m.shared + 1 : "" }), about: stopWords(m.stop), isCurrent: m === current, isOther: m === other, isDim: isDim?.(m), picture: pictures?.node(m.thumbnail) }]));
  for (const [m, lane] of lanes) { lane.from = lanes.get(m.from) ?? null; if (!lane.from && m.from) lane.about = `fork of an episode that is not here · ${lane.about}`; }
  return [...lanes.values()];
}
function branchLanes(view, run) {
  const { data, row, at } = view, paths = ends(data.sequences).slice(0, MOST_BRANCHES).map(end => ({ end, turns: pathTo(data.sequences, end).turns })), lanes = [];
  for (const { end, turns } of paths) {
    const shared = lanes.map((_, i) => inCommon(turns, paths[i].turns)), most = Math.max(0, ...shared), from = most ? lanes[shared.indexOf(most)] : null, left = turns[most]?.starts;
    lanes.push({ from, shared: most, end: turns.length, reward: rewardOf(data, end), name: branchName(data, end), about: [turns.at(-1)?.agent, left?.reason].filter(Boolean).join(" · "), href: link([run, "e", row.number], { b: end }), isCurrent: end === at });
  }
  return lanes;
}
// The tree of an episode, folded where it is large; null for an episode without one.
export function treeFold(view, run, other) {
  const lanes = view.isBranched ? branchLanes(view, run) : view.row.of.isTree ? leafLanes(run, view.row.of.members, { current: view.row, other: other?.row }) : [];
  return lanes.length < 2 ? null : h("details.treefold", { open: lanes.length <= MOST_LEAVES && !other && !SMALL.matches }, h("summary", {}, view.isBranched ? branchWords(lanes) : treeWords(lanes)), laneList(lanes, "Branches"));
}
function branchWords(lanes) {
  const roots = lanes.filter(lane => !lane.from).length;
  if (roots < 2) return treeWords(lanes);
  return `${many(roots, "conversation")}${lanes.length > roots ? ` with ${many(lanes.length, "branch", "branches")}` : ""}`;
}
export function treeWords(lanes) {
  const rewards = lanes.map(lane => lane.reward).filter(x => x !== null), roots = lanes.filter(lane => !lane.from).length;
  return [roots > 1 ? `${many(roots, "tree")} with ` : "Tree with ", many(lanes.length, "leaf", "leaves"), rewards.length ? `: mean reward ${num(rewards.reduce((a, b) => a + b, 0) / rewards.length)}, best ${num(rewards.reduce((a, b) => Math.max(a, b)))}` : ""].join("");
}
// Where an episode and other leaves part: who continues otherwise, each with a comparison.
export function parting(view, n, to) {
  const parted = view.relatives.filter(one => one.shared === n - 1), { row } = view;
  if (!parted.length || (n === 1 && !parted.some(one => one.row?.from === row || one.row === row.from))) return null;
  const isFork = !view.isBranched && row.from && row.shared === n - 1;
  return h("div.parting", {}, h("b", {}, isFork ? `Forked from ${row.from.name}.` : `${many(parted.length, "other branch leaves", "other branches leave")} before this turn.`), h("span", {}, isFork && n > 1 ? " The turns above belong to it; only it trains them." : ""),
    h("span.line", {}, h("span.muted", {}, "Compare with"), parted.slice(0, MOST_COMPARED).map(one => h("a.button.small", { href: to({ ...one.query, t: n }) }, `${one.name} `, chip(one))), parted.length > MOST_COMPARED ? h("span.muted", {}, `and ${num(parted.length - MOST_COMPARED, 0)} more`) : null));
}

// Equal neighbours, such as the placeholders of an image, are said once.
function promptText(ids, vocabulary) {
  const parts = [];
  for (let i = 0, end; i < ids.length; i = end) {
    for (end = i + 1; ids[end] === ids[i]; end++);
    const text = textOf(ids[i], vocabulary);
    parts.push(end - i > 3 ? `${text}×${end - i} ` : text.repeat(end - i));
  }
  const all = parts.join("");
  return all.length > LONGEST ? `${all.slice(0, LONGEST)} … and ${num(all.length - LONGEST, 0)} more characters` : all;
}
const spanOf = ([first, last]) => first === last ? `turn ${first}` : `turns ${first} to ${last}`;
function historyList(view, history) {
  return h("ol.history", {}, history.map(entry => entry.kept ? h("li.muted", {}, `${many(entry.kept, "message")} as before (${spanOf(entry.turns)})`)
    : entry.dropped ? h("li.gone", {}, `${many(entry.dropped, "message")} left out (${spanOf(entry.turns)})`)
    : h("li", {}, h("span.role", {}, `${entry.role}, rewritten`), h("p.said", { dir: "auto" }, plain(entry.text.slice(0, LONGEST))), entry.images.length ? h("span.muted", {}, many(entry.images.length, "image")) : null)));
}
// Images of the history in the order in which they were first seen.
function shownImages(view, { images, dropped }) {
  if (!images.length && !dropped.length) return null;
  const small = (isGone, [sha, turn]) => h(`li${isGone ? ".gone" : ""}`, {}, view.draw(sha, [], { label: `Screenshot of turn ${turn}, ${isGone ? "dropped" : "kept"}`, isSmall: true }), h("span.muted", {}, isGone ? h("s", {}, `turn ${turn}`) : `turn ${turn}`));
  return h("ol.imagestrip", { "aria-label": "Images of the history" }, [...dropped.map(one => [true, one]), ...images.map(one => [false, one])].sort((a, b) => a[1][1] - b[1][1]).map(one => small(...one)));
}
const REASONS = { __proto__: null, "keep last images": "Old images became a short text.", "keep last turns": "Old turns were left out.", summarise: "The model continues from its own summary." };
export function rewritten(view, turn) {
  const { prompt, reason } = turn.starts ?? {}, { vocabulary } = view.data;
  if (!turn.starts) return null;
  if (!prompt) return h("p.rewrite", {}, h("b", {}, "Branch starts here"), reason ? ` · ${plain(reason)}` : "");
  const { images, dropped, history, before, tokens } = prompt;
  const counts = [before ? `${num(before, 0)} → ${many(tokens, "token")}` : many(tokens, "token"), dropped.length ? `${num(dropped.length, 0)} of ${many(dropped.length + images.length, "image")} dropped` : images.length ? many(images.length, "image") : ""].filter(Boolean).join(" · ");
  const note = vocabulary ? null : h("p.muted", {}, "envkit ui and envkit report take --model to show text.");
  return h("div.rewrite", {}, h("p", {}, h("b", {}, turn.starts.parent === null ? "Another conversation" : "History rewritten"), ` · ${plain(reason)} · ${counts}`), REASONS[reason] ? h("p.muted", {}, REASONS[reason]) : null, shownImages(view, prompt),
    history.length ? lazily("What the model saw from then on", () => historyList(view, history)) : null,
    lazily(vocabulary ? "The same as the model's text" : "The same as token ids", () => h("div", {}, note, h("pre", { tabindex: 0 }, promptText(turn.tokens.context.slice(0, tokens), vocabulary)))));
}
