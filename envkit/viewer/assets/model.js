// What the pages derive from the rows of a run: groups, advantages, the list as it is filtered.
import { num, isSummable } from "./dom.js";

const EPSILON = 1e-6;  // added to the deviation, as trainers do

const average = xs => xs.length ? xs.reduce((a, b) => a + b, 0) / xs.length : null;
function deviation(xs) {  // of the sample
  if (xs.length < 2) return 0;
  const mid = average(xs);
  return Math.sqrt(xs.reduce((sum, x) => sum + (x - mid) ** 2, 0) / (xs.length - 1));
}
// A run as `source.run()` gives it, with objects for its rows and its groups.
export function derive(run) {
  const groups = new Map();
  const episodes = run.rows.map(values => {
    const e = Object.fromEntries(run.columns.map((name, i) => [name, values[i]]));
    if (typeof e.reward !== "number") e.reward = null;
    e.run = run.name;
    const key = e.group === null ? `\0${e.number}` : `${e.group}\0${e.role ?? ""}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(e);
    return e;
  });
  const byId = new Map(episodes.map(e => [e.id, e]));
  for (const e of episodes) e.from = e.parent === null ? null : byId.get(e.parent) ?? null;
  const list = [...groups].map(([key, members], i) => grouped(key, members, i + 1));
  const teams = new Map();
  for (const e of episodes) if (e.rollout !== null) teams.set(e.rollout, teams.get(e.rollout) ?? []).get(e.rollout).push(e);
  for (const e of episodes) e.team = teams.get(e.rollout) ?? [];
  return { ...run, episodes, groups: list, byNumber: new Map(episodes.map(e => [e.number, e])), isGrouped: list.some(g => g.members.length > 1), hasImages: episodes.some(e => e.thumbnail) };
}
function grouped(key, members, number) {
  members.sort((a, b) => (a.member ?? 0) - (b.member ?? 0) || a.number - b.number);
  const rewards = members.map(m => m.reward).filter(isSummable), mean = average(rewards), std = deviation(rewards);
  const group = { key, number, members, mean, seed: members.every(m => m.seed === members[0].seed) ? members[0].seed : null, thumbnail: members.find(m => m.thumbnail)?.thumbnail ?? null, std, isTree: members.some(m => m.from), isFlat: rewards.length > 1 && rewards.every(r => r === rewards[0]),
    solved: members.filter(m => m.solved).length, judged: members.filter(m => m.solved !== null).length, task: members[0].task, family: members[0].family,
    turns: average(members.map(m => m.turns)), tokens: average(members.map(m => m.sampled)), seconds: average(members.map(m => m.seconds)) };
  members.forEach((m, i) => {
    m.of = group;
    m.place = i + 1;
    m.name = group.isTree ? `leaf ${i + 1}` : `member ${i + 1}`;
    m.advantage = !isSummable(m.reward) || rewards.length < 2 || group.isTree ? null : group.isFlat ? 0 : (m.reward - mean) / (std + EPSILON);
  });
  return group;
}
// How many turns two leaves have in common: as many as they share with the last episode that both
// come from. 0 for episodes of different trees.
export function sharedTurns(a, b) {
  const left = new Map();
  for (let e = a, turns = Infinity; e && !left.has(e); turns = e.shared, e = e.from) left.set(e, turns);
  const seen = new Set();
  for (let e = b, turns = Infinity; e && !seen.has(e); turns = e.shared, e = e.from) {
    seen.add(e);
    if (left.has(e)) return Math.min(turns, left.get(e), a.shared + a.replies, b.shared + b.replies);
  }
  return 0;
}
export const SHOWS = {
  __proto__: null,
  all: ["All", () => true],
  mixed: ["Mixed rewards", e => e.of.members.length > 1 && !e.of.isFlat],
  flat: ["Equal rewards", e => e.of.isFlat],
  solved: ["Solved", e => e.solved],
  failed: ["Not solved", e => e.solved === false],
  unread: ["Not understood", e => e.unread > 0],
  cut: ["Cut replies", e => e.cut > 0],
  faults: ["Faults", e => e.flags.includes("fault")],
  rewritten: ["Rewritten histories", e => e.rewrites > 0],
  broken: ["Broken records", e => e.flags.includes("broken")],
  retried: ["Retried", e => e.flags.includes("retry") || e.flags.includes("restart")],
};
// What tells an episode or a group from others in a list.
const seeded = (name, { seed }) => seed === null ? name : `${name} · seed\u00a0${seed}`;
export const nameOfEpisode = e => seeded(`episode\u00a0${e.number}`, e);
export const nameOfGroup = g => g.members.length === 1 ? nameOfEpisode(g.members[0]) : seeded(`group\u00a0${g.number}`, g);
export const keyOf = group => (group.members[0].group ?? "").toWellFormed();  // as an address can have it
const STOPS = { __proto__: null, terminated: "ended by the environment", env_truncated: "the environment's turn limit", max_turns: "ran out of turns", turn_tokens: "reply too long",
  response_tokens: "ran out of tokens", sampled_tokens: "ran out of sampled tokens", context_tokens: "context is full", max_images: "too many images", max_sequences: "too many sequences", episode_timeout: "episode timed out",
  step_timeout: "step timed out", aborted: "stopped", env_fault: "environment fault", engine_fault: "engine fault", ledger_fault: "ledger fault" };
// What success goes by: a reward threshold, or the environment's own verdict.
export function ruleOf({ solved }) {
  const { thresholds = [], verdicts = 0 } = solved?.by ?? {};
  return [thresholds.length ? `reward ≥ ${thresholds.map(x => num(x)).join(" to ")}` : "", verdicts ? "own verdict" : ""].filter(Boolean).join(" or ");
}
export const stopWords = stop => STOPS[stop] ?? String(stop);
export const CHECKS = { __proto__: null, equal: "checked, equal to the full render", whitespace: "checked, differs from the full render in white space", different: "checked, different from the full render", unchecked: "unchecked, no comparison was possible" };
export const isFault = stop => stop.endsWith("_fault");
export const hue = reward => ({ "--score": Math.max(0, Math.min(1, reward ?? 0)) });  // shaping above 1 does not dim a solved episode
export const gain = reward => ({ "--score": reward > 0 ? 1 : 0 });  // of a turn, whose sign counts
