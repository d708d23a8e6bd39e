// What changed from one run to another: figures, then the pairs; a pair opens side by side.
import { h, num, signed, many, plain, percent, isNumber, busy, heldFocus } from "./dom.js";
import { link, go, say } from "./address.js";
import { stopWords } from "./model.js";
import { chip, figure, hitLine, interval, opensRows, table, taskText } from "./parts.js";
import { notes } from "./overview.js";
import { copyLink, exportButton, saveCsv } from "./export.js";

const STEP = 60, MOST_LARGEST = 8;
const GOOD = ["now solved", "fault gone"], BAD = ["now failed", "new fault"];
const flipBadge = flip => h(`span.flip${GOOD.includes(flip) ? ".good" : BAD.includes(flip) ? ".bad" : ""}`, {}, flip);
const rewardChange = ({ first, second }) => isNumber(first.reward) && isNumber(second.reward) ? second.reward - first.reward : null;
const COLUMNS = [["pair", "Pair", p => p.pair], ["task", "Task", p => p.first.task], ["before", "Reward before", p => p.first.reward], ["after", "after", p => p.second.reward], ["change", "Change", p => rewardChange(p)],
  ["stop", "Ended by", p => p.second.stop], ["turns", "Turns", p => p.second.turns - p.first.turns], ["tokens", "Tokens", p => p.second.sampled - p.first.sampled], ["flips", "What changed", p => p.flips.length]];

function means(diff) {
  return diff.means.map(m => {
    const size = Math.abs(m.mean), shown = x => signed(x, size >= 100 ? 0 : size >= 10 ? 1 : 3);
    const most = Math.max(size, Math.abs(m.low ?? 0), Math.abs(m.high ?? 0)) || 1;
    return figure(m.name, shown(m.mean), `${isNumber(m.low) ? `${shown(m.low)} to ${shown(m.high)} (95%), ` : "no interval, "}${many(m.seeds, "seed")}`, { extra: h("div.zeroed", {}, interval(m.low, m.mean, m.high, most, -most)) });
  });
}
function scores({ scores: { wins, losses, ties, unscored } }) {
  return figure("wins, losses, ties", [num(wins), " / ", num(losses), " / ", num(ties)], `pairs in which the second reward is higher, lower, equal${unscored ? `; ${many(unscored, "pair")} without two rewards` : ""}`);
}
// The pairs whose rewards differ most, with a link to each episode and to both.
function largest(pairs, names) {
  const changed = pairs.filter(rewardChange), most = [...changed].sort((a, b) => Math.abs(rewardChange(b)) - Math.abs(rewardChange(a))).slice(0, MOST_LARGEST);
  return h("section.card", {}, h("h2", {}, "Largest changes"), most.length ? h("ul.changes", {}, most.map(pair => h("li", {}, h(`span.flip${rewardChange(pair) > 0 ? ".good" : ".bad"}`, {}, signed(rewardChange(pair))),
    h("span.cut", { dir: "auto", title: plain(pair.first.task) }, plain(pair.first.task)), h("span.muted", {}, pair.first.seed === null ? "" : `seed ${pair.first.seed}`),
    h("span.linked", {}, h("a", { href: link([names[0], "e", pair.first.number]) }, "before"), h("a", { href: link([names[1], "e", pair.second.number]) }, "after"), h("a", { href: bothLink(pair, names) }, "side by side"))))) : h("p.muted", {}, "No reward changed."));
}
const bothLink = ({ first, second }, names) => link([names[0], "e", first.number], { vs: second.number, in: names[1] });
const pairsTable = (pairs, names) => [["pair", "task", "seed", `episode in ${names[0]}`, `episode in ${names[1]}`, "reward before", "reward after", "change", "ended before", "ended after", "turns before", "turns after", "tokens before", "tokens after", "what changed"],
  ...pairs.map(p => [p.pair, p.first.task, p.first.seed ?? "", p.first.number, p.second.number, p.first.reward, p.second.reward, rewardChange(p), p.first.stop, p.second.stop, p.first.turns, p.second.turns, p.first.sampled, p.second.sampled, p.flips.join("; ")])];
function outcomes({ outcomes: { kinds, counts } }, names) {
  return h("section.card", {}, h("h2", {}, "Outcomes"), h("p.muted", {}, `Rows: ${plain(names[0])}. Columns: ${plain(names[1])}.`),
    table(["outcome", ...kinds], kinds.map((kind, i) => [kind, ...counts[i].map((n, k) => h(i === k ? "span.muted" : n ? "b" : "span", {}, num(n)))])));
}
function row(pair, names, hit, query) {
  const { first, second } = pair, change = (a, b) => b === a ? num(b) : [h("span.muted", {}, `${num(a)} → `), num(b)];
  const href = bothLink(pair, names), step = rewardChange(pair);
  return h("tr", {}, h("td.n", { "data-l": "pair" }, num(pair.pair)), h("th.taskcell", { scope: "row" }, h("a", { href }, taskText(first.task, query)), h("div.muted", {}, first.seed === null ? "" : `seed ${first.seed}`), hit ? hitLine(hit, query) : null),
    h("td.n", { "data-l": "before" }, chip(first)), h("td.n", { "data-l": "after" }, chip(second)), h("td.n", { "data-l": "change" }, step === null ? "–" : signed(step)),
    h("td.ended", { "data-l": "ended by" }, first.stop === second.stop ? null : h("span.muted", {}, `${stopWords(first.stop)} →`), first.stop === second.stop ? null : " ", h("span", {}, stopWords(second.stop))),
    h("td.n", { "data-l": "turns" }, change(first.turns, second.turns)), h("td.n", { "data-l": "tokens" }, change(first.sampled, second.sampled)),
    h("td", { "data-l": "changed" }, pair.flips.length ? pair.flips.map(flipBadge) : h("span.muted", {}, "nothing")));
}
// The comparison with its two runs; null without one. Runs may be growing, so they are read after
// the pairs and hold the episodes of all of them, unless a run was replaced: then it comes again.
export async function pairsOf(context, ...names) {
  const diff = await context.source.diff(...names);
  if (!diff) return null;
  const runs = await Promise.all(diff.names.map(context.newest));
  if (!runs.every(Boolean)) return null;
  const pairs = diff.rows.map(values => Object.fromEntries(diff.columns.map((name, i) => [name, values[i]])))
    .map(pair => ({ ...pair, first: runs[0].byNumber.get(pair.first), second: runs[1].byNumber.get(pair.second) }));
  return { diff, runs, pairs: pairs.filter(pair => pair.first && pair.second) };
}
// `again` asks for the comparison anew once a run has changed.
export function diffPage(context, found, query, again) {
  const { source } = context, { names } = found.diff, chosen = { first: query.first, second: query.second };
  const state = { q: "", flip: "", sort: "", dir: "", ...query }, body = h("div.scroll"), tally = h("p.tally.muted"), figures = h("div"), tools = h("div.tools");
  let { diff, runs, pairs } = found, hits = null, limit = STEP, kept = [], timer, asked = 0, filled = 0;
  const save = () => go([], { ...chosen, q: state.q.trim(), flip: state.flip, sort: state.sort, dir: state.sort ? state.dir : "" }, true);
  const refresh = () => busy(searched());
  async function searched() {
    const wanted = state.q.trim().toLowerCase(), turn = asked += 1;
    try {
      const both = wanted ? await Promise.all(names.map(name => source.search(name, wanted))) : null;
      if (turn !== asked) return;
      hits = both;
    } catch (error) { tally.textContent = plain(error.message); return; }
    draw();
  }
  function draw() {
    kept = pairs.filter(p => (!state.flip || p.flips.includes(state.flip)) && (!hits || hits[0].has(p.first.number) || hits[1].has(p.second.number)));
    const by = COLUMNS.find(c => c[0] === state.sort)?.[2], sign = state.dir === "down" ? -1 : 1;
    if (by) kept.sort((a, b) => { const [x, y] = [by(a), by(b)]; return x === null || y === null ? (x === null) - (y === null) : sign * (typeof x === "string" ? x.localeCompare(y) : x - y); });
    context.list(runs[0], kept.map(p => p.first));
    const head = COLUMNS.map(([key, name]) => {
      const isChosen = state.sort === key;
      return h(`th${["task", "stop", "flips"].includes(key) ? "" : ".n"}`, { scope: "col", "aria-sort": isChosen ? (sign < 0 ? "descending" : "ascending") : null },
        h("button.sort", { type: "button", "data-sort": key, onclick: () => { state.dir = isChosen && sign > 0 ? "down" : "up"; state.sort = key; save(); draw(); body.querySelector(`[data-sort="${key}"]`)?.focus(); } }, name, h("i", { "aria-hidden": "true" }, isChosen ? (sign < 0 ? " ↓" : " ↑") : "")));
    });
    const query = state.q.trim().toLowerCase();
    body.replaceChildren(kept.length ? h("table.grid.episodes.list", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, kept.slice(0, limit).map(p => row(p, names, hits && (hits[0].get(p.first.number) ?? hits[1].get(p.second.number)), query))))
      : h("p.pad", {}, "Nothing matches. ", h("a", { href: link([], chosen) }, "Show all pairs")),
    kept.length > limit ? h("button.button.wideb", { type: "button", onclick: () => { limit += 10 * STEP; draw(); } }, `Show more of ${num(kept.length)}`) : "");
    tally.textContent = many(kept.length, "pair");
    say(tally.textContent);
  }
  const search = h("input", { type: "search", value: state.q, placeholder: "Search both runs", "aria-label": "Search both runs", oninput: event => { state.q = event.target.value; clearTimeout(timer); timer = setTimeout(() => { save(); refresh(); }, 80); } });
  const flips = () => h("div.toggle", { role: "group", "aria-label": "What changed" }, [["", "All", diff.pairs], ...diff.flips.map(([flip, n]) => [flip, flip, n])].map(([value, name, n]) => h("button", { type: "button", "aria-pressed": String(state.flip === value), onclick: event => {
    state.flip = value;
    for (const button of event.currentTarget.parentNode.children) button.setAttribute("aria-pressed", String(button === event.currentTarget));
    save();
    draw();
  } }, name, h("span.muted", {}, ` ${num(n)}`))));
  function fill() {
    const bars = [...diff.flips, ...(diff.alike ? [["nothing", diff.alike]] : [])];
    figures.replaceChildren(...[notes([...diff.notes, ...new Set(runs.flatMap(run => run.notes))]), h("section.figs", { "aria-label": "Differences" }, means(diff), scores(diff)), largest(pairs, names),
      h("div.two", {}, outcomes(diff, names), h("section.card", {}, h("h2", {}, "What changed in a pair"), h("p.muted", {}, "A pair may count in several."),
        h("ul.families", {}, bars.map(([flip, n]) => h("li", {}, h("span", {}, flip), h("span.bar.neutral", { vars: { "--n": n / diff.pairs } }), h("span", {}, `${num(n)} (${percent(n / diff.pairs)})`))))))].filter(Boolean));
    const old = tools.querySelector(".toggle"), fresh = flips();
    if (old) old.replaceWith(fresh); else tools.replaceChildren(search, fresh, exportButton("CSV", () => saveCsv(pairsTable(kept, names), "envkit-pairs.csv")), copyLink(), tally);
  }
  fill();
  opensRows(body);
  return { name: "diff", title: `What changed from ${names[0]} to ${names[1]}`, node: [
    h("div.head", {}, h("h1", {}, `What changed from ${plain(names[0])} to ${plain(names[1])}`), h("p.muted", {}, `Pairs have equal environment and seed. Differences are the second minus the first. The runs: `, h("a", { href: link([names[0]]) }, plain(names[0])), ", ", h("a", { href: link([names[1]]) }, plain(names[1])))),
    figures, h("h2.section", {}, "Pairs"), tools, body],
  get runs() { return runs; },
  enter: refresh, leave() { clearTimeout(timer); asked += 1; filled += 1; },
  async changed() {
    const turn = filled += 1, now = await again().catch(() => null);  // a run that grew may have to be read first; it changes again then
    if (turn !== filled || !now) return;
    ({ diff, runs, pairs } = now);
    const refocus = heldFocus();
    fill();
    await refresh();
    refocus();
  } };
}
