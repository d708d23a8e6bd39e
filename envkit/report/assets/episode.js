"use strict";
// One episode: its head, where its time went, what went wrong, and the conversation.

const PARTS = ["queue", "generate", "env", "encode"];
const STRAGGLER_FACTOR = 2; // of the median turn, from which on the longest turn is one

function head(episode, title) {
  const certificate = episode.certificate;
  return [
    el("h1", {}, title),
    el("p", { class: "badges" }, badge(episode.stop_reason, episode.kind),
      badge(`reward ${number(episode.reward)}`, numeric(episode.reward) > 0 ? "good" : ""),
      badge(`certificate ${certificate.status}`, certificate.kind),
      episode.problems.map((problem) => badge(problem.rule, "bad"))),
    episode.fault && el("div", { class: "fault", dir: "auto" },
      `Fault in ${episode.fault.where} (${episode.fault.kind}): ${episode.fault.message}`,
      el("p", { class: "muted" }, "No reward; every token has mask 0 for a trainer.")),
    episode.problems.map((problem) => el("div", { class: "fault" }, `${problem.rule}: ${problem.message}`)),
    facts([
      ["episode", episode.episode_id], ["environment", episode.env_id], ["engine", episode.engine],
      ["seed", episode.seed === null ? "none" : episode.seed], ["group", episode.group_id],
      ["duration", seconds(episode.duration_seconds)],
      ["restarts", episode.env_restarts ? String(episode.env_restarts) : null],
      ["seal", certificate.seal],
    ]),
    el("div", { class: "folds" }, fold("task", episode.task), fold("reset info", episode.reset_info),
      fold("metadata", episode.metadata)),
  ].flat().filter(Boolean);
}

const spent = (turn, part) => Math.max(0, numeric(turn[`${part}_seconds`]) || 0);
const total = (turn) => PARTS.reduce((sum, part) => sum + spent(turn, part), 0);

/** Returns the turn that took far longer than the others, and which part of it; null without one. */
function straggler(turns) {
  if (turns.length < 2) return null;
  const times = turns.map(total).sort((a, b) => a - b);
  const turn = turns.reduce((longest, one) => (total(one) > total(longest) ? one : longest));
  if (total(turn) < STRAGGLER_FACTOR * times[Math.floor((times.length - 1) / 2)] || total(turn) === 0) return null;
  return { turn, part: PARTS.reduce((most, part) => (spent(turn, part) > spent(turn, most) ? part : most)) };
}

function waterfall(turns, place) {
  const longest = Math.max(...turns.map(total), 1e-9);
  const slow = straggler(turns);
  const bars = turns.flatMap((turn, index) => {
    const isSlow = slow !== null && slow.turn === turn;
    return [
      el("a", { href: place(index), class: isSlow ? "straggler" : "" }, `turn ${turn.turn}`),
      el("div", { class: "track", title: PARTS.map((p) => `${p} ${seconds(spent(turn, p))}`).join(", ") },
        PARTS.map((part) => {
          const bar = el("div", { class: `k-${part}` });
          bar.style.width = `${(100 * spent(turn, part)) / longest}%`;
          return bar;
        })),
      el("span", { class: isSlow ? "straggler" : "muted" }, seconds(total(turn)), isSlow && ` straggler: ${slow.part}`),
    ];
  });
  const names = PARTS.map((name) => el("span", {}, el("i", { class: `k-${name}` }), name));
  return el("div", { class: "card" }, el("div", { class: "waterfall" }, bars), el("div", { class: "legend" }, names));
}

/** Returns what went wrong in a turn, as texts with a kind each. */
function troubles(turn) {
  const retries = Object.entries(turn.env_retries).map(([kind, count]) => `${count} × ${kind}`);
  return [
    turn.parse_error !== null && ["bad", "not understood", turn.parse_error],
    retries.length > 0 && ["warn", "step retried", `${retries.join(", ")}; recovered`],
    turn.engine_retries > 0 && ["warn", "engine retried", `${plural(turn.engine_retries, "failed call")}; recovered`],
    turn.resamples > 0 && ["warn", "sampled again", `${plural(turn.resamples, "reply", "replies")} that did not parse`],
    turn.finish_reason && turn.finish_reason !== "stop" && ["warn", "reply cut", turn.finish_reason],
  ].filter(Boolean);
}

/** Draws the list of everything that went wrong, with the turn and the cause. */
function events(episode, place) {
  const rows = episode.turns.flatMap((turn, index) => troubles(turn).map(([kind, name, cause]) => el("tr", {},
    el("td", {}, el("a", { href: place(index) }, `turn ${turn.turn}`)), el("td", {}, badge(name, kind)),
    el("td", { class: "cause", dir: "auto" }, cause))));
  if (episode.env_restarts) {
    rows.push(el("tr", {}, el("td", {}, "episode"), el("td", {}, badge("restarted", "warn")),
      el("td", {}, `${plural(episode.env_restarts, "time")} with a fresh environment, after a step that could not be recovered`)));
  }
  return rows.length === 0 ? [] : [el("h2", {}, "Errors and retries"),
    el("div", { class: "scroll" }, el("table", { class: "events" }, el("tbody", {}, rows)))];
}

function toolCall(call) {
  if (isEmpty(call)) return null;
  const { id, name, arguments: given, ...others } = call;
  const isPlain = typeof name === "string" && given !== null && typeof given === "object"
    && !Array.isArray(given) && Object.keys(others).length === 0;
  if (!isPlain) return el("div", { class: "call" }, el("h3", {}, "tool call"), json(call));
  const values = Object.entries(given).map(([key, value]) => [el("dt", { dir: "auto" }, key),
    el("dd", { dir: "auto" }, typeof value === "string" ? value : JSON.stringify(value, null, 2))]);
  return el("div", { class: "call" }, el("h3", {}, "tool call ", el("code", {}, name), typeof id === "string" && ` ${id}`), el("dl", {}, values));
}

function rewardTerms(turn) {
  const terms = turn.info === null || typeof turn.info !== "object" ? null : turn.info.reward_terms;
  if (isEmpty(terms) || typeof terms !== "object") return null;
  return el("p", { class: "terms muted" }, "reward terms: ", Object.entries(terms).map(([name, value]) =>
    badge(`${name} ${typeof value === "number" ? number(value) : JSON.stringify(value)}`)));
}

function messageCard(entry, turn, index, place) {
  const parts = entry.parts.map((part) => ("image" in part ? picture(part.image)
    : el("p", { class: "text", dir: "auto" }, part.text)));
  const title = turn
    ? [el("a", { href: place(index), title: "address of this turn" }, el("b", {}, `turn ${turn.turn}`)),
      el("span", {}, `${entry.role}, ${plural(turn.response_tokens, "token")}`),
      badge(`reward ${number(turn.reward)}`, numeric(turn.reward) > 0 ? "good" : ""),
      troubles(turn).map(([kind, name]) => badge(name, kind))]
    : [el("b", {}, entry.role)];
  const card = el("article", { class: `card message ${entry.role}` }, el("header", {}, title), parts,
    turn && turn.parse_error !== null && el("p", { class: "fault", dir: "auto" }, `parse error: ${turn.parse_error}`),
    fold("calls in the message", entry.tool_calls),
    turn && toolCall(turn.tool_call), turn && rewardTerms(turn),
    turn && fold("info of the step", turn.info));
  if (turn) {
    card.dataset.turn = String(index);
    card.tabIndex = -1;
  }
  return card;
}

/** Returns the messages, each with its turn: [message, turn or null, index of the turn]. */
function withTurns(episode) {
  const spoken = episode.messages.filter((entry) => entry.role === "assistant").length;
  // Examples in the prompt are assistant messages too; a turn that faulted early has no message.
  let turn = Math.min(episode.turns.length - spoken, 0);
  return episode.messages.map((entry) => {
    if (entry.role !== "assistant") return [entry, null, -1];
    const found = [entry, episode.turns[turn] || null, turn];
    turn += 1;
    return found;
  });
}

function conversation(episode, place) {
  const entries = withTurns(episode);
  if (entries.length === 0) return [el("p", { class: "muted" }, "No message was recorded.")];
  return entries.map(([entry, turn, index]) => messageCard(entry, turn, index, place));
}

/** Brings a turn into view and marks it. */
function showTurn(view, index) {
  for (const old of view.querySelectorAll(".target")) old.classList.remove("target");
  const cards = view.querySelectorAll(`[data-turn="${index}"]`);
  if (cards.length === 0) return;
  for (const card of cards) card.classList.add("target");
  cards[0].focus({ preventScroll: true });
  cards[0].scrollIntoView({ block: "start" });
}
