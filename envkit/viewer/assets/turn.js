// One turn as a card: what the environment said, the image that the model saw with the places of its
// actions, then thought and actions in words, once.
import { h, num, many, plain, folded, isNumber } from "./dom.js";
import { CHECKS } from "./model.js";
import { copyButton } from "./export.js";
import { icon, isDrawn, summary } from "./marks.js";
import { rewardChip } from "./inspector.js";
import { parting, rewritten } from "./branches.js";

const LONG = 1400, TEXT_SAID = 80;  // most characters of its text that the words of an action show
function long(text) {
  const shown = plain(text), node = h("p.said", { dir: "auto" }, shown.length > LONG ? `${shown.slice(0, LONG - 200)}…` : shown);
  if (shown.length <= LONG) return node;
  const unfold = () => { node.textContent = shown; rest.remove(); }, rest = h("button.button.small.rest", { type: "button", onclick: unfold }, `Show all ${num(shown.length, 0)} characters`);
  Object.assign(rest, { whole: shown, unfold });  // for the search and for a print; a click also chooses the turn
  return [node, rest];
}
const ROLES = { __proto__: null, tool: "tool", user: "environment", system: "system prompt", question: "environment, then the question" };
const flat = text => text.replace(/\s+/g, " ").trim();

// What was said before the reply. The task stands in the heading of the page, so it is not repeated.
export function heard(messages, title = null) {
  return messages.filter(m => m.role !== "system" && m.text.trim() && !(title && title.length < 320 && flat(m.text).replace(/^Task: /, "") === title))
    .map(m => h("div.heard", {}, h("span.role", {}, ROLES[m.role] ?? m.role), long(m.text)));
}
// The actions in words, numbered as on the image; a text that the words cut is there in full.
export const actions = ({ words, marks }) => h(`ol.acts${words.length > 1 ? ".numbered" : ""}`, {}, words.map((text, i) => h(`li${marks[i]?.ok === false ? ".failed" : ""}`, {}, icon(marks[i]?.kind ?? "call"), plain(text),
  marks[i]?.text?.length > TEXT_SAID ? folded(`all ${num(marks[i].text.length, 0)} characters`, h("pre", { tabindex: 0 }, plain(marks[i].text))) : null)));
const cutNote = turn => turn.cut ? h("p.cutnote", {}, h("b", {}, "✂ Cut here:"), ` ${turn.cut}`) : null;
function reply(turn) {
  const { thought, words, parse_error: error } = turn;
  return h("div.reply", {}, turn.reply ? copyButton("Copy reply", () => turn.reply) : null, h("span.role", {}, turn.agent ? `model: ${plain(turn.agent)}` : turn.purpose ? "model, for its own history" : "model"),
    thought.trim() ? long(thought) : words.length ? null : h("p.muted", {}, "(empty reply)"),
    words.length ? actions(turn) : null, cutNote(turn),
    turn.marks_left_out ? h("p.note", {}, `${many(turn.marks_left_out, "more action")} not shown`) : null,
    error ? h("p.error", {}, icon("bad"), "Not understood: ", plain(error)) : null,
    words.length ? h("details.fold.raw", {}, h("summary", {}, "raw"), h("pre", { tabindex: 0 }, plain(turn.reply))) : null);
}
// The images of a turn: all that are new, the last one last; marks go on the one they name.
function pictures(view, n, options) {
  const turn = view.turns[n - 1], fresh = turn.heard.flatMap(m => m.images), shown = turn.shown;
  const named = turn.marks.filter(m => m.on && m.on !== shown).map(m => m.on);
  const names = [...new Set([...named, ...fresh, shown].filter(Boolean))];
  const isMany = turn.marks.filter(isDrawn).length > 1, marks = turn.marks.map((m, i) => ({ ...m, step: isMany ? i + 1 : 0 }));
  const draw = sha => view.draw(sha, marks.filter(m => (m.on ?? shown) === sha), options);
  return { names, fresh, draw };
}
// The observation before a turn, if its tokens are not known to be those of the full render.
const renderNote = before => before?.sanity && before.sanity !== "equal" ? h("p.note.render", {}, "Tokens of the observation: ", plain(CHECKS[before.sanity] ?? before.sanity)) : null;
export function turnCard(view, n, { isCompared = false, isEager = false, to = null } = {}) {
  const { turns, data } = view, turn = turns[n - 1];
  if (!turn) return endCard(view, n);
  const { names, fresh, draw } = pictures(view, n, { isEager });
  const isNew = fresh.length > 0 || n === 1 || isCompared;
  const unchanged = sha => h("details.fold", { open: turn.marks.some(isDrawn) }, h("summary", {}, "same image as before"), draw(sha));
  const what = summary(turn);
  return h(`article.turn${turn.purpose ? ".question" : ""}${turn.isInherited ? ".inherited" : ""}`, { "aria-label": `Turn ${n}` },
    h("h2", {}, h("b.n", {}, String(n)), h("span.cut", { dir: "auto" }, what.text), turn.purpose ? h("span.badge.only", { title: "The environment never saw this reply" }, `question to the model · ${plain(turn.purpose)}`) : null, turn.untrained ? h("span.badge.only", { title: "This reply has mask 0" }, `not trained · ${plain(turn.untrained)}`) : null, rewardChip(turn)),
    to ? parting(view, n, to) : null, rewritten(view, turn), heard(turn.heard, n === 1 ? data.title : null), renderNote(turns[n - 2]), names.map(sha => isNew || sha !== turn.shown ? draw(sha) : unchanged(sha)), reply(turn),
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
