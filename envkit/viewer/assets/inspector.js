// The facts of the chosen turn: reward and its terms, tokens, times, info, engine.
import { h, num, numeric, signed, seconds, plain, folded, isNumber } from "./dom.js";
import { CHECKS, gain } from "./model.js";
import { tokenSection } from "./tokens.js";

const DIGEST = /^(?:\w+:)?[0-9a-f]{32,}$/;  // on one line of a narrow box, whole in its title
export const factList = entries => h("dl.facts", {}, entries.filter(([, v]) => v !== null && v !== undefined && v !== "").map(([k, v, isCode]) => [h("dt", {}, k), h(`dd${isCode ? ".code" : ""}${DIGEST.test(v) ? ".digest" : ""}`, { title: DIGEST.test(v) ? v : null }, plain(v))]));
export const rewardChip = turn => isNumber(turn.reward) && turn.reward !== 0 ? h("b.chip", { vars: gain(turn.reward), title: "reward of this turn" }, signed(turn.reward)) : null;
export const turnSeconds = turn => Object.values(turn.times ?? {}).map(numeric).reduce((a, b) => a + b, 0);

function rewardPart(turn) {
  const terms = Object.entries(turn.terms ?? {});
  const total = turn.reward === null || turn.reward === undefined ? h("span.muted", {}, "none") : rewardChip(turn) ?? h("span.muted", {}, num(turn.reward));
  return h("section", {}, h("h3", {}, "Reward ", total), terms.length ? h("dl.facts", {}, terms.map(([k, v]) => [h("dt", {}, plain(k)), h("dd", {}, isNumber(v) ? signed(v) : plain(JSON.stringify(v)))])) : null);
}
function timePart(turn) {
  const shares = Object.entries(turn.times ?? {}).map(([k, v]) => [k, numeric(v)]), all = turnSeconds(turn);
  if (!(all > 0)) return null;
  return h("section", {}, h("h3", {}, "Time ", h("span.muted", {}, seconds(all))),
    h("div.stack", { "aria-hidden": "true" }, shares.map(([k, v], i) => h(`span.s${i}`, { vars: { "--n": v / all }, title: `${k} ${seconds(v)}` }))),
    h("dl.facts", {}, shares.map(([k, v], i) => [h("dt", {}, h(`i.s${i}`), k), h("dd", {}, seconds(v))])));
}
function enginePart(turn) {
  const retries = Object.entries(turn.env_retries ?? {}).map(([k, n]) => `${k} × ${n}`).join(", ");
  const entries = [["finish", turn.finish, true], ["weights", turn.version, true], ["prompt tokens", num(turn.prompt_tokens)], ["from the cache", num(turn.cached_tokens)], ["observation tokens", num(turn.observation_tokens)],
    ["observation after it", CHECKS[turn.sanity] ?? turn.sanity], ["neutralised texts", turn.neutralised], ["engine retries", turn.engine_retries || null], ["resampled replies", turn.resamples || null], ["environment retries", retries]];
  return turn.finish === undefined ? null : folded("Engine", factList(entries));
}
// What an agent's command wrote, line by line.
function outputPart({ exit_status: status, stdout, stderr }) {
  const texts = [["standard output", stdout], ["standard error", stderr]].filter(([, text]) => typeof text === "string" && text.trim());
  return folded("Output of the agent", isNumber(status) ? factList([["exit status", status]]) : null, texts.map(([name, text]) => [h("p.muted", {}, name), h("pre", { tabindex: 0 }, plain(text))]));
}
export function inspector(data, turn, n, total) {
  const { agent_output: output, ...rest } = turn.info ?? {}, info = Object.entries(rest);
  return h("div.inspect", {}, h("h2", {}, `Turn ${n}`, h("span.muted", {}, ` of ${total}`)), rewardPart(turn), tokenSection(turn, data.vocabulary, data.vocabulary_note), timePart(turn),
    info.length ? h("section", {}, h("h3", {}, "Info"), factList(info.map(([k, v]) => [plain(k), typeof v === "object" ? JSON.stringify(v) : String(v), true]))) : null, output && typeof output === "object" ? outputPart(output) : null, enginePart(turn));
}
