// What a chart can have as its axes: facts, metrics and settings of runs, and facts of episodes.
import { num, seconds, isNumber } from "./dom.js";
import { METRICS, fixed, numberOf, rangeOf, scaleOf } from "./charts.js";

const whole = x => num(x, Number.isInteger(x) ? 0 : 2), exact = x => num(x, Number.isInteger(x) ? 0 : 4);
const dateText = time => new Date(1000 * time).toLocaleString("en-GB", { dateStyle: "short", timeStyle: "short" });
const truth = x => x === true ? 1 : x === false ? 0 : null;
const onScale = ([key, axis]) => [key, { ...axis, scale: values => scaleOf({ isScored: axis.isScored, isShare: axis.isShare, value: x => x }, values) }];

const FACTS = {
  step: { name: "Step", value: r => r.step, text: whole, isOrdered: true }, seed: { name: "Seed", value: r => r.seed, text: whole }, number: { name: "Number in the name", value: r => numberOf(r.name), text: whole, isOrdered: true },
  written: { name: "Time written", value: r => r.modified || null, text: dateText, isOrdered: true, isWide: true }, elapsed: { name: "Wall time of the run", value: r => r.elapsed, text: seconds }, episodes: { name: "Episodes", value: r => r.episodes, text: whole },
};
const EPISODE_FACTS = {
  number: { name: "Episode", value: e => e.number, text: whole, isOrdered: true }, reward: { name: "Reward", value: e => e.reward, text: x => fixed(x, 2), isScored: true }, solved: { name: "Solved", value: e => truth(e.solved), text: x => fixed(x, 2), isShare: true },
  turns: { name: "Turns", value: e => e.turns, text: whole }, sampled: { name: "Sampled tokens", value: e => e.sampled, text: whole }, tokens: { name: "Tokens", value: e => e.tokens, text: whole }, images: { name: "Images", value: e => e.images, text: whole },
  seconds: { name: "Time", value: e => e.seconds, text: seconds }, unread: { name: "Replies not understood", value: e => e.unread, text: whole }, rewrites: { name: "Rewritten histories", value: e => e.rewrites, text: whole },
  seed: { name: "Seed", value: e => e.seed === null ? null : Number(e.seed), text: whole },
};
export const EPISODE_AXES = new Map(Object.entries(EPISODE_FACTS).map(onScale));

export const RECORDED = "metric ";  // starts the key of a recorded metric, which may have any name
// Numbers among the settings of runs, and metrics that were recorded; `table` is the server's answer.
export function runAxes(runs, table) {
  const setting = key => r => { const text = r.settings[key], value = text?.trim() ? Number(text) : NaN; return Number.isFinite(value) ? value : null; };
  const settings = [...new Set(runs.flatMap(run => Object.keys(run.settings)))].sort().map(key => [`setting ${key}`, { name: key, value: setting(key), text: exact }]).filter(([, axis]) => runs.some(run => axis.value(run) !== null));
  const recorded = (table?.names ?? []).map((name, i) => [`${RECORDED}${name}`, { name, value: r => table.runs[r.name]?.[i] ?? null, text: exact }]).filter(([, axis]) => runs.some(run => isNumber(axis.value(run))));
  const groups = [["Run", Object.entries(FACTS)], ["Metrics", Object.entries(METRICS)], ["Recorded metrics", recorded], ["Settings", settings]].map(([label, entries]) => [label, entries.map(entry => label === "Metrics" ? onScale(entry) : [entry[0], { ...entry[1], scale: rangeOf }])]);
  return { axes: new Map(groups.flatMap(([, entries]) => entries)), groups: groups.filter(([, entries]) => entries.length) };
}
