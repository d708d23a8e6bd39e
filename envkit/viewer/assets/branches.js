// The tree of an episode: paths from its first turn to each end, and what the model saw where its
// history was written anew. envkit/viewer/sequences.py says what a sequence holds.
import { h, many, num, plain } from "./dom.js";
import { link } from "./address.js";
import { chip } from "./parts.js";
import { textOf } from "./tokens.js";

const SHOWN = 20_000;
export const ends = sequences => sequences.flatMap((_, i) => sequences.some(one => one.parent === i) ? [] : [i]);

// The turns that lead to the end of a sequence, each with the sequence that starts there, if one does.
export function pathTo(sequences, at) {
  const one = sequences[at];
  if (one.parent === null || one.parent >= at) return { turns: one.turns, final: one.final };
  const turns = pathTo(sequences, one.parent).turns.slice(0, one.branch_turn);
  return { turns: [...turns, ...one.turns.map((turn, i) => i ? turn : { ...turn, starts: one })], final: one.final };
}
const rewardOf = (data, at) => ({ reward: data.sequences[at].reward ?? data.reward });
export const branchName = (data, at) => `branch ${ends(data.sequences).indexOf(at) + 1}`;

// One link for each end of the tree; none for an episode with one.
export function branchList(view, run) {
  const { data, at, row } = view, all = ends(data.sequences);
  if (all.length < 2) return null;
  return h("div.switch", { role: "group", "aria-label": "Branches" }, all.map((end, i) => {
    const from = data.sequences[end].branch_turn + 1, what = `branch ${i + 1}, from turn ${from}`;
    return h("a", { href: link([run, "e", row.number], { b: end }), "aria-current": end === at ? "page" : null, title: what }, `branch ${i + 1} `, chip(rewardOf(data, end)), h("span.muted", {}, `turn ${from}`));
  }));
}
// Equal neighbours, such as the placeholders of an image, are said once.
function promptText(ids, vocabulary) {
  const parts = [];
  for (let i = 0, end; i < ids.length; i = end) {
    for (end = i + 1; ids[end] === ids[i]; end++);
    const text = textOf(ids[i], vocabulary);
    parts.push(end - i > 3 ? `${text}×${end - i} ` : text.repeat(end - i));
  }
  const all = parts.join("");
  return all.length > SHOWN ? `${all.slice(0, SHOWN)} … and ${num(all.length - SHOWN, 0)} more characters` : all;
}
export function rewritten(view, turn) {
  const { prompt, reason } = turn.starts ?? {}, { vocabulary } = view.data;
  if (!turn.starts) return null;
  if (!prompt) return h("p.rewrite", {}, h("b", {}, "Branch starts here"), reason ? ` · ${plain(reason)}` : "");
  const node = h("details.rewrite", { ontoggle: () => {
    if (!node.open || node.children.length > 1) return;
    node.append(h("p.muted", {}, vocabulary ? "What the model saw from here on:" : "What the model saw from here on, as token ids (envkit ui and envkit report take --model to show text):"),
      h("pre", { tabindex: 0 }, promptText(turn.tokens.context.slice(0, prompt.tokens), vocabulary)), ...prompt.images.map(sha => view.draw(sha, [])));
  } }, h("summary", {}, h("b", {}, "History rewritten"), ` · ${plain(reason)} · ${many(prompt.tokens, "token")}${prompt.images.length ? ` and ${many(prompt.images.length, "image")}` : ""}`));
  return node;
}
