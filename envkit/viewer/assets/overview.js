// One run: first what decides, then what explains.
import { h, num, percent, seconds, many, plain, folded, isNumber } from "./dom.js";
import { link } from "./address.js";
import { hue, isFault, keyOf, stopWords } from "./model.js";
import { leafLanes, treeWords } from "./branches.js";
import { laneList } from "./tree.js";
import { distribution, figure, interval, legend, stack, table } from "./parts.js";

const half = (x) => isNumber(x?.low) ? h("small", {}, ` ± ${num((x.high - x.low) / 2)}`) : null;
const solvedShare = group => group.judged ? group.solved / group.judged : 0;
const MANY_GROUPS = 24, MOST_CELLS = 24, MOST_TREES = 4;

function headline(f, eps) {
  const { reward, solved, groups, unread } = f, flat = groups.compared - groups.signal;
  return h("section.figs", { "aria-label": "What matters" },
    reward ? figure("Reward", [num(reward.mean), half(reward)], isNumber(reward.low) ? `mean, 95% interval over ${many(reward.groups, "group")}` : `mean of ${many(reward.groups, "group")}: no interval`, { extra: interval(reward.low, reward.mean, reward.high, reward.top, reward.bottom) })
      : figure("Reward", "–", "no episode has a reward"),
    solved.of ? figure("Solved", percent(solved.count / solved.of), `${num(solved.count)} of ${num(solved.of)}${isNumber(solved.low) ? `, interval ${percent(solved.low)} to ${percent(solved.high)}` : ""}`, { extra: interval(solved.low, solved.count / solved.of, solved.high) }) : figure("Solved", "–", reward ? "no reward threshold is declared" : "no episode has a reward"),
    groups.compared ? figure("Groups with signal", [num(groups.signal), h("small", {}, ` of ${num(groups.compared)}`)], flat ? h("a", { href: eps({ show: "flat" }) }, `${num(flat)} with equal rewards: no gradient`) : "every group has a gradient", { isBad: groups.signal < groups.compared / 2 })
      : figure("Groups", "–", "one episode per task"),
    figure("Faults", num(f.faults), f.faults ? h("a", { href: eps({ show: "faults" }) }, "episodes without a reward") : "no infrastructure failure", { isBad: f.faults > 0 }),
    figure("Not understood", num(unread.count), unread.count ? h("a", { href: eps({ show: "unread" }) }, `${percent(unread.count / unread.of)} of ${many(unread.of, "reply", "replies")}`) : `of ${many(unread.of, "reply", "replies")}`));
}
function groupStrip(run, eps) {
  if (!run.isGrouped) return null;
  const sorted = [...run.groups].sort((a, b) => solvedShare(b) - solvedShare(a) || (b.mean ?? 0) - (a.mean ?? 0));
  return h("section.card", {}, h("h2", {}, "Solve rate by group"), h("p.muted", {}, "One column per task, one cell per member, best first. Dashed columns have equal rewards and give no gradient."),
    h(`div.strip${sorted.length > MANY_GROUPS ? ".dense" : ""}`, {}, sorted.map(g => h(`a.col${g.isFlat ? ".flat" : ""}`, { href: eps({ group: keyOf(g) }), title: plain(g.task), "aria-label": `${g.judged ? `${g.solved} of ${g.judged} solved, ` : ""}mean ${num(g.mean)}${g.isFlat ? ", equal rewards" : ""}: ${plain(g.task)}` },
      h("span.pile", {}, [...g.members].sort((a, b) => (b.reward ?? -1e9) - (a.reward ?? -1e9)).filter((_, i) => i % Math.ceil(g.members.length / MOST_CELLS) === 0).map(m => h(`i.cell${m.reward === null ? ".none" : ""}`, { vars: hue(m.reward) }, h("em", {}, num(m.reward))))),
      h("b", {}, g.judged ? `${g.solved}/${g.judged}` : "–"), h("span.tasktext", { dir: "auto" }, plain(g.task))))));
}
// The trees whose leaves differ most.
function trees(run, eps) {
  const all = run.groups.filter(g => g.isTree), shown = [...all].sort((a, b) => b.std - a.std).slice(0, MOST_TREES);
  return all.length ? h("section.card", {}, h("h2", {}, "Trees"), h("p.muted", {}, "One lane per leaf. A lane starts where it was forked; colours are the mean reward of all leaves below."),
    h("div.forest", {}, shown.map(g => { const lanes = leafLanes(run.name, g.members); return h("section", {}, h("h3.cut", { dir: "auto", title: plain(g.task) }, plain(g.task)), h("p.muted", {}, treeWords(lanes)), laneList(lanes, plain(g.task))); })),
    all.length > shown.length ? h("p", {}, h("a", { href: eps({}) }, `All ${num(all.length, 0)} groups with trees`)) : null) : null;
}
function times(f) {
  const all = f.times.reduce((sum, [, mean]) => sum + mean, 0);
  if (!all) return null;
  return [h("h2", {}, "Time per turn"), stack(f.times.map(([k, mean]) => [k, mean]), all), h("ul.legend", {}, f.times.map(([k, mean, p95], i) => h("li", {}, h(`i.s${i}`), h("span", {}, k), h("b", {}, seconds(mean)), h("span.muted.wider", {}, `p95 ${seconds(p95)}`))))];
}
export function notes(list) {
  return list.length ? h("section.notes", { "aria-label": "Notes" }, list.map(text => h("p.notice", {}, plain(text)))) : null;
}
export function runPage({ run }) {
  const f = run.figures, eps = query => link([run.name, "episodes"], query), terms = f.terms;
  const stops = f.stops.map(([k, n]) => [stopWords(k), n, eps({ stop: k }), isFault(k)]), size = Math.max(...run.groups.map(g => g.members.length));
  const groups = run.isGrouped ? ` in ${many(f.groups.count, "group")}${run.groups.every(g => g.members.length === size) ? ` of ${size}` : ""}` : "";
  const broken = f.broken ? [`Episodes that break a rule of the ledger: ${f.broken}. Do not train on them.`] : [];
  const unchecked = f.unchecked.count ? [`Observations that could not be compared with a full render: ${f.unchecked.count} of ${f.unchecked.of}.`] : [];
  return { name: "run", title: run.name, tab: 0, node: [
    h("div.head", {}, h("h1", {}, plain(f.environments.join(", ") || run.name)), h("p.muted", {}, plain([`${many(f.episodes, "episode")}${groups}`, f.engines.length && `engine ${f.engines.join(", ")}`, isNumber(f.seconds) && `${seconds(f.seconds)} per episode`, run.live && "still running"].filter(Boolean).join(" · ")))),
    notes([...broken, ...unchecked, ...run.notes]), f.episodes ? null : h("p.pad.muted", {}, run.live ? "No episode has finished yet. Episodes appear here as they finish." : "This run has no readable episodes."),
    ...f.episodes ? facts() : []] };
  function facts() {
    const families = f.families.length > 1 ? h("section.card", {}, h("h2", {}, "By family"), h("ul.families", {}, f.families.map(([name, solved, n]) =>
      h("li", {}, h("a", { href: eps({ q: name }) }, plain(name.replaceAll("_", " "))), h("span.bar", { vars: { "--n": solved / n } }), h("span", {}, `${num(solved)} of ${num(n)}`))))) : null;
    const slowest = f.slowest.length ? h("section.card", {}, h("h2", {}, "Slowest episodes"), h("ul.slow", {}, f.slowest.map(([number, task, time, what]) => h("li", {}, h("a.cut", { href: link([run.name, "e", number]) }, plain(task)), h("b", {}, seconds(time)), h("span.muted", {}, plain(what)))))) : null;
    return [headline(f, eps), groupStrip(run, eps), trees(run, eps),
    h("div.two", {},
      h("section.card", {}, h("h2", {}, "What ended the episodes"), stack(stops, f.episodes), legend(stops, f.episodes),
        terms.length ? [h("h2", {}, "Reward terms"), table(["term", "mean per episode", "episodes with it"], terms.map(([k, mean, n]) => [plain(k), num(mean), num(n)]))] : null, times(f)),
      h("section.card", {}, h("h2", {}, "Distributions"), h("div.dists", {}, f.distributions.map(distribution)))),
    h(families && slowest ? "div.two" : "div", {}, families, slowest),
    folded("All figures", h("div.two", {}, table(["what", "value"], f.summary.map(([k, v]) => [k, plain(v)])), table(["metric", "value"], f.metrics.map(([k, v]) => [plain(k), num(v, 4)])))),
    ];
  }
}
