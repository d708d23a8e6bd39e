// Several runs side by side: any metric over any other, of runs or of their episodes, all metrics, and
// which settings differ.
import { h, num, many, plain, folded, isNumber, isSummable, busy, heldFocus } from "./dom.js";
import { link, go, joined, split } from "./address.js";
import { METRICS, byEnvironment, byName, environmentsOf, named, numberOf, overRunsText, prefixOf, shownMetric, stateBadge } from "./charts.js";
import { EPISODE_AXES, RECORDED, runAxes } from "./axes.js";
import { plotCanvas, plotNode, plotTable, smoothingText } from "./plot.js";
import { copyLink, exportButton, saveCsv, savePng } from "./export.js";

const MOST_COLUMNS = 24, MOST_READ = 12, MOST_PANELS = 8, MOST_DOTS = 300, MOST_LINKS = 60, TOP_SMOOTHING = .99;
const ORDER = { name: "Run", text: x => num(x, 0) };  // the axis without numbers
const KINDS = [["", "runs"], ["episodes", "episodes"]];
const distinct = values => new Set(values).size;

// What tells the runs apart along an axis: the step, a number in names that are alike, the seed.
function axisOf(runs) {
  const all = { step: runs.map(r => r.step), number: runs.map(r => numberOf(r.name)), seed: runs.map(r => r.seed) };
  const isAxis = key => all[key].every(isNumber) && distinct(all[key]) > 1;
  if (isAxis("step")) return "step";
  if (isAxis("seed") && runs.every(r => [r.seed, null].includes(numberOf(r.name)))) return "seed";
  if (isAxis("number") && distinct(runs.map(r => prefixOf(r.name))) < runs.length) return "number";
  return isAxis("seed") ? "seed" : "run";
}
const colourOf = i => i < 6 ? i : 4;  // as `colourAt`
const sortedByX = points => points.sort((a, b) => a.x - b.x);
// One point per run, one series per name without its number, one panel per environment.
function planOfRuns(runs, y, x) {
  const series = [...new Set(runs.map(run => prefixOf(run.name)))];
  const panels = [...byEnvironment(runs.filter(run => isSummable(y.value(run)) && (x === ORDER || isSummable(x.value(run)))))].map(([title, own]) => {
    const point = (run, i) => { const bounds = y.ends?.(run); return { x: x === ORDER ? i : x.value(run), y: y.value(run), low: bounds?.low, high: bounds?.high, of: run.name, label: `${named(run)}: ${y.text(y.value(run))}`, href: link([run.name]), key: prefixOf(run.name) }; };
    const points = own.map(point);
    return { title, names: x === ORDER ? own.map(run => run.name) : null, series: series.filter(key => points.some(p => p.key === key)).map(name => ({ name, colour: colourOf(series.indexOf(name)), isLine: Boolean(x.isOrdered), points: sortedByX(points.filter(p => p.key === name)) })) };
  });
  return { x, y, panels, empty: "No run has both values.", isDense: false, hasLinks: runs.length <= MOST_DOTS };
}
// One point per episode, one series per run.
function planOfEpisodes(runs, y, x) {
  const place = new Map(runs.map((run, i) => [run.name, i]));
  const sets = new Map();
  for (const run of runs) for (const e of run.episodes) {
    const at = x.value(e), value = y.value(e);
    if (!isSummable(at) || !isSummable(value)) continue;
    if (!sets.has(e.env)) sets.set(e.env, new Map());
    if (!sets.get(e.env).has(run.name)) sets.get(e.env).set(run.name, []);
    sets.get(e.env).get(run.name).push({ x: at, y: value, of: e.number, label: `${plain(run.name)}, episode ${e.number}: ${y.name} ${y.text(value)}, ${x.name} ${x.text(at)}`, href: link([run.name, "e", e.number]) });
  }
  const count = [...sets.values()].flatMap(own => [...own.values()]).reduce((sum, points) => sum + points.length, 0);
  const panels = [...sets].map(([title, own]) => ({ title, names: null, series: [...own].map(([name, points]) => ({ name, colour: colourOf(place.get(name)), isLine: Boolean(x.isOrdered), points: sortedByX(points) })) }));
  return { x, y, panels, empty: "No episode has both values.", isDense: count > MOST_DOTS, hasLinks: count <= MOST_LINKS };
}
const shownSetting = value => value === undefined || value === null || value === "null" ? "not set" : String(value);
function settings(all) {
  const runs = all.slice(0, MOST_COLUMNS);
  const keys = [...new Set(runs.flatMap(run => Object.keys(run.settings)))].sort();
  const known = runs.filter(run => Object.keys(run.settings).length), differs = key => distinct(known.map(run => shownSetting(run.settings[key]))) > 1;
  const table = own => h("div.sideways", { tabindex: 0 }, h("table.mini.left", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "setting"), runs.map(run => h("th", { scope: "col", dir: "auto" }, named(run))))),
    h("tbody", {}, own.map(key => h("tr", {}, h("th", { scope: "row" }, plain(key)), runs.map(run => h("td.words", { dir: "auto" }, known.includes(run) ? plain(shownSetting(run.settings[key])) : "–")))))));
  if (!keys.length) return h("p.muted", {}, "None of these runs has a run.json.");
  const changed = keys.filter(differs), without = runs.filter(run => !known.includes(run));
  return [without.length ? h("p.notice", {}, `No run.json: ${without.map(named).join(", ")}`) : null, changed.length ? table(changed) : h("p.muted", {}, "All settings are equal."),
    keys.length > changed.length ? folded(`${many(keys.length - changed.length, "equal setting")}`, table(keys.filter(key => !differs(key)))) : null];
}
// The mean over the runs of each series: one over several policies or environments would mean nothing.
function meansOf(y, runs) {
  const sets = new Map();
  for (const run of runs) { const key = [...new Set([environmentsOf(run), prefixOf(run.name)])].join(", "); sets.set(key, [...sets.get(key) ?? [], run]); }
  const texts = [...sets].slice(0, MOST_PANELS).map(([key, its]) => `${sets.size > 1 ? `${plain(key)} ` : ""}${overRunsText(y, its)}`);
  return `${y.name}: ${texts.join("; ")}${sets.size > MOST_PANELS ? "; …" : ""}.`;
}
export function comparePage(context, found, query) {
  const { source } = context, names = split(query.compare), factor = Number(query.smooth);
  const state = { of: query.of === "episodes" ? "episodes" : "", x: query.x ?? "", y: query.y ?? "", smooth: factor > 0 && factor <= TOP_SMOOTHING ? factor : 0 };
  let runs = [], read = [], table = null, made = null, plan = null, asked = 0;
  const plot = h("div"), under = h("p.muted"), facts = h("div"), changes = h("div"), lost = h("div"), unread = h("div");
  const save = () => go([], { compare: joined(names), of: state.of, y: state.y, x: state.x, smooth: state.smooth || "" }, true);
  const option = ([key, axis]) => h("option", { value: key }, plain(axis.name));
  // A choice keeps its node, and its options while they are the same: news must not close an open list.
  function select(label, act) {
    const box = h("select", { onchange: event => { act(event.target.value); save(); refresh(); } });
    let old = "";
    return { node: h("label.choice", {}, h("span.muted", {}, label), box), show(value, parts) {
      const keys = JSON.stringify(parts.map(part => part.textContent));
      if (keys !== old) box.replaceChildren(...parts);
      old = keys;
      box.value = value;
    } };
  }
  const kinds = select("Points", value => Object.assign(state, { of: value, x: "", y: "" })), upward = select("Y axis", value => { state.y = value; }), across = select("X axis", value => { state.x = value; });
  const slider = h("input", { type: "range", min: 0, max: TOP_SMOOTHING, step: .01, value: state.smooth, "aria-label": "Smoothing", oninput: event => { state.smooth = Number(event.target.value); save(); smoothPlot(); } });
  // The axes that these runs have; one from the address that they lack is not chosen.
  function axes() {
    const { axes: known, groups } = state.of ? { axes: EPISODE_AXES, groups: null } : runAxes(runs, table);
    const y = known.get(state.y) ?? known.get("reward"), usual = state.of ? "number" : axisOf(runs), key = known.has(state.x) || (state.x === "run" && !state.of) ? state.x : usual;
    return { known, groups, y, x: known.get(key) ?? ORDER };
  }
  function drawPlot() {
    const { x, y } = axes();
    made = state.of ? planOfEpisodes(read, y, x) : planOfRuns(runs, y, x);
    smoothPlot();
  }
  // The points stay while the slider moves.
  function smoothPlot() {
    const { x, y } = made, canSmooth = Boolean(x.isOrdered), left = made.panels.length - MOST_PANELS;
    plan = { ...made, smooth: canSmooth ? state.smooth : 0, panels: made.panels.slice(0, MOST_PANELS) };
    slider.disabled = !canSmooth;
    plot.replaceChildren(plotNode(plan));
    under.textContent = [state.of ? "" : meansOf(y, runs), plan.panels.some(panel => panel.series.some(one => one.points.some(p => isNumber(p.low)))) ? "Bars are 95% intervals over groups." : "", smoothingText(plan), canSmooth ? "" : "Smoothing needs steps, times or episodes as the x axis.",
      plan.panels.length > 1 ? "Each environment has its own axes." : "", left > 0 ? `${many(left, "more environment")} not drawn.` : ""].filter(Boolean).join(" ");
  }
  function drawChoices() {
    const { known, groups } = axes(), options = () => groups ? groups.map(([label, entries]) => h("optgroup", { label }, entries.map(option))) : [...known].map(option);
    kinds.show(state.of, KINDS.map(([value, name]) => h("option", { value }, name)));
    upward.show(known.has(state.y) ? state.y : "reward", options());
    across.show(known.has(state.x) || (state.x === "run" && !state.of) ? state.x : "", [h("option", { value: "" }, "automatic"), ...state.of ? [] : [h("option", { value: "run" }, "Run")], ...options()]);
  }
  function draw() {
    const shown = runs.slice(0, MOST_COLUMNS), refocus = heldFocus();
    drawChoices();
    drawPlot();
    facts.replaceChildren(h("div.sideways", { tabindex: 0 }, h("table.mini.left", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "metric"), shown.map(run => h("th", { scope: "col", dir: "auto" }, h("a", { href: link([run.name]) }, named(run)), stateBadge(run))))),
      h("tbody", {}, [h("tr", {}, h("th", { scope: "row" }, "Environment"), shown.map(run => h("td", {}, plain(environmentsOf(run))))), h("tr", {}, h("th", { scope: "row" }, "Episodes"), shown.map(run => h("td", {}, num(run.episodes, 0)))), Object.values(METRICS).map(one => h("tr", {}, h("th", { scope: "row" }, one.name), shown.map(run => h("td", {}, withEnds(one, run)))))]))),
    runs.length > shown.length ? h("p.muted", {}, `The tables show the first ${shown.length} of ${num(runs.length, 0)} runs.`) : "");
    changes.replaceChildren(...[settings(runs)].flat().filter(Boolean));
    refocus();
  }
  const withEnds = (metric, run) => { const e = metric.ends?.(run); return [shownMetric(metric, run), isNumber(e?.low) ? h("span.muted", {}, ` ${metric.text(e.low)} to ${metric.text(e.high)}`) : null]; };
  // Draws what is known, then asks for what the axes need besides.
  const refresh = () => busy(drawAll());
  async function drawAll() {
    const turn = asked += 1;
    draw();
    unread.replaceChildren();
    try {
      if (state.of) {
        const wanted = runs.slice(0, MOST_READ), answers = await Promise.all(wanted.map(run => context.newest(run.name)));
        if (turn !== asked) return;
        read = answers.filter(Boolean);
        if (runs.length > wanted.length) unread.replaceChildren(h("p.notice", {}, `The chart has the episodes of the first ${MOST_READ} runs.`));
      } else if (!table || [state.x, state.y].some(key => key.startsWith(RECORDED))) {
        const answer = await source.metrics();
        if (turn !== asked) return;
        table = answer;
      }
    } catch (error) { if (turn === asked) unread.replaceChildren(h("p.notice", {}, plain(error.message))); return; }
    draw();
  }
  function fill(fresh) {
    runs = fresh.runs.filter(run => names.includes(run.name)).sort(byName);
    const gone = names.filter(name => !runs.some(run => run.name === name));
    lost.replaceChildren(...(gone.length ? [h("p.notice", {}, `Not in this folder: ${gone.map(plain).join(", ")}`)] : []));
    refresh();
  }
  let stop = null;
  const tools = h("div.tools", {}, kinds.node, upward.node, across.node, h("label.choice", {}, h("span.muted", {}, "Smoothing"), slider), exportButton("PNG", () => savePng(plotCanvas(plan, plot), "envkit-chart.png")), exportButton("CSV", () => saveCsv(plotTable(plan), "envkit-chart.csv")), copyLink());
  const pair = names.length === 2 ? [" · ", h("a", { href: link([], { first: names[0], second: names[1] }) }, "Episode by episode")] : null;
  return { name: "runs", title: "Runs compared", crumb: "comparison", node: [h("div.head", {}, h("h1", {}, names.length === 1 ? plain(names[0]) : `${many(names.length, "run")} compared`), h("p.muted", {}, h("a", { href: link([], { pick: joined(names) }) }, "Choose other runs"), pair)), lost,
    h("section.card", {}, h("h2", {}, "Chart"), tools, unread, plot, under),
    h("section.card", {}, h("h2", {}, "All metrics"), facts), h("section.card", {}, h("h2", {}, "Settings that differ"), changes)],
  get runs() { return state.of ? read : []; },
  changed(now) { read = read.map(run => run.name === now.name ? now : run); drawPlot(); },
  enter() { fill(found); stop = source.watch(null, fill, found.version); }, leave() { asked += 1; stop?.(); },
  key(event) { if (event.key !== "Escape") return false; go([], { pick: joined(names) }); return true; } };
}
