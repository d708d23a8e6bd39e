// The runs of a folder: a table with one scale of rewards per environment, grouped, sorted, filtered and
// chosen by the address. Certificates and evaluations of the folder follow it.
import { h, num, many, plain, isNumber, heldFocus } from "./dom.js";
import { link, go, joined, say, split } from "./address.js";
import { hue, isFault, ruleOf, stopWords } from "./model.js";
import { colourAt, columnChooser, interval, opensRows } from "./parts.js";
import { METRICS, byName, environmentsOf, fixed, named, overRunsText, prefixOf, scalesOf, shownMetric, spark, stateBadge, stopOrder, stopsBar } from "./charts.js";
import { documents } from "./documents.js";
import { copyLink, exportButton, saveCsv } from "./export.js";
import { noteDialog, pencil, tagChips } from "./notes.js";

const STEP_ROWS = 200, MOST_TAGS = 30, MOST_QUERY = 200;

const RUN_COLUMNS = {  // key: name, value to sort by, and whether it is shown unless chosen otherwise
  __proto__: null,
  environment: ["Environment", environmentsOf, false], policy: ["Policy", r => r.policy, false], seed: ["Seed", r => r.seed, false], step: ["Step", r => r.step, false],
  episodes: ["Episodes", r => r.episodes, true], reward: ["Reward", METRICS.reward.value, true], solved: ["Solved", METRICS.solved.value, true], signal: ["With signal", METRICS.signal.value, true],
  groups: ["Group means", null, true], turns: ["Turns", r => r.turns, true], stops: ["Ended by", null, true], spark: ["Reward over time", null, true],
  tokens: ["Tokens", r => r.tokens, false], seconds: ["Time", r => r.seconds, false], unread: ["Not understood", METRICS.unread.value, false], faults: ["Faults", r => r.faults, false], note: ["Note", r => r.note, false], modified: ["Last written", r => r.modified, false],
};
const WORDY = ["environment", "policy", "groups", "stops", "spark", "reward", "note"], USUAL = Object.keys(RUN_COLUMNS).filter(key => RUN_COLUMNS[key][2]);
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
  return [h("b", {}, fixed(reward.mean, 2)), half, interval(reward.low, reward.mean, reward.high, high, low), h("span.ends", {}, h("span", {}, num(low)), h("span", {}, num(high)))];
}
function solvedCell(run) {
  const rule = ruleOf(run);
  return [shownMetric(METRICS.solved, run), rule ? h("div.muted", {}, rule) : null];
}
// A share of a scale, for colours.
const within = ([low, high], x) => (x - low) / (high - low || 1);
// Columns of the file that the table shows otherwise, or as several values.
const FILED = {
  __proto__: null,
  reward: [["reward", r => r.reward?.mean], ["reward low", r => r.reward?.low], ["reward high", r => r.reward?.high]], solved: [["solved", METRICS.solved.value], ["solved by", ruleOf]],
  signal: [["groups with signal", r => r.groups.signal], ["groups compared", r => r.groups.compared]], groups: [["group means", r => r.cells.join(" ")]],
  stops: [["ended by", r => r.stops.map(([key, n]) => `${key}: ${n}`).join("; ")]], spark: [["reward over time", r => r.spark.join(" ")]], modified: [["last written", r => r.modified ? new Date(1000 * r.modified).toISOString() : ""]],
};
function fileOf(runs, columns) {
  const parts = [["run", r => r.name], ["tags", r => r.tags.join("; ")], ...columns.flatMap(key => FILED[key] ?? [[RUN_COLUMNS[key][0].toLowerCase(), RUN_COLUMNS[key][1]]])];
  return [parts.map(([name]) => name), ...runs.map(run => parts.map(([, value]) => value(run)))];
}
const CELLS = {
  environment: run => plain(environmentsOf(run)), policy: run => plain(run.policy || "–"), seed: run => num(run.seed, 0), step: run => num(run.step, 0), episodes: progress,
  reward: (run, { scaleFor }) => rewardCell(run, scaleFor(run)), solved: solvedCell, note: run => run.note ? h("div.notetext", { dir: "auto", title: plain(run.note) }, plain(run.note)) : "–", modified: run => written(run.modified),
  signal: run => run.groups.compared ? [num(run.groups.signal, 0), h("span.muted", {}, ` of ${num(run.groups.compared, 0)}`)] : "–",
  groups: (run, { scaleFor }) => !run.cells.length ? "–" : h("span.cells", { role: "img", "aria-label": `mean rewards of groups, best first: ${run.cells.map(x => num(x)).join(", ")}` }, run.cells.map(x => h("i", { vars: hue(within(scaleFor(run), x)), title: num(x) }))),
  stops: (run, { order }) => run.episodes ? stopsBar(run, order, stopWords) : "–", spark: (run, { scaleFor }) => spark(run.spark, scaleFor(run)),
};
const cellOf = (key, run, tools) => (CELLS[key] ?? (r => shownMetric(METRICS[key], r)))(run, tools);

export function runsPage(context, found, query) {
  const state = { q: "", by: "", sort: "modified", dir: "down", cols: "", pick: "", tag: "", ...query };
  state.q = state.q.slice(0, MOST_QUERY);
  if (!GROUPINGS[state.by]) state.by = "";
  if (state.sort !== "name" && !RUN_COLUMNS[state.sort]?.[1]) state.sort = "modified";
  let { runs } = found, columns = split(state.cols).filter(key => RUN_COLUMNS[key]);
  if (!columns.length) columns = USUAL;
  const picked = new Set(split(state.pick)), tags = new Set(split(state.tag)), body = h("div.scroll.wide"), tally = h("p.tally.muted"), rest = h("div"), colours = h("div"), message = h("div"), bar = h("div.picked"), controls = h("div.tools"), tagBar = h("div.toggle.tagbar", { role: "group", "aria-label": "Filter by tag" });
  let limit = STEP_ROWS, kept = [];
  const cols = () => columns.join() === USUAL.join() ? "" : joined(columns);
  const address = () => ({ q: state.q.trim(), by: state.by, sort: state.sort === "modified" && state.dir === "down" ? "" : state.sort, dir: state.sort === "modified" && state.dir === "down" ? "" : state.dir, cols: cols(), pick: joined(picked), tag: joined(tags) });
  const save = () => go([], address(), true);

  function rowOf(run, tools) {
    const about = [!columns.includes("environment") && state.by !== "environment" && (run.environments.length || run.state !== "reading") && environmentsOf(run), !columns.includes("policy") && run.policy, !columns.includes("seed") && run.seed !== null && `seed ${run.seed}`].filter(Boolean).join(" · ");
    return h("tr", {}, h("td.pick", {}, h("input", { type: "checkbox", checked: picked.has(run.name), "aria-label": `Compare ${named(run)}`, "data-run": run.name })),
      h("th.taskcell", { scope: "row" }, h("a", { href: link([run.name]), dir: "auto" }, named(run)), stateBadge(run), about ? h("div.muted", {}, plain(about)) : null, tagChips(run), run.note && !columns.includes("note") ? h("div.muted.cut", { dir: "auto", title: plain(run.note) }, plain(run.note)) : null,
        found.takes_notes ? h("button.quiet.noting", { type: "button", "data-note": run.name, "aria-label": `Note on ${named(run)}`, onclick: () => dialog.open(run, () => [...body.querySelectorAll("[data-note]")].find(one => one.dataset.note === run.name)?.focus()) }, pencil()) : null),
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
    const wanted = state.q.trim().toLowerCase(), says = run => [run.name, run.policy, run.note, ...run.environments, ...run.tags].some(text => text.toLowerCase().includes(wanted));
    kept = sorted(runs.filter(run => says(run) && [...tags].every(tag => run.tags.includes(tag))));
    const tools = { scaleFor: scalesOf(METRICS.reward, runs), order: stopOrder(runs) }, by = GROUPINGS[state.by][1], sets = new Map();
    for (const run of kept.slice(0, limit)) { const key = by ? by(run) : ""; sets.set(key, [...sets.get(key) ?? [], run]); }
    const whole = new Map();
    for (const run of by ? kept : []) { const key = by(run); whole.set(key, [...whole.get(key) ?? [], run]); }
    body.replaceChildren(kept.length ? h("table.grid.runs-table", {}, h("caption.vh", {}, "Runs"),
      h("thead", {}, h("tr", {}, h("th.pick", { scope: "col" }, everything), header("name", "Run", true), columns.map(key => header(key, RUN_COLUMNS[key][0], RUN_COLUMNS[key][1])))),
      [...sets].map(([label, members]) => h(`tbody${by ? ".set" : ""}`, {}, by && (members.length > 1 || state.by !== "prefix") ? groupHead(label, whole.get(label)) : null, members.map(run => rowOf(run, tools))))) : empty(wanted || tags.size), kept.length > limit ? h("button.button.wideb", { type: "button", onclick: () => { limit += 5 * STEP_ROWS; draw(); } }, `Show more of ${num(kept.length, 0)}`) : "");
    colours.replaceChildren(...(columns.includes("stops") && tools.order.length ? [h("ul.legend.across", { "aria-label": "Colours of what ended the episodes" }, tools.order.map((key, i) => h("li", {}, h(`i.${colourAt(i, isFault(key))}`), stopWords(key))))] : []));
    tally.textContent = many(kept.length, "run");
    controls.hidden = !runs.length;
    drawTags();
    count();
  }
  const empty = wanted => h("div.pad", {}, wanted ? ["No run matches. ", h("a", { href: "#/" }, "Show all runs")] : !found.is_scanned ? "Looking for runs …"
    : [h("p", {}, "No runs here yet. This page shows them when they start, such as this one:"), h("pre", {}, "envkit rollout canary-v0 --policy oracle -n 8")]);
  // All tags of the folder, the most frequent first; a chosen one stays even if no run has it.
  function drawTags() {
    const counts = new Map([...tags].map(tag => [tag, 0]));
    for (const run of runs) for (const tag of run.tags) counts.set(tag, (counts.get(tag) ?? 0) + 1);
    const all = [...counts].sort(([a, n], [b, m]) => tags.has(b) - tags.has(a) || m - n || (a < b ? -1 : 1)).slice(0, MOST_TAGS), at = document.activeElement?.dataset?.tag;
    tagBar.replaceChildren(...all.map(([tag, n]) => h("button", { type: "button", "data-tag": tag, "aria-pressed": String(tags.has(tag)), dir: "auto", onclick: () => { if (!tags.delete(tag)) tags.add(tag); save(); draw(); say(tally.textContent); } }, plain(tag), h("span.muted", {}, ` ${num(n, 0)}`))));
    if (at !== undefined) [...tagBar.children].find(one => one.dataset.tag === at)?.focus();
    tagBar.hidden = !all.length;
  }
  const everything = h("input", { type: "checkbox", "aria-label": "Choose all runs that the table lists", onchange: () => { for (const run of kept) if (everything.checked) picked.add(run.name); else picked.delete(run.name); save(); draw(); everything.focus(); } });
  function count() {
    everything.checked = kept.length > 0 && kept.every(run => picked.has(run.name));
    const names = runs.map(run => run.name).filter(name => picked.has(name));
    bar.replaceChildren(...(names.length ? [h("span", {}, `${num(names.length)} chosen`),
      names.length > 1 ? h("a.button", { href: link([], { compare: joined(names) }) }, "Compare") : [h("a.button", { href: link([], { compare: joined(names), of: "episodes" }) }, "Chart"), h("span.muted", {}, "or choose another one to compare")],
      names.length === 2 ? h("a.button", { href: link([], { first: names[0], second: names[1] }) }, "Episode by episode") : "",
      h("button.quiet", { type: "button", onclick: () => { picked.clear(); save(); draw(); } }, "Clear")].flat() : []));
    bar.hidden = !names.length;
  }
  body.addEventListener("change", event => {
    const { run } = event.target.dataset;
    if (run === undefined) return;
    if (event.target.checked) picked.add(run); else picked.delete(run);
    save();
    count();
  });
  const search = h("input", { type: "search", value: state.q, placeholder: "Filter by name, environment, policy, tag or note", "aria-label": "Filter by name, environment, policy, tag or note", maxlength: MOST_QUERY,
    oninput: event => { state.q = event.target.value; save(); draw(); say(tally.textContent); } });
  const select = (label, key, choices, act) => h("label.choice", {}, h("span.muted", {}, label), h("select", { onchange: event => { act(event.target.value); save(); draw(); } }, choices.map(([value, name]) => h("option", { value, selected: value === key }, name))));
  const grouping = select("Group by", state.by, Object.entries(GROUPINGS).map(([value, [name]]) => [value, name]), value => { state.by = value; });
  const sorting = select("Sort by", state.sort, [["name", "Name"], ...Object.entries(RUN_COLUMNS).filter(([, c]) => c[1]).map(([key, [name]]) => [key, name])], value => { state.sort = value; state.dir = "down"; });
  sorting.classList.add("narrow");
  const chooser = columnChooser(Object.entries(RUN_COLUMNS).map(([key, [name]]) => [key, name]), columns, keys => { columns = keys.length ? keys : USUAL; save(); draw(); });
  controls.append(search, grouping, sorting, chooser, exportButton("CSV", () => saveCsv(fileOf(kept, columns), "envkit-runs.csv")), copyLink(), tally);
  const dialog = noteDialog(context.source, (run, notes) => { Object.assign(runs.find(one => one.name === run.name) ?? {}, notes); draw(); say("Note saved"); });
  opensRows(body);
  let filed = null;
  function fill(fresh) {
    const refocus = heldFocus(), documented = JSON.stringify(fresh.documents);
    found = fresh;
    ({ runs } = fresh);
    message.replaceChildren(...(fresh.note ? [h("p.notice", {}, plain(fresh.note))] : []));
    if (filed !== documented) rest.replaceChildren(...documents(fresh.documents));  // open ones stay open
    filed = documented;
    draw();
    refocus();
  }
  let stop = null;
  return { name: "runs", title: "Runs", node: [h("div.head", {}, h("h1", {}, "Runs"), h("p.muted.cut", {}, "Folder ", h("bdi", {}, plain(found.folder)))), message, controls, tagBar, bar, body, colours, rest, dialog.node],
    enter() { fill(found); stop = context.source.watch(null, fill, found.version); },
    leave() { stop?.(); },
    key(event) { if (event.key !== "Escape" || !chooser.open) return false; chooser.open = false; return true; } };
}
