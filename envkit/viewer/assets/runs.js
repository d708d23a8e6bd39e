// The runs of a folder: a table with one scale for all rewards, grouped, sorted and chosen by the
// address. Certificates and evaluations of the folder follow it.
import { h, num, many, plain, isNumber } from "./dom.js";
import { link, go, joined, say, split } from "./address.js";
import { hue, isFault, stopWords } from "./model.js";
import { colourAt, columnChooser, interval } from "./parts.js";
import { METRICS, byName, environmentsOf, fixed, named, overRunsText, prefixOf, scaleOf, shownMetric, spark, stateBadge, stopOrder, stopsBar } from "./charts.js";
import { documents } from "./documents.js";

const RUN_COLUMNS = {  // key: name, value to sort by, and whether it is shown unless chosen otherwise
  __proto__: null,
  environment: ["Environment", environmentsOf, false], policy: ["Policy", r => r.policy, false], seed: ["Seed", r => r.seed, false], step: ["Step", r => r.step, false],
  episodes: ["Episodes", r => r.episodes, true], reward: ["Reward", METRICS.reward.value, true], solved: ["Solved", METRICS.solved.value, true], signal: ["With signal", METRICS.signal.value, true],
  groups: ["Group means", null, true], turns: ["Turns", r => r.turns, true], stops: ["Ended by", null, true], spark: ["Reward over time", null, true],
  tokens: ["Tokens", r => r.tokens, false], seconds: ["Time", r => r.seconds, false], unread: ["Not understood", METRICS.unread.value, false], faults: ["Faults", r => r.faults, false], modified: ["Last written", r => r.modified, false],
};
const WORDY = ["environment", "policy", "groups", "stops", "spark", "reward"], USUAL = Object.keys(RUN_COLUMNS).filter(key => RUN_COLUMNS[key][2]);
const GROUPINGS = { __proto__: null, "": ["No groups", null], environment: ["Environment", environmentsOf], policy: ["Policy", r => r.policy || "unknown policy"], prefix: ["Name", r => prefixOf(r.name)] };

const written = time => time ? new Date(1000 * time).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }) : "–";
function progress(run) {
  const isShort = run.expected !== null && run.episodes < run.expected;
  return [num(run.episodes, 0), isShort ? h("span.muted", {}, ` of ${num(run.expected, 0)}`) : null,
    isShort ? h("progress", { max: run.expected, value: run.episodes, "aria-label": `${run.episodes} of ${run.expected} episodes` }) : null];
}
function rewardCell(run, [low, high]) {
  const { reward } = run;
  if (!reward) return h("span.muted", {}, "–");
  const half = isNumber(reward.low) ? h("span.muted", {}, ` ${fixed(reward.low, 2)} to ${fixed(reward.high, 2)}`) : null;
  return [h("b", {}, fixed(reward.mean, 2)), half, interval(reward.low, reward.mean, reward.high, high, low)];
}
const CELLS = {
  environment: run => plain(environmentsOf(run)), policy: run => plain(run.policy || "–"), seed: run => num(run.seed, 0), step: run => num(run.step, 0), episodes: progress,
  reward: (run, { scale }) => rewardCell(run, scale), solved: run => shownMetric(METRICS.solved, run), modified: run => written(run.modified),
  signal: run => run.groups.compared ? [num(run.groups.signal, 0), h("span.muted", {}, ` of ${num(run.groups.compared, 0)}`)] : "–",
  groups: run => !run.cells.length ? "–" : h("span.cells", { role: "img", "aria-label": `mean rewards of groups, best first: ${run.cells.map(x => num(x)).join(", ")}` }, run.cells.map(x => h("i", { vars: hue(x), title: num(x) }))),
  stops: (run, { order }) => run.episodes ? stopsBar(run, order, stopWords) : "–", spark: (run, { scale }) => spark(run.spark, scale),
};
const cellOf = (key, run, tools) => (CELLS[key] ?? (r => shownMetric(METRICS[key], r)))(run, tools);

export function runsPage(context, found, query) {
  const state = { q: "", by: "", sort: "modified", dir: "down", cols: "", pick: "", ...query };
  if (!GROUPINGS[state.by]) state.by = "";
  if (state.sort !== "name" && !RUN_COLUMNS[state.sort]?.[1]) state.sort = "modified";
  let { runs } = found, columns = split(state.cols).filter(key => RUN_COLUMNS[key]);
  if (!columns.length) columns = USUAL;
  const picked = new Set(split(state.pick)), body = h("div.scroll.wide"), tally = h("p.tally.muted"), rest = h("div"), colours = h("div"), message = h("div"), bar = h("div.picked"), controls = h("div.tools");
  const cols = () => columns.join() === USUAL.join() ? "" : joined(columns);
  const address = () => ({ q: state.q.trim(), by: state.by, sort: state.sort === "modified" && state.dir === "down" ? "" : state.sort, dir: state.sort === "modified" && state.dir === "down" ? "" : state.dir, cols: cols(), pick: joined(picked) });
  const save = () => go([], address(), true);

  function rowOf(run, tools) {
    const about = [!columns.includes("environment") && (run.environments.length || run.state !== "reading") && environmentsOf(run), !columns.includes("policy") && run.policy, !columns.includes("seed") && run.seed !== null && `seed ${run.seed}`].filter(Boolean).join(" · ");
    return h("tr", {}, h("td.pick", {}, h("input", { type: "checkbox", checked: picked.has(run.name), "aria-label": `Compare ${named(run)}`, "data-run": run.name })),
      h("th.taskcell", { scope: "row" }, h("a", { href: link([run.name]), dir: "auto" }, named(run)), stateBadge(run), about ? h("div.muted", {}, plain(about)) : null),
      columns.map(key => h(`td${WORDY.includes(key) ? "" : ".n"}.c-${key}`, { "data-l": RUN_COLUMNS[key][0].toLowerCase() }, cellOf(key, run, tools))));
  }
  function sorted(list) {
    const by = state.sort === "name" ? null : RUN_COLUMNS[state.sort][1], sign = state.dir === "down" ? -1 : 1;
    return [...list].sort((a, b) => {
      if (!by) return sign * byName(a, b);
      const [x, y] = [by(a), by(b)], [noX, noY] = [x, y].map(v => v === null || v === undefined);
      return noX || noY ? noX - noY : (sign * (typeof x === "string" ? x.localeCompare(y) : x - y)) || byName(a, b);
    });
  }
  function header(key, name, isSorted) {
    const isChosen = state.sort === key, isDown = state.dir === "down";
    const sort = () => { state.dir = isChosen && !isDown ? "down" : "up"; state.sort = key; save(); draw(); body.querySelector(`[data-sort="${key}"]`)?.focus(); };
    return h(`th${WORDY.includes(key) || key === "name" ? "" : ".n"}`, { scope: "col", "aria-sort": isChosen ? (isDown ? "descending" : "ascending") : null },
      isSorted ? h("button.sort", { type: "button", "data-sort": key, onclick: sort }, name, h("i", { "aria-hidden": "true" }, isChosen ? (isDown ? " ↓" : " ↑") : "")) : h("span.sort", {}, name));
  }
  function groupHead(label, members) {
    const texts = [METRICS.reward, METRICS.solved].map(metric => `${metric.name.toLowerCase()}: ${overRunsText(metric, members)}`).join(" · ");
    return h("tr.grouphead", {}, h("th", { scope: "rowgroup", colspan: columns.length + 2 }, h("b", { dir: "auto" }, plain(label)), h("span.muted", {}, ` ${texts}`)));
  }
  function draw() {
    const wanted = state.q.trim().toLowerCase(), kept = sorted(runs.filter(run => [run.name, run.policy, ...run.environments].some(text => text.toLowerCase().includes(wanted))));
    const tools = { scale: scaleOf(METRICS.reward, runs), order: stopOrder(runs) }, by = GROUPINGS[state.by][1], sets = new Map();
    for (const run of kept) { const key = by ? by(run) : ""; sets.set(key, [...sets.get(key) ?? [], run]); }
    const focused = document.activeElement?.dataset?.run;
    body.replaceChildren(kept.length ? h("table.grid.runs-table", {}, h("caption.vh", {}, "Runs"),
      h("thead", {}, h("tr", {}, h("th.pick", { scope: "col" }, h("span.vh", {}, "Compare")), header("name", "Run", true), columns.map(key => header(key, RUN_COLUMNS[key][0], RUN_COLUMNS[key][1])))),
      [...sets].map(([label, members]) => h(`tbody${by ? ".set" : ""}`, {}, by && (members.length > 1 || state.by !== "prefix") ? groupHead(label, members) : null, members.map(run => rowOf(run, tools))))) : empty(wanted));
    if (focused) [...body.querySelectorAll("[data-run]")].find(box => box.dataset.run === focused)?.focus();
    colours.replaceChildren(...(columns.includes("stops") && tools.order.length ? [h("ul.legend.across", { "aria-label": "Colours of what ended the episodes" }, tools.order.map((key, i) => h("li", {}, h(`i.${colourAt(i, isFault(key))}`), stopWords(key))))] : []));
    tally.textContent = many(kept.length, "run");
    controls.hidden = !runs.length;
    count();
  }
  const empty = wanted => h("div.pad", {}, wanted ? ["No run has this name. ", h("a", { href: "#/" }, "Show all runs")] : !found.is_scanned ? "Looking for runs …"
    : [h("p", {}, "No runs here yet. This page shows them when they start, such as this one:"), h("pre", {}, "envkit rollout canary-v0 --policy oracle -n 8")]);
  function count() {
    const names = runs.map(run => run.name).filter(name => picked.has(name));
    bar.replaceChildren(...(names.length ? [h("span", {}, `${num(names.length)} chosen`),
      names.length > 1 ? h("a.button", { href: link([], { compare: joined(names) }) }, "Compare") : h("span.muted", {}, "choose another one to compare"),
      names.length === 2 ? h("a.button", { href: link([], { first: names[0], second: names[1] }) }, "Episode by episode") : "",
      h("button.quiet", { type: "button", onclick: () => { picked.clear(); save(); draw(); } }, "Clear")] : []));
    bar.hidden = !names.length;
  }
  body.addEventListener("change", event => {
    const { run } = event.target.dataset;
    if (run === undefined) return;
    if (event.target.checked) picked.add(run); else picked.delete(run);
    save();
    count();
  });
  const search = h("input", { type: "search", value: state.q, placeholder: "Filter by name, environment or policy", "aria-label": "Filter by name, environment or policy", maxlength: 200,
    oninput: event => { state.q = event.target.value; save(); draw(); say(tally.textContent); } });
  const select = (label, key, choices, act) => h("label.choice", {}, h("span.muted", {}, label), h("select", { onchange: event => { act(event.target.value); save(); draw(); } }, choices.map(([value, name]) => h("option", { value, selected: value === key }, name))));
  const grouping = select("Group by", state.by, Object.entries(GROUPINGS).map(([value, [name]]) => [value, name]), value => { state.by = value; });
  const sorting = select("Sort by", state.sort, [["name", "Name"], ...Object.entries(RUN_COLUMNS).filter(([, c]) => c[1]).map(([key, [name]]) => [key, name])], value => { state.sort = value; state.dir = "down"; });
  sorting.classList.add("narrow");
  const chooser = columnChooser(Object.entries(RUN_COLUMNS).map(([key, [name]]) => [key, name]), columns, keys => { columns = keys.length ? keys : USUAL; save(); draw(); });
  controls.append(search, grouping, sorting, chooser, tally);
  function fill(fresh) {
    found = fresh;
    ({ runs } = fresh);
    message.replaceChildren(...(fresh.note ? [h("p.notice", {}, plain(fresh.note))] : []));
    rest.replaceChildren(...documents(fresh.documents));
    draw();
  }
  let stop = null;
  return { name: "runs", title: "Runs", node: [h("div.head", {}, h("h1", {}, "Runs"), h("p.muted.cut", {}, "Folder ", h("bdi", {}, plain(found.folder)))), message, controls, bar, body, colours, rest],
    enter() { fill(found); stop = context.source.watch(null, fill); },
    leave() { stop?.(); },
    key(event) { if (event.key !== "Escape" || !chooser.open) return false; chooser.open = false; return true; } };
}
