// What the table of runs and the comparison of runs share: names, metrics, scales, small drawings.
import { h, s, num, percent, seconds, many, plain, isNumber, isSummable } from "./dom.js";
import { isFault } from "./model.js";
import { colourAt } from "./parts.js";

const T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12, 2.11, 2.101, 2.093, 2.086];
const share = x => x && x.of ? x.count / x.of : null;
const naturally = new Intl.Collator("en", { numeric: true }).compare;

export const environmentsOf = run => run.environments.join(", ") || "unknown environment";
// The name without what tells runs of one series apart: a seed, a step or a number at its end.
const SERIES = /(?:^|[-_./ ])(?:seed|step|iter|epoch|run|s)?[-_=]?(\d+)$/i;  // and not the version of an environment
export const prefixOf = name => name.replace(SERIES, "") || name;
export const numberOf = name => { const found = SERIES.exec(name); return found ? Number(found[1]) : null; };
export const fixed = (x, digits) => !isNumber(x) ? "–" : Math.abs(x) < 1e15 ? x.toFixed(digits).replace("-", "−") : num(x);
export const byName = (a, b) => naturally(a.name, b.name);
export const STATES = { live: "live", reading: "being read", waiting: "starting", stopped: "not finished", complete: "" };

// Each metric of a run: its name, its value, its text and its interval.
export const METRICS = {
  __proto__: null,
  reward: { name: "Reward", value: r => r.reward?.mean ?? null, text: x => fixed(x, 2), ends: r => r.reward, drawn: r => [...r.spark, ...r.cells, ...r.solved.by?.thresholds ?? []], isScored: true },
  solved: { name: "Solved", value: r => share(r.solved), text: percent, ends: r => r.solved, isShare: true },
  signal: { name: "Groups with signal", value: r => r.groups.compared ? r.groups.signal / r.groups.compared : null, text: percent, isShare: true },
  turns: { name: "Turns per episode", value: r => r.turns, text: x => fixed(x, 1) },
  tokens: { name: "Sampled tokens per episode", value: r => r.tokens, text: x => num(x, 0) },
  seconds: { name: "Time per episode", value: r => r.seconds, text: seconds },
  unread: { name: "Replies not understood", value: r => share(r.unread), text: percent, isShare: true },
  faults: { name: "Faults", value: r => r.faults, text: x => num(x, 0) },
};
export const shownMetric = (metric, run) => { const x = metric.value(run); return isNumber(x) ? metric.text(x) : "–"; };

// Not Math.min(...values): a hundred thousand arguments are too many.
export function rangeOf(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  return low <= high ? [low, high] : [0, 1];
}
export function niceStep(width) {
  const power = 10 ** Math.floor(Math.log10(width)), lead = width / power;
  return power * (lead > 5 ? 10 : lead > 2 ? 5 : lead > 1 ? 2 : 1);
}
// Lowest and highest value on a scale that these runs share, rounded outwards; rewards and shares have 0 and 1 on it,
// and rewards the threshold of success.
export function scaleOf(metric, runs) {
  const known = runs.flatMap(run => { const e = metric.ends?.(run); return [metric.value(run), e?.low, e?.high, ...metric.drawn?.(run) ?? []]; }).filter(isSummable);
  const [low, most] = rangeOf(metric.isScored || metric.isShare ? [0, 1, ...known] : [0, ...known]), high = most > low ? most : low + 1, step = niceStep((high - low) / 10);
  return [step * Math.floor(low / step), step * Math.ceil(high / step)];
}
// One scale for the runs of each environment: rewards of different environments have nothing in common.
export function scalesOf(metric, runs) {
  const sets = byEnvironment(runs), scales = new Map([...sets].map(([name, own]) => [name, scaleOf(metric, own)]));
  return run => scales.get(environmentsOf(run));
}
export function byEnvironment(runs) {
  const sets = new Map();
  for (const run of runs) { const name = environmentsOf(run); if (!sets.has(name)) sets.set(name, []); sets.get(name).push(run); }
  return sets;
}
// Mean over runs, which are the independent draws, with Student's t; one run has no interval.
export function overRuns(values) {
  const xs = values.filter(isNumber), n = xs.length;
  if (!n) return null;
  const mean = xs.reduce((a, b) => a + b, 0) / n;
  if (n < 2) return { n, mean, half: null };
  const deviation = Math.sqrt(xs.reduce((sum, x) => sum + (x - mean) ** 2, 0) / (n - 1));
  return { n, mean, half: (T95[n - 2] ?? 1.96 + 2.5 / (n - 1)) * deviation / Math.sqrt(n) };
}
export function overRunsText(metric, runs) {
  if (new Set(runs.filter(run => run.environments.length).map(environmentsOf)).size > 1) return `${many(runs.length, "run")} of several environments`;
  const found = overRuns(runs.map(metric.value));
  return found ? `${metric.text(found.mean)}${found.half === null ? "" : ` ± ${metric.text(found.half)}`} over ${many(found.n, "run")}` : "–";
}
export function spark(values, [low, high]) {
  if (values.length < 2) return h("span.muted", {}, "–");
  const y = v => 21 - 20 * (v - low) / (high - low || 1), x = i => 100 * i / (values.length - 1);
  return s("svg", { class: "spark", viewBox: "0 0 100 22", preserveAspectRatio: "none", role: "img", "aria-label": `mean reward from ${num(values[0])} at the start to ${num(values.at(-1))} at the end` },
    s("path", { d: values.map((v, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join(""), class: "trace" }));
}
// Ends of episodes in the same colours in every row: `order` is that of all runs.
export const stopsBar = (run, order, words) => h("div.stack", { role: "img", "aria-label": run.stops.map(([k, n]) => `${words(k)}: ${n}`).join(", ") },
  order.map((key, i) => { const n = run.stops.find(([k]) => k === key)?.[1]; return n ? h(`span.${colourAt(i, isFault(key))}`, { vars: { "--n": n / run.episodes }, title: `${words(key)}: ${num(n)}` }) : null; }));
export function stopOrder(runs) {
  const counts = new Map();
  for (const run of runs) for (const [key, n] of run.stops) counts.set(key, (counts.get(key) ?? 0) + n);
  return [...counts].sort((a, b) => b[1] - a[1]).map(([key]) => key);
}
export const stateBadge = run => STATES[run.state] ? h(`span.state.${run.state}`, {}, STATES[run.state]) : null;
export const named = run => plain(run.name);
