// One turn as a card: what the environment said, the image the model saw with its actions drawn on
// it, then thought and actions in words, once.
import { h, num, many, plain, folded, isNumber } from "./dom.js";
import { icon, isDrawn, penAfter, shot, summary } from "./marks.js";
import { rewardChip } from "./inspector.js";
import { parting, rewritten } from "./branches.js";

const LONG = 1400;
function long(text) {
  const shown = plain(text), node = h("p.said", { dir: "auto" }, shown.length > LONG ? `${shown.slice(0, LONG - 200)}…` : shown);
  if (shown.length <= LONG) return node;
  return [node, h("button.button.small", { type: "button", onclick: event => { node.textContent = shown; event.currentTarget.remove(); } }, `Show all ${num(shown.length, 0)} characters`)];
}
const ROLES = { tool: "tool", user: "environment", system: "system prompt", question: "environment, then the question" };
const flat = text => text.replace(/\s+/g, " ").trim();

// What was said before the reply. The task stands in the heading of the page, so it is not repeated.
export function heard(messages, title = null) {
  return messages.filter(m => m.role !== "system" && m.text.trim() && !(title && title.length < 320 && flat(m.text).replace(/^Task: /, "") === title))
    .map(m => h("div.heard", {}, h("span.role", {}, ROLES[m.role] ?? m.role), long(m.text)));
}
export function reply(turn) {
  const { thought, words, parse_error: error, marks } = turn;
  return h("div.reply", {}, h("span.role", {}, turn.agent ? `model: ${plain(turn.agent)}` : turn.purpose ? "model, for its own history" : "model"),
    thought.trim() ? long(thought) : words.length ? null : h("p.muted", {}, "(empty reply)"),
    words.length ? h("ul.acts", {}, words.map((text, i) => h(`li${marks[i]?.ok === false ? ".failed" : ""}`, {}, icon(marks[i]?.kind ?? "call"), plain(text)))) : null,
    turn.marks_left_out ? h("p.note", {}, `${many(turn.marks_left_out, "more action")} not shown`) : null,
    error ? h("p.error", {}, icon("bad"), "Not understood: ", plain(error)) : null,
    words.length ? folded("raw", h("pre", { tabindex: 0 }, plain(turn.reply))) : null);
}
// The images of a turn: all that are new, the last one last; marks go on the one they name.
function pictures(view, n, options) {
  const { turns, data } = view, turn = turns[n - 1], fresh = turn.heard.flatMap(m => m.images), shown = turn.shown;
  const named = turn.marks.filter(m => m.on && m.on !== shown).map(m => m.on);
  const names = [...new Set([...named, ...fresh, shown].filter(Boolean))];
  const earlier = turns.slice(0, n - 1).flatMap(t => t.marks), pen = penAfter(earlier);
  const draw = (sha, extra = {}) => view.draw(sha, turn.marks.filter(m => (m.on ?? shown) === sha), { pen: sha === shown ? pen : null, ...options, ...extra });
  return { names, fresh, draw };
}
export function turnCard(view, n, { isCompared = false, isEager = false, to = null } = {}) {
  const { turns, data } = view, turn = turns[n - 1];
  if (!turn) return endCard(view, n);
  const { names, fresh, draw } = pictures(view, n, { isEager });
  const isNew = fresh.length > 0 || n === 1 || isCompared;
  const unchanged = sha => h("details.fold", { open: turn.marks.some(isDrawn) }, h("summary", {}, "same image as before"), draw(sha));
  const what = summary(turn);
  return h(`article.turn${turn.purpose ? ".question" : ""}${turn.isInherited ? ".inherited" : ""}`, { "aria-label": `Turn ${n}` },
    h("h2", {}, h("b.n", {}, String(n)), h("span.cut", { dir: "auto" }, what.text), turn.purpose ? h("span.badge.only", { title: "The environment never saw this reply" }, `question to the model · ${plain(turn.purpose)}`) : null, turn.untrained ? h("span.badge.only", { title: "This reply has mask 0" }, `not trained · ${plain(turn.untrained)}`) : null, rewardChip(turn)),
    to ? parting(view, n, to) : null, rewritten(view, turn), heard(turn.heard, n === 1 ? data.title : null), names.map(sha => isNew || sha !== turn.shown ? draw(sha) : unchanged(sha)), reply(turn),
    turn.images?.length ? turn.images.map(sha => view.draw(sha, [])) : null);
}
function endCard(view, n) {
  const { turns, final, data } = view;
  if (n !== turns.length + 1) return h("article.turn.end", {}, h("p.muted", {}, `ended after ${many(turns.length, "turn")}`));
  const images = final.flatMap(m => m.images);
  return h("article.turn.end", { "aria-label": "End" }, h("h2", {}, h("b.n", {}, icon("terminate")), h("span.cut", { title: view.ending }, view.ending[0].toUpperCase() + view.ending.slice(1)), isNumber(data.reward) ? h("span.muted", {}, `reward ${num(data.reward)}`) : null),
    data.fault ? h("p.error", {}, icon("bad"), plain(`${data.fault.where}, ${data.fault.kind}: ${data.fault.message}`)) : null,
    heard(final), images.map(sha => view.draw(sha, [])), final.length ? null : h("p.muted", {}, "The environment said nothing more."));
}
