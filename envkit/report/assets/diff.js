"use strict";
// Two runs side by side: the list of pairs, and one pair.

const index = block("index");
const FLIP_KINDS = { "now solved": "good", "fault gone": "good", "now failed": "bad", "new fault": "bad", "other task": "warn" };
const gained = (row) => numeric(row.reward_second) - numeric(row.reward_first);
const ORDERS = {
  loss: gained,
  gain: (row) => -gained(row),
  turns: (row) => row.turns_first - row.turns_second,
  tokens: (row) => row.tokens_first - row.tokens_second,
};

const list = new RowList(readRows(index, ["search", "seed", "task"]), {
  matches: (row, { text, flip }) => row.search.includes(text)
    && (!flip || (flip === "nothing" ? row.flips.length === 0 : row.flips.includes(flip))),
  order: (row, name) => (ORDERS[name] ? ORDERS[name](row) : 0),
  place: (row) => `p${row.pair}`,
  draw: drawRow,
});

const change = (before, after) => (before === after ? before : [before, el("span", { class: "muted" }, " → "), after]);
const flipBadges = (row) => (row.flips.length ? row.flips.map((flip) => badge(flip, FLIP_KINDS[flip]))
  : el("span", { class: "muted" }, "nothing"));

function drawRow(row, href) {
  const cell = (first, second, kind) => el("td", { class: `n ${kind || ""}` }, change(first, second));
  const stops = [badge(row.stop_first, row.kind_first)];
  if (row.stop_first !== row.stop_second) stops.push(badge(row.stop_second, row.kind_second));
  return [
    el("td", { class: "n" }, el("a", { href, "aria-label": `pair ${row.pair}` }, String(row.pair))),
    el("td", { class: "task" }, el("div", { dir: "auto" }, row.task)),
    cell(number(row.reward_first), number(row.reward_second)), el("td", {}, stops),
    cell(String(row.turns_first), String(row.turns_second), "wide"),
    cell(grouped(row.tokens_first), grouped(row.tokens_second), "wide"),
    el("td", {}, flipBadges(row)),
  ];
}

async function loadPair(wanted) {
  const row = list.rows[wanted - 1];
  if (row === undefined) return null;
  const [first, second] = await Promise.all([unpack(`data-a${row.first}`), unpack(`data-b${row.second}`)]);
  return { row, first, second };
}

const columns = (first, second) => el("div", { class: "columns" }, el("div", {}, first), el("div", {}, second));

/** Returns how many messages before the first reply the two have in common. */
function sharedMessages(left, right) {
  let count = 0;
  while (count < left.length && count < right.length && left[count][1] === null
    && JSON.stringify(left[count][0]) === JSON.stringify(right[count][0])) count += 1;
  return count;
}

function sideCard(entry, letter, isSame, place, isFirst) {
  if (entry === undefined) return isFirst && el("p", { class: "muted ended" }, `${letter} has ended`);
  const card = messageCard(...entry, place);
  if (!isSame) card.classList.add("differs");
  card.querySelector("header").prepend(el("span", { class: "letter" }, letter));
  return card;
}

/** Draws both conversations, message by message beside each other. */
function sideBySide(first, second, place) {
  const [left, right] = [withTurns(first), withTurns(second)];
  const shared = sharedMessages(left, right);
  const parts = left.slice(0, shared).map((entry) => messageCard(...entry, place));
  if (shared > 0) parts.unshift(el("p", { class: "muted" }, "the same in both:"));
  for (let n = shared; n < Math.max(left.length, right.length); n += 1) {
    const [a, b] = [left[n], right[n]];
    const isSame = a !== undefined && b !== undefined && JSON.stringify(a[0]) === JSON.stringify(b[0]);
    parts.push(columns(sideCard(a, "A", isSame, place, n === left.length), sideCard(b, "B", isSame, place, n === right.length)));
  }
  return parts;
}

function drawPair({ row, first, second }) {
  const place = (turn) => viewer.turnAddress(turn);
  const side = (letter, episode, name) => [
    ...head(episode, `${letter}: ${name}, episode ${episode.number}`),
    episode.turns.length > 0 && el("div", { class: "times" }, waterfall(episode.turns, place)),
  ].filter(Boolean);
  const [a, b] = index.names;
  return [
    el("h1", {}, `Pair ${row.pair}`),
    el("p", { class: "badges" }, "changed: ", flipBadges(row)),
    columns(side("A", first, a), side("B", second, b)),
    el("h2", {}, "Conversations"), ...sideBySide(first, second, place),
    el("h2", {}, "Tokens"), columns(ledger(first), ledger(second)),
  ];
}

const copy = () => {
  const { row, first, second } = viewer.current;
  return copyText(JSON.stringify({ changed: row.flips, first, second }, null, 2), "copied both as JSON");
};

const viewer = new Viewer(list, {
  letter: "p",
  noun: "pair",
  load: loadPair,
  draw: drawPair,
  turns: ({ first, second }) => Math.max(first.turns.length, second.turns.length),
  get actions() { return [button("copy as JSON", copy)]; },
  keys: { c: copy },
});
viewer.start();
