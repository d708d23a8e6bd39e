// One run: first what decides, then what explains.
import { h, num, percent, seconds, many, plain, folded, isNumber } from "./dom.js";
import { link } from "./address.js";
import { hue, isFault, keyOf, nameOfEpisode, nameOfGroup, ruleOf, stopWords } from "./model.js";
import { leafLanes, treeWords } from "./branches.js";
import { laneList } from "./tree.js";
import { distribution, episodeCard, figure, interval, lazyPictures, legend, stack, table } from "./parts.js";

const half = (x) => isNumber(x?.low) ? h("small", {}, ` ± ${num((x.high - x.low) / 2)}`) : null;
const solvedShare = group => group.judged ? group.solved / group.judged : 0;
const MANY_GROUPS = 24, MOST_CELLS = 24, MOST_TREES = 4, MOST_PILES = 600, MOST_EXAMPLES = 3;
// Up to so many entries of a list, evenly spaced.
const evenly = (list, most) => list.length <= most ? list : Array.from({ length: most }, (_, i) => list[Math.floor(i * list.length / most)]);

function headline(f, eps) {
  const { reward, solved, groups, unread } = f, flat = groups.compared - groups.signal, none = f.unsummable ? "no reward can be averaged" : "no episode has a reward";
  return h("section.figs", { "aria-label": "What matters" },
    reward ? figure("Reward", [num(reward.mean), half(reward)], isNumber(reward.low) ? `mean, 95% interval over ${many(reward.groups, "group")}` : `mean of ${many(reward.groups, "group")}: no interval`, { extra: interval(reward.low, reward.mean, reward.high, reward.top, reward.bottom) })
      : figure("Reward", "–", none),
    solved.of ? figure("Solved", percent(solved.count / solved.of), `${num(solved.count)} of ${num(solved.of)}${isNumber(solved.low) ? `, interval ${percent(solved.low)} to ${percent(solved.high)}` : ""}, ${ruleOf(f)}`, { extra: interval(solved.low, solved.count / solved.of, solved.high) }) : figure("Solved", "–", reward ? "no reward threshold is declared" : none),
    groups.compared ? figure("Groups with signal", [num(groups.signal), h("small", {}, ` of ${num(groups.compared)}`)], flat ? h("a", { href: eps({ show: "flat" }) }, `${num(flat)} with equal rewards: no gradient`) : "every group has a gradient", { isBad: groups.signal < groups.compared / 2 })
      : figure("Groups", "–", reward ? "one episode per task" : none),
    figure("Faults", num(f.faults), f.faults ? h("a", { href: eps({ show: "faults" }) }, "episodes without a reward") : "no infrastructure failure", { isBad: f.faults > 0 }),
    figure("Not understood", num(unread.count), [unread.count ? h("a", { href: eps({ show: "unread" }) }, `${percent(unread.count / unread.of)} of ${many(unread.of, "reply", "replies")}`) : `of ${many(unread.of, "reply", "replies")}`,
      f.cut ? [", ", h("a", { href: eps({ show: "cut" }) }, `${num(f.cut)} cut at the token limit`)] : null]));
}
function causes(run, eps) {
  const { causes: list, reward } = run.figures, said = text => reward ? h("span.cut.muted", { title: plain(text) }, plain(text)) : h("pre.error", { tabindex: 0 }, plain(text));
  return list.length ? h("section.card", {}, h("h2", {}, "Causes of faults"), h("p.muted", {}, `Infrastructure ended ${many(run.figures.faults, "episode")}. An episode with a fault has no reward and is not trained.`),
    h(`ul.causes${reward ? ".brief" : ""}`, {}, list.map(([cause, n, text, number]) => h("li", {}, h("b", {}, num(n, 0)), h("a", { href: eps({ show: "faults", fault: cause }) }, plain(cause)), said(text), h("a", { href: link([run.name, "e", number]) }, `episode ${number}`))))) : null;
}
// A few episodes of each outcome; without outcomes, those with the highest and the lowest rewards.
function examples(run, eps, pictures) {
  if (!run.hasImages) return null;
  const seen = run.episodes.filter(e => e.thumbnail), ranked = seen.filter(e => e.reward !== null).sort((a, b) => b.reward - a.reward), half = Math.ceil(ranked.length / 2);
  const kinds = seen.some(e => e.solved !== null) ? [["Solved", seen.filter(e => e.solved), { show: "solved" }], ["Not solved", seen.filter(e => e.solved === false), { show: "failed" }]]
    : [["Highest rewards", ranked.slice(0, half).slice(0, MOST_EXAMPLES), { view: "list", sort: "reward", dir: "down" }], ["Lowest rewards", ranked.slice(half).slice(-MOST_EXAMPLES), { view: "list", sort: "reward", dir: "up" }]];
  const faults = ["Faults", seen.filter(e => e.fault), { show: "faults" }];
  return h("section.card", {}, h("h2", {}, "Examples"), h("p.muted", {}, "Episodes from all over the run, each with its last image."),
    h("div.examples", {}, [...kinds, faults].filter(([, found]) => found.length).map(([name, found, query]) => h("section", {}, h("h3", {}, h("a", { href: eps(query) }, name)),
      h("div.members", {}, evenly(found, MOST_EXAMPLES).map(e => episodeCard(e, link([run.name, "e", e.number]), pictures, nameOfEpisode(e))))))));
}
function groupStrip(run, eps, pictures) {
  if (!run.isGrouped || !run.figures.reward) return null;
  const sorted = [...run.groups].sort((a, b) => solvedShare(b) - solvedShare(a) || (b.mean ?? 0) - (a.mean ?? 0));
  const isDense = sorted.length > MANY_GROUPS, shown = evenly(sorted, MOST_PILES), few = shown.length < sorted.length ? ` ${num(shown.length, 0)} of ${many(sorted.length, "group")}, evenly spaced.` : "";
  const cell = m => h(`i.cell${m.reward === null ? ".none" : ""}`, { vars: hue(m.reward) }, isDense ? null : h("em", {}, num(m.reward)));
  return h("section.card", {}, h("h2", {}, "Solve rate by group"), h("p.muted", {}, `One column per task, one cell per member, best first. Dashed columns have equal rewards and give no gradient.${few}`),
    h(`div.strip${isDense ? ".dense" : ""}`, {}, shown.map(g => h(`a.col${g.isFlat ? ".flat" : ""}`, { href: eps({ group: keyOf(g) }), title: `${nameOfGroup(g)}: ${plain(g.task)}`, "aria-label": `${nameOfGroup(g)}: ${g.judged ? `${g.solved} of ${g.judged} solved, ` : ""}mean ${num(g.mean)}${g.isFlat ? ", equal rewards" : ""}: ${plain(g.task)}` },
      isDense || !run.hasImages ? null : pictures.node(g.thumbnail), h("span.pile", {}, [...g.members].sort((a, b) => (b.reward ?? -1e9) - (a.reward ?? -1e9)).filter((_, i) => i % Math.ceil(g.members.length / MOST_CELLS) === 0).map(cell)),
      isDense ? null : [h("b", {}, g.judged ? `${g.solved}/${g.judged}` : "–"), h("span.muted", {}, nameOfGroup(g)), h("span.tasktext", { dir: "auto" }, plain(g.task))]))));
}
// The trees whose leaves differ most.
function trees(run, eps, pictures) {
  const all = run.groups.filter(g => g.isTree), shown = [...all].sort((a, b) => b.std - a.std).slice(0, MOST_TREES);
  return all.length ? h("section.card", {}, h("h2", {}, "Trees"), h("p.muted", {}, "One lane per leaf. A lane starts where it was forked; colours are the mean reward of all leaves below."),
    h("div.forest", {}, shown.map(g => { const lanes = leafLanes(run.name, g.members, { pictures: run.hasImages ? pictures : null }); return h("section", {}, h("h3.cut", { dir: "auto", title: plain(g.task) }, plain(g.task)), h("p.muted", {}, `${nameOfGroup(g)} · ${treeWords(lanes)}`), laneList(lanes, plain(g.task))); })),
    all.length > shown.length ? h("p", {}, h("a", { href: eps({}) }, `All ${num(all.length, 0)} groups with trees`)) : null) : null;
}
function times(f) {
  const all = f.times.reduce((sum, [, mean]) => sum + mean, 0);
  if (!all) return null;
  return [h("h2", {}, "Time per turn"), stack(f.times.map(([k, mean]) => [k, mean]), all), h("ul.legend", {}, f.times.map(([k, mean, p95], i) => h("li", {}, h(`i.s${i}`), h("span", {}, k), h("b", {}, seconds(mean)), h("span.muted.wider", {}, `p95 ${seconds(p95)}`))))];
}
function renders(f) {
  if (!f.renders.length) return null;
  const pairs = f.renders.map(([, n, words]) => [words, n]), all = pairs.reduce((sum, [, n]) => sum + n, 0);
  return [h("h2", {}, "Checked observations"), h("p.muted", {}, `How the tokens of ${many(all, "observation")} compare with what the chat template renders for the whole conversation.`), stack(pairs, all), legend(pairs, all)];
}
export function notes(list) {
  return list.length ? h("section.notes", { "aria-label": "Notes" }, list.map(text => h("p.notice", {}, plain(text)))) : null;
}
export function runPage({ run, source }) {
  const pictures = lazyPictures(source, run.name), unchecked = run.figures.renders.find(([status]) => status === "unchecked")?.[1], compared = run.figures.renders.filter(([status]) => status !== "rest").reduce((sum, [, n]) => sum + n, 0);
  const f = run.figures, eps = query => link([run.name, "episodes"], query), terms = f.terms;
  const stops = f.stops.map(([k, n]) => [stopWords(k), n, eps({ stop: k }), isFault(k)]), size = run.groups.reduce((most, g) => Math.max(most, g.members.length), 0);
  const groups = run.isGrouped ? ` in ${many(run.groups.length, "group")}${run.groups.every(g => g.members.length === size) ? ` of ${size}` : ""}` : "";
  const broken = f.broken ? [`Episodes that break a rule of the ledger: ${f.broken}. Do not train on them.`] : [];
  const unseen = unchecked ? [`Observations that could not be compared with a full render: ${unchecked} of ${compared}.`] : [];
  return { name: "run", title: run.name, tab: 0, leave: pictures.stop, node: [
    h("div.head", {}, h("h1", {}, plain(f.environments.join(", ") || run.name)), h("p.muted", {}, plain([`${many(f.episodes, "episode")}${groups}`, f.engines.length && `engine ${f.engines.join(", ")}`, isNumber(f.seconds) && `${seconds(f.seconds)} per episode`, run.live && "still running"].filter(Boolean).join(" · ")))),
    notes([...broken, ...unseen, ...run.notes]), f.episodes ? null : h("p.pad.muted", {}, run.live ? "No episode has finished yet. Episodes appear here as they finish." : "This run has no readable episodes."),
    ...f.episodes ? facts() : []] };
  function facts() {
    const families = f.families.length > 1 ? h("section.card", {}, h("h2", {}, "By family"), h("ul.families", {}, f.families.map(([name, solved, n]) =>
      h("li", {}, h("a", { href: eps({ q: name }) }, plain(name.replaceAll("_", " "))), h("span.bar", { vars: { "--n": solved / n } }), h("span", {}, `${num(solved)} of ${num(n)}`))))) : null;
    const slowest = f.slowest.length ? h("section.card", {}, h("h2", {}, "Slowest episodes"), h("ul.slow", {}, f.slowest.map(([number, task, time, what]) => { const e = run.byNumber.get(number); return h("li", {}, e && run.hasImages ? pictures.node(e.thumbnail) : h("span"), h("a.cut", { href: link([run.name, "e", number]) }, `${e ? nameOfEpisode(e) : `episode ${number}`} · ${plain(task)}`), h("b", {}, seconds(time)), h("span.muted", {}, plain(what))); }))) : null;
    return [headline(f, eps), causes(run, eps), examples(run, eps, pictures), groupStrip(run, eps, pictures), trees(run, eps, pictures),
    h("div.two", {},
      h("section.card", {}, h("h2", {}, "What ended the episodes"), stack(stops, f.episodes), legend(stops, f.episodes),
        terms.length ? [h("h2", {}, "Reward terms"), table(["term", "mean per episode", "episodes with it"], terms.map(([k, mean, n]) => [plain(k), num(mean), num(n)]))] : null, times(f), renders(f)),
      f.distributions.length ? h("section.card", {}, h("h2", {}, "Distributions"), h("div.dists", {}, f.distributions.map(distribution))) : null),
    h(families && slowest ? "div.two" : "div", {}, families, slowest),
    folded("All figures", h("div.two", {}, table(["what", "value"], f.summary.map(([k, v]) => [k, plain(v)])), table(["metric", "value"], f.metrics.map(([k, v]) => [plain(k), num(v, 4)])))),
    ];
  }
}
