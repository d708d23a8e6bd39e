// An evaluation: its figures, what its variants change, and one task as each of them showed it.
import { h, num, signed, percent, seconds, many, plain, isNumber } from "./dom.js";
import { link } from "./address.js";
import { chip, interval, lazyPictures } from "./parts.js";
import { plotNode } from "./plot.js";
import { niceStep, scaleOf } from "./charts.js";

const MOST_SHOWN = 12, MOST_SAID = 280, OUTCOMES = [["won", "s2"], ["tied", "s4"], ["lost", "sfault"]];
const points = x => `${signed(100 * x, 0)} points`;
const placeOf = (one, name) => [...one.name.split("/").slice(0, -1), name].join("/");
const measured = (x, text, svg, short = text) => isNumber(x?.mean) ? [h("b", {}, text(x.mean)), isNumber(x.interval.low) ? h("span.muted", {}, ` ${short(x.interval.low)} to ${text(x.interval.high)}`) : null, svg(x)] : "–";
const estimate = (x, text, scale) => measured(x, text, () => interval(x.interval.low, x.mean, x.interval.high, ...scale));
const headed = (head, rows) => h("div.sideways", { tabindex: 0 }, h("table.mini.left", {}, h("thead", {}, h("tr", {}, head.map(x => h("th", { scope: "col" }, x)))), h("tbody", {}, rows)));

export const environmentsIn = one => [...new Set(one.lines.map(line => line.env_id))].join(", ");
export const runLinks = one => ["Runs: ", Object.keys(one.runs).map((name, i) => [i ? ", " : "", h("a", { href: link([placeOf(one, name)]) }, plain(placeOf(one, name)))])];
export function linesTable(one) {
  const rewards = one.lines.flatMap(({ reward: r }) => [r.mean, r.interval.low, r.interval.high]).filter(isNumber), scale = [Math.max(1, ...rewards), Math.min(0, ...rewards)];
  const ks = [...new Set(one.lines.flatMap(line => Object.keys(line.pass_at)))].filter(k => k !== "1");
  return headed(["environment", "tasks", "episodes", "success", "reward", ...ks.map(k => `pass@${plain(k)}`), "turns", "time", "faults"], one.lines.map(line => h("tr", {}, h("th", { scope: "row" }, line.tag === null ? h("b", {}, plain(line.env_id)) : h("span.inner", {}, plain(`${line.tag} ${line.value}`))), h("td", {}, num(line.tasks, 0)), h("td", {}, num(line.episodes, 0)),
    h("td", {}, estimate(line.success, percent, [1, 0])), h("td", {}, estimate(line.reward, x => num(x), scale)), ks.map(k => h("td", {}, estimate(line.pass_at[k], percent, [1, 0]))),
    h("td", {}, num(line.turns, 1)), h("td", {}, seconds(line.seconds)), h("td", {}, num(line.faulted, 0)))));
}
// The variants of each environment, the first of which is what the others are compared with: its name, its run,
// its line of figures, and how it differs from the first.
function byVariant(one) {
  const sets = new Map();
  for (const { first, first_run, variant, run, difference } of one.variants) {
    const env = difference.env_id, lineOf = label => one.lines.find(line => line.tag === null && line.env_id === `${env} ${label}`);
    if (!sets.has(env)) sets.set(env, [{ name: first, run: first_run, line: lineOf(first), difference: null }]);
    sets.get(env).push({ name: variant, run, line: lineOf(variant), difference });
  }
  return sets;
}
const MEASURES = {
  success: { name: "Success", text: percent, change: points, isShare: true },
  reward: { name: "Reward", text: x => num(x), change: x => signed(x), isScored: true },
};
// A panel for each environment, a point for each of its variants: `valueOf` returns a mean with its interval.
function figureOf(one, sets, valueOf, y) {
  const panels = [...sets].map(([title, all]) => {
    const shown = all.map((variant, at) => ({ ...variant, at, value: valueOf(variant) })).filter(({ value }) => isNumber(value?.mean));
    return { title, names: shown.map(({ name }) => name), series: shown.map(({ name, run, at, value: { mean, interval: ends } }, x) => ({ name, colour: at < 6 ? at : 4, isLine: false,
      points: [{ x, y: mean, low: ends.low, high: ends.high, of: run, label: `${plain(name)}: ${y.text(mean)}${isNumber(ends.low) ? `, ${y.text(ends.low)} to ${y.text(ends.high)}` : ", no interval"}`, href: link([placeOf(one, run)]) }] })) };
  }).filter(panel => panel.names.length);
  return plotNode({ x: { name: "Variant" }, y, panels, empty: "No variant has a value.", hasLinks: true, smooth: 0 });
}
// A scale with 0 in its middle, rounded outwards.
function around(values) {
  const most = Math.max(...values.map(Math.abs)) || 1, step = niceStep(most / 5), end = step * Math.ceil(most / step - 1e-9);
  return [-end, end];
}
function figures(one, sets) {
  const all = [...sets.values()].flat(), key = all.some(({ difference: d }) => isNumber(d?.success?.mean)) ? "success" : "reward", measure = MEASURES[key];
  const whole = { name: measure.name, text: measure.text, scale: values => measure.isShare ? [0, 1] : scaleOf({ ...measure, value: x => x }, values) };
  return h("div.two", {},
    h("section.card", {}, h("h2", {}, `${measure.name} in each variant`), h("p.muted", {}, "Means over tasks; bars are 95% intervals."), figureOf(one, sets, ({ line }) => line?.[key], whole)),
    h("section.card", {}, h("h2", {}, "Difference from the first variant"), h("p.muted", {}, `${measure.name} minus that of the first, paired by task; bars are 95% bootstrap intervals.${measure.isShare ? " In percentage points." : ""}`),
      figureOf(one, sets, ({ difference }) => difference?.[key], { name: `Difference in ${measure.name.toLowerCase()}`, text: measure.change, scale: around })));
}
const endsOf = x => [x.mean, x.interval.low, x.interval.high].filter(isNumber);
function outcomesBar(counts) {
  const total = counts.reduce((a, b) => a + b, 0), words = OUTCOMES.map(([word], i) => `${word}: ${num(counts[i], 0)}`);
  return h("div.stack", { role: "img", "aria-label": words.join(", ") }, OUTCOMES.map(([, colour], i) => counts[i] ? h(`span.${colour}`, { vars: { "--n": counts[i] / total }, title: words[i] }) : null));
}
const CHANGES = [["success", "success", points, x => signed(100 * x, 0)], ["reward", "reward", x => signed(x)], ["turns", "turns", x => signed(x)], ["reply_tokens", "tokens out", x => signed(x, 1)]];
// One scale for each column: its rows are compared.
function pairedTable(all) {
  const compared = all.filter(({ difference }) => difference), scales = CHANGES.map(([key]) => around(compared.flatMap(({ difference }) => endsOf(difference[key]))));
  return headed(["variant", "tasks", ...CHANGES.map(([, name]) => name), OUTCOMES.map(([word]) => word).join(" / "), "p", "left out"], compared.map(({ name, difference: d }) => {
    const counts = [d.better, d.tied, d.worse], isJudged = isNumber(d.success.mean);
    return h("tr", {}, h("th", { scope: "row" }, h("b", {}, plain(name)), h("div.muted", {}, `minus ${plain(all[0].name)}`)), h("td", {}, num(d.reward.seeds ?? 0, 0)),
      CHANGES.map(([key, , text, short], i) => h("td", {}, measured(d[key], text, ({ mean, interval: { low, high } }) => h("div.zeroed", {}, interval(low, mean, high, scales[i][1], scales[i][0])), short))),
      h("td", {}, isJudged ? [counts.map(n => num(n, 0)).join(" / "), outcomesBar(counts)] : "–"), h("td", {}, !isJudged ? "–" : d.p_value < .001 ? "< 0.001" : num(d.p_value, 3)), h("td", {}, num(d.unpaired, 0)));
  }));
}
// A task that every variant played, rather one whose outcome differs.
function sharedSeed(played) {
  const seeds = played[0].filter(e => e.seed !== null && played.every(own => own.some(other => other.seed === e.seed))).map(e => e.seed);
  const differs = seed => new Set(played.map(own => own.find(e => e.seed === seed).solved)).size > 1;
  return seeds.find(differs) ?? seeds[0];
}
async function example(context, one, env, all, stops) {
  const shown = all.slice(0, MOST_SHOWN), names = shown.map(({ run }) => placeOf(one, run)), runs = await Promise.all(names.map(context.newest));
  if (!runs.every(Boolean)) return null;
  const played = runs.map(run => run.episodes.filter(e => e.env === env)), seed = sharedSeed(played);
  if (seed === undefined) return null;
  const cards = await Promise.all(shown.map(async ({ name }, i) => {
    const pictures = lazyPictures(context.source, names[i]), e = played[i].find(own => own.seed === seed), found = await context.source.episode(names[i], e.number), heard = (found?.sequences[0]?.turns[0]?.heard ?? []).filter(m => m.role !== "system");
    const text = heard.map(m => m.text.trim()).filter(Boolean).join("\n\n");
    stops.push(pictures.stop);
    return h("a.member", { href: link([names[i], "e", e.number]) }, h("span.line", {}, h("b.cut", { dir: "auto" }, plain(name)), chip(e)), heard.flatMap(m => m.images).map(sha => [pictures.node(sha), found.sizes[sha] ? h("span.line.muted", {}, found.sizes[sha].map(length => num(length, 0)).join(" × ")) : null]),
      h("span.shown", { dir: "auto" }, plain(text.length > MOST_SAID ? `${text.slice(0, MOST_SAID)}…` : text)));
  }));
  return h("section.card", {}, h("h2", {}, `What the model saw first: seed ${plain(seed)} of ${plain(env)}`), h("div.shownby", {}, cards),
    all.length > shown.length ? h("p.muted", {}, `The first ${num(shown.length, 0)} of ${num(all.length, 0)} variants.`) : null);
}
export async function evaluationPage(context, one) {
  const sets = byVariant(one), stops = [], examples = await Promise.all([...sets].map(([env, all]) => example(context, one, env, all, stops)));
  const title = sets.size ? `Variants of ${[...sets.keys()].join(", ")}` : `Evaluation of ${environmentsIn(one)}`;
  return { name: "runs evaluation", title, leave() { stops.forEach(stop => stop()); }, node: [
    h("div.head", {}, h("h1", {}, plain(title)), h("p.muted", {}, one.is_complete ? null : "Not finished. ", runLinks(one))),
    sets.size ? figures(one, sets) : null,
    [...sets].map(([env, all]) => h("section.card", {}, h("h2", {}, `Paired differences${sets.size > 1 ? `: ${plain(env)}` : ""}`), h("p.muted", {}, `Each variant minus ${plain(all[0].name)} on the same tasks. p: exact test on the tasks won and lost. Left out: pairs without two rewards, such as faults.`), pairedTable(all))),
    examples,
    h("section.card", {}, h("h2", {}, "All figures"), h("p.muted", {}, "Means over tasks with 95% intervals. Faulted episodes are not counted."), linesTable(one))].flat() };
}
