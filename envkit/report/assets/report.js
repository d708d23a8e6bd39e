"use strict";
// The report of one run.

const OUTCOMES = {
  solved: (row) => numeric(row.reward) > 0,
  failed: (row) => row.reward !== null && !(numeric(row.reward) > 0),
  none: (row) => row.reward === null,
};
const MARK_KINDS = { fault: "bad", broken: "bad" };

const list = new RowList(readRows(block("index"), ["id", "group", "task", "note"]), {
  matches: (row, { text, stop, outcome, marked }) => row.search.includes(text) && (!stop || row.stop === stop)
    && (!outcome || OUTCOMES[outcome](row)) && (!marked || row.marks.length > 0),
  order: (row, name) => (name === "reward" ? (row.reward === null ? Infinity : numeric(row.reward)) : -numeric(row[name])),
  place: (row) => `e${row.number}`,
  draw: drawRow,
});

function drawRow(row, href) {
  const cell = (text, kind) => el("td", { class: `n ${kind || ""}` }, text);
  return [
    el("td", { class: "n" }, el("a", { href, "aria-label": `episode ${row.number}` }, String(row.number))),
    el("td", { class: "task" }, el("div", { dir: "auto" }, row.task)), cell(number(row.reward)),
    el("td", {}, badge(row.stop, row.kind)), cell(String(row.turns)), cell(grouped(row.tokens), "wide"),
    cell(String(row.images), "wide"), cell(typeof row.seconds === "number" ? row.seconds.toFixed(2) : number(row.seconds), "wide"),
    el("td", { class: "wide" }, row.marks.map((mark) => badge(mark, MARK_KINDS[mark] || "warn"))),
  ];
}

const copy = () => copyText(JSON.stringify(viewer.current, null, 2), "copied as JSON");
const save = () => savePicture(viewer.current, `episode-${viewer.number}.png`);

function drawEpisode(episode) {
  const place = (turn) => viewer.turnAddress(turn);
  return [
    ...head(episode, `Episode ${episode.number}`), ...events(episode, place),
    ...(episode.turns.length ? [el("h2", {}, "Time"), waterfall(episode.turns, place)] : []),
    el("h2", {}, "Conversation"), ...conversation(episode, place),
    el("h2", {}, "Tokens"), ledger(episode),
  ];
}

const viewer = new Viewer(list, {
  letter: "e",
  noun: "episode",
  load: (wanted) => unpack(`data-e${wanted}`),
  draw: drawEpisode,
  turns: (episode) => episode.turns.length,
  get actions() { return [button("copy as JSON", copy), button("save as picture", save)]; },
  keys: { c: copy, s: save },
});
viewer.start();
