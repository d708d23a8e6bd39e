// Several runs side by side: a metric over seeds, steps or runs, all metrics, and which settings
// differ.
import { h, s, num, many, plain, folded, isNumber } from "./dom.js";
import { link, go, joined, split } from "./address.js";
import { METRICS, byName, named, numberOf, overRunsText, prefixOf, scaleOf, shownMetric, stateBadge } from "./charts.js";

const ACROSS = { __proto__: null, step: ["Step", r => r.step], number: ["Number in the name", r => numberOf(r.name)], seed: ["Seed", r => r.seed], run: ["Run", null] };
const distinct = values => new Set(values).size;

// What tells the runs apart along an axis: the step, a number in names that are alike, the seed.
function axisOf(runs) {
  const all = key => runs.map(ACROSS[key][1]);
  const isAxis = key => all(key).every(isNumber) && distinct(all(key)) > 1;
  if (isAxis("step")) return "step";
  if (isAxis("seed") && runs.every(r => [r.seed, null].includes(numberOf(r.name)))) return "seed";
  if (isAxis("number") && distinct(runs.map(r => prefixOf(r.name))) < runs.length) return "number";
  return isAxis("seed") ? "seed" : "run";
}
const seriesOf = run => `${prefixOf(run.name)}`;
function chart(runs, metric, axis) {
  const known = runs.filter(run => isNumber(metric.value(run))), [low, high] = scaleOf(metric, runs);
  if (!known.length) return h("p.muted", {}, "No run has this value.");
  const at = ACROSS[axis][1], xs = at ? known.map(at) : null, [from, to] = xs ? [Math.min(...xs), Math.max(...xs)] : [];
  const x = (run, i) => at ? 4 + 92 * (at(run) - from) / (to - from || 1) : 100 * (i + .5) / known.length, y = v => 96 - 92 * (v - low) / (high - low || 1);
  const series = [...new Set(known.map(seriesOf))], colour = run => `c${series.indexOf(seriesOf(run)) % 6}`;
  const lines = at && axis !== "seed" ? series.map(key => known.filter(run => seriesOf(run) === key).sort((a, b) => at(a) - at(b))).filter(own => own.length > 1)
    .map(own => s("path", { class: `trace ${colour(own[0])}`, d: own.map((run, i) => `${i ? "L" : "M"}${x(run).toFixed(2)} ${y(metric.value(run)).toFixed(2)}`).join("") })) : [];
  const bars = known.map((run, i) => { const e = metric.ends?.(run); return isNumber(e?.low) ? s("line", { class: `whisker ${colour(run)}`, x1: x(run, i), x2: x(run, i), y1: y(e.low), y2: y(e.high) }) : null; });
  const dots = known.map((run, i) => h(`a.point.${colour(run)}`, { href: link([run.name]), vars: { "--x": `${x(run, i)}%`, "--y": `${y(metric.value(run))}%` }, title: `${named(run)}: ${shownMetric(metric, run)}`, "aria-label": `${named(run)}: ${shownMetric(metric, run)}` }));
  const ticks = at ? [...new Set(xs)].sort((a, b) => a - b).filter((v, i, all) => i % Math.ceil(all.length / 8) === 0).map(v => h("span", { vars: { "--x": `${4 + 92 * (v - from) / (to - from || 1)}%` } }, num(v, Number.isInteger(v) ? 0 : 2))) : known.length > 8 ? [] : known.map((run, i) => h("span.cut", { vars: { "--x": `${x(run, i)}%`, "--share": `${96 / known.length}%` }, title: named(run) }, named(run)));
  const colours = series.length > 1 ? h("ul.legend.across", {}, series.map((key, i) => h("li", {}, h(`i.s${i % 6}`), plain(key)))) : null;
  return [h("div.plot", {}, h("span.high.muted", {}, metric.text(high)), h("span.low.muted", {}, metric.text(low)),
    h("div.field", {}, s("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" }, [0, .5, 1].map(t => s("line", { class: "rule", x1: 0, x2: 100, y1: 4 + 92 * t, y2: 4 + 92 * t })), lines, bars), dots),
    h("div.ticks.muted", {}, ticks), at ? h("div.axis.muted", {}, ACROSS[axis][0].toLowerCase()) : null), colours];
}
const shownSetting = value => value === undefined || value === null || value === "null" ? "not set" : String(value);
function settings(runs) {
  const keys = [...new Set(runs.flatMap(run => Object.keys(run.settings)))].sort();
  const known = runs.filter(run => Object.keys(run.settings).length), differs = key => distinct(known.map(run => shownSetting(run.settings[key]))) > 1;
  const table = own => h("div.sideways", { tabindex: 0 }, h("table.mini.left", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "setting"), runs.map(run => h("th", { scope: "col", dir: "auto" }, named(run))))),
    h("tbody", {}, own.map(key => h("tr", {}, h("th", { scope: "row" }, plain(key)), runs.map(run => h("td.words", { dir: "auto" }, known.includes(run) ? plain(shownSetting(run.settings[key])) : "–")))))));
  if (!keys.length) return h("p.muted", {}, "None of these runs has a run.json.");
  const changed = keys.filter(differs), without = runs.filter(run => !known.includes(run));
  return [without.length ? h("p.notice", {}, `No run.json: ${without.map(named).join(", ")}`) : null, changed.length ? table(changed) : h("p.muted", {}, "All settings are equal."),
    keys.length > changed.length ? folded(`${many(keys.length - changed.length, "equal setting")}`, table(keys.filter(key => !differs(key)))) : null];
}
export function comparePage(context, found, query) {
  const names = split(query.compare), state = { metric: METRICS[query.metric] ? query.metric : "reward", across: ACROSS[query.across] ? query.across : "" };
  let runs = [];
  const plot = h("div"), facts = h("div"), changes = h("div"), lost = h("div");
  const save = () => go([], { compare: joined(names), metric: state.metric === "reward" ? "" : state.metric, across: state.across }, true);
  const select = (label, value, choices, act) => h("label.choice", {}, h("span.muted", {}, label), h("select", { onchange: event => { act(event.target.value); save(); draw(); } }, choices.map(([key, name]) => h("option", { value: key, selected: key === value }, name))));
  function draw() {
    const metric = METRICS[state.metric];
    plot.replaceChildren(...[chart(runs, metric, state.across || axisOf(runs))].flat().filter(Boolean), h("p.muted", {}, `${metric.name}: ${overRunsText(metric, runs)}. Bars are 95% intervals over groups.`));
    facts.replaceChildren(h("div.sideways", { tabindex: 0 }, h("table.mini.left", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "metric"), runs.map(run => h("th", { scope: "col", dir: "auto" }, h("a", { href: link([run.name]) }, named(run)), stateBadge(run))))),
      h("tbody", {}, [h("tr", {}, h("th", { scope: "row" }, "Episodes"), runs.map(run => h("td", {}, num(run.episodes, 0)))), Object.values(METRICS).map(one => h("tr", {}, h("th", { scope: "row" }, one.name), runs.map(run => h("td", {}, withEnds(one, run)))))]))));
    changes.replaceChildren(...[settings(runs)].flat().filter(Boolean));
  }
  const withEnds = (metric, run) => { const e = metric.ends?.(run); return [shownMetric(metric, run), isNumber(e?.low) ? h("span.muted", {}, ` ${metric.text(e.low)} to ${metric.text(e.high)}`) : null]; };
  function fill(fresh) {
    runs = fresh.runs.filter(run => names.includes(run.name)).sort(byName);
    const gone = names.filter(name => !runs.some(run => run.name === name));
    lost.replaceChildren(...(gone.length ? [h("p.notice", {}, `Not in this folder: ${gone.map(plain).join(", ")}`)] : []));
    draw();
  }
  let stop = null;
  const pair = names.length === 2 ? h("a.button", { href: link([], { first: names[0], second: names[1] }) }, "Episode by episode") : null;
  return { name: "runs", title: "Runs compared", crumb: "comparison", node: [h("div.head", {}, h("h1", {}, `${many(names.length, "run")} compared`), h("p.muted", {}, h("a", { href: link([], { pick: joined(names) }) }, "Choose other runs"))), lost,
    h("section.card", {}, h("h2", {}, "Metric"), h("div.tools", {}, select("Show", state.metric, Object.entries(METRICS).map(([key, one]) => [key, one.name]), value => { state.metric = value; }),
      select("over", state.across, [["", "automatic"], ...Object.entries(ACROSS).map(([key, [name]]) => [key, name])], value => { state.across = value; }), pair), plot),
    h("section.card", {}, h("h2", {}, "All metrics"), facts), h("section.card", {}, h("h2", {}, "Settings that differ"), changes)],
  enter() { fill(found); stop = context.source.watch(null, fill); }, leave() { stop?.(); },
  key(event) { if (event.key !== "Escape") return false; go([], { pick: joined(names) }); return true; } };
}
