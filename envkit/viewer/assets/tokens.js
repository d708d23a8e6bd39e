// The tokens of a turn, coloured by log-probability. They are a list box: the arrow keys walk
// through it and the line below says what a token is.
import { h, num, numeric, plain, lazily } from "./dom.js";

const FIRST = 1200, MORE = 10_000, FLOOR = -6;
let lists = 0;

function listed(entries, label, describe) {
  const read = h("p.read.muted", { role: "status" }, "Point at a token, or use the arrow keys."), name = `tokens-${lists += 1}`;
  let now = -1;
  const box = h("div.tokens", { role: "listbox", tabindex: 0, "aria-label": label });
  const choose = i => {
    if (i < 0 || i >= box.children.length) return;
    box.children[now]?.setAttribute("aria-selected", "false");
    now = i;
    const node = box.children[now];
    node.setAttribute("aria-selected", "true");
    box.setAttribute("aria-activedescendant", node.id);
    read.textContent = describe(entries[now]);
  };
  const nodes = (from, to) => entries.slice(from, to).map((entry, i) => h(`span${entry.mask === 0 ? ".masked" : ""}`, { role: "option", "aria-selected": "false", id: `${name}-${from + i}`,
    vars: entry.logprob === null ? null : { "--lp": Math.max(0, Math.min(1, entry.logprob / FLOOR)) } }, entry.text.replace(/\n/g, "⏎\n") + (entry.count > 1 ? ` ×${entry.count} ` : "")));
  box.append(...nodes(0, FIRST));
  box.addEventListener("pointerover", event => event.target !== box && choose([...box.children].indexOf(event.target)));
  box.addEventListener("focus", () => now < 0 && choose(0));
  box.addEventListener("keydown", event => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -now, End: box.children.length - 1 - now }[event.key];
    if (move === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    choose(now + move);
    box.children[now]?.scrollIntoView({ block: "nearest" });
  });
  const words = () => { const left = entries.length - box.children.length; return left > MORE ? `Show ${num(MORE, 0)} of ${num(left, 0)} more tokens` : `Show ${num(left, 0)} more tokens`; };
  const rest = entries.length > FIRST ? h("button.button", { type: "button", onclick: () => {
    box.append(...nodes(box.children.length, box.children.length + MORE));
    if (box.children.length < entries.length) rest.textContent = words(); else rest.remove();
  } }, words()) : null;
  return [box, rest, read];
}
const QUOTED = 40;
// What a chosen token says first: its text in quotes, which show the spaces, if there is one.
const quoted = (id, vocabulary) => {
  const text = vocabulary?.[id];
  return text ? `“${plain(text.length > QUOTED ? `${text.slice(0, QUOTED)}…` : text).replace(/\n/g, "⏎")}” · id ${id}` : `id ${id}`;
};
// Said once below the tokens of a turn: why some are numbers.
function textNote(ids, vocabulary, note) {
  if (vocabulary && ids.every(id => id in vocabulary)) return null;
  return vocabulary || note ? h("p.note", {}, plain(note || "#: the run stored no text for these tokens.")) : null;
}
export const textOf = (id, vocabulary) => vocabulary ? plain(vocabulary[id] ?? `#${id}`) || "∅" : `${id} `;

function sampled({ ids, mask, logprobs }, vocabulary) {
  return ids.map((id, i) => ({ id, text: textOf(id, vocabulary), mask: mask[i], logprob: numeric(logprobs[i]), count: 1 }));
}
function runsOf(ids, vocabulary) {  // equal neighbours, such as the placeholders of an image, are one entry
  const found = [];
  for (const id of ids) {
    if (found.length && found.at(-1).id === id) found.at(-1).count += 1;
    else found.push({ id, text: textOf(id, vocabulary), mask: null, logprob: null, count: 1 });
  }
  return found;
}
export function tokenSection(turn, vocabulary, reason) {
  const { ids, logprobs, context } = turn.tokens;
  if (!ids.length && !context.length) return h("section", {}, h("h3", {}, "Tokens"), h("p.muted", {}, "No tokens were recorded."));
  const values = logprobs.map(numeric), isFlat = values.every(x => x === 0), trained = turn.tokens.mask.filter(Boolean).length;
  const mean = values.reduce((a, b) => a + b, 0) / (values.length || 1), low = values.reduce((a, b) => Math.min(a, b), 0);
  const tell = t => `${quoted(t.id, vocabulary)} · log p ${num(t.logprob, 3)} · p ${num(Math.exp(t.logprob), 3)}${t.mask ? "" : " · mask 0, not trained"}`;
  const note = isFlat ? "" : ` · mean log p ${num(mean)} · lowest ${num(low)}`;
  return h("section.tokensec", {}, h("h3", {}, "Tokens ", h("span.muted", {}, `${num(ids.length, 0)}${note}`)),
    ids.length ? listed(sampled(turn.tokens, vocabulary), `${ids.length} sampled tokens`, tell) : h("p.muted", {}, "Nothing was sampled."),
    ids.length ? isFlat ? h("p.note", {}, "Every log-probability is 0, as in a scripted or a greedy reply.") : h("div.scale", {}, h("span", {}, "likely"), h("i", { "aria-hidden": "true" }), h("span", {}, "log p ≤ −6")) : null,
    trained < ids.length ? h("p.note", {}, turn.isInherited ? "These tokens belong to the parent episode: mask 0 here." : `${num(ids.length - trained, 0)} of them have mask 0.`) : null,
    textNote([...ids, ...context], vocabulary, reason),
    context.length ? lazily(`${num(context.length, 0)} context tokens before the reply, mask 0`, () => h("div", {}, listed(runsOf(context, vocabulary), "Context tokens", t => `${quoted(t.id, vocabulary)}${t.count > 1 ? ` × ${t.count}` : ""} · mask 0`))) : null);
}
