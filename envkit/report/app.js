"use strict";
// Draws one episode at a time from the JSON blocks of this file. All content becomes text nodes.

const overview = document.getElementById("overview");
const view = document.getElementById("episode");
const filter = document.getElementById("filter");
const rows = Array.from(document.querySelectorAll("table.episodes tbody tr"));
const PARTS = ["queue", "generate", "env", "encode"];
const SHOWN_TOKENS = { prompt: 150, observation: 150, model: 600 }; // the rest comes on a click
let shown = rows; // in the order of the table, for previous and next

function block(id) {
  const node = document.getElementById(id);
  return node === null ? null : JSON.parse(node.textContent);
}
const vocabulary = block("vocabulary");

function el(tag, options, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options || {})) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node[name] = value;
  }
  const isDrawn = (child) => child !== null && child !== undefined && child !== false && child !== "";
  node.append(...children.flat(Infinity).filter(isDrawn));
  return node;
}

const badge = (text, kind) => el("span", { class: `badge ${kind || ""}` }, text);
const number = (value) => (value === null ? "none" : typeof value === "object" ? value.$float
  : Number.isInteger(value) ? String(value) : Number(value.toPrecision(4)).toString());
const seconds = (value) => (value >= 10 ? `${value.toFixed(1)} s` : value >= 1 ? `${value.toFixed(2)} s`
  : `${(1000 * value).toFixed(value < 0.01 ? 1 : 0)} ms`);
function json(value) {
  const line = JSON.stringify(value);
  return el("pre", {}, line.length <= 110 ? line : JSON.stringify(value, null, 2));
}
const isEmpty = (value) => value === null || (typeof value === "object" && !Object.keys(value).length);

function fold(title, value) {
  return isEmpty(value) ? null : el("details", {}, el("summary", {}, title), json(value));
}

function facts(entries) {
  return el("dl", { class: "facts" }, entries.filter(([, value]) => value !== null && value !== "")
    .map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function picture(sha256) {
  const stored = document.getElementById(`image-${sha256}`);
  if (stored === null) {
    const href = `images/${sha256}.png`;
    return el("p", { class: "muted" }, "picture not in this file: ", el("a", { href }, href));
  }
  const image = el("img", { alt: `picture ${sha256.slice(0, 12)}`, title: sha256, loading: "lazy" });
  image.addEventListener("load", () => {
    if (image.naturalWidth < 64) image.classList.add("small");
  });
  image.src = stored.textContent;
  return image;
}

function head(episode) {
  const certificate = episode.certificate;
  return [
    el("h1", {}, `Episode ${episode.number}`),
    el("p", {}, badge(episode.stop_reason, episode.kind),
      badge(`reward ${number(episode.reward)}`, episode.reward > 0 ? "good" : ""),
      badge(`certificate ${certificate.status}`, certificate.kind),
      episode.problems.map((problem) => badge(problem.rule, "bad"))),
    episode.fault && el("div", { class: "fault" },
      `Fault in ${episode.fault.where} (${episode.fault.kind}): ${episode.fault.message}`,
      el("p", { class: "muted" }, "No reward; every token has mask 0 for a trainer.")),
    episode.problems.map((problem) => el("div", { class: "fault" }, `${problem.rule}: ${problem.message}`)),
    facts([
      ["episode", episode.episode_id], ["environment", episode.env_id], ["engine", episode.engine],
      ["seed", episode.seed === null ? "none" : String(episode.seed)], ["group", episode.group_id],
      ["duration", seconds(episode.duration_seconds)],
      ["restarts", episode.env_restarts ? String(episode.env_restarts) : null],
      ["seal", certificate.seal],
    ]),
    el("p", {}, fold("task", episode.task), fold("reset info", episode.reset_info),
      fold("metadata", episode.metadata)),
  ].flat().filter((node) => node !== null);
}

function waterfall(turns) {
  const total = (turn) => PARTS.reduce((sum, part) => sum + turn[`${part}_seconds`], 0);
  const longest = Math.max(...turns.map(total), 1e-9);
  const bars = turns.flatMap((turn) => [
    el("span", {}, `turn ${turn.turn}`),
    el("div", { class: "track", title: PARTS.map((p) => `${p} ${seconds(turn[`${p}_seconds`])}`).join(", ") },
      PARTS.map((part) => {
        const bar = el("div", { class: `k-${part}` });
        bar.style.width = `${(100 * turn[`${part}_seconds`]) / longest}%`;
        return bar;
      })),
    el("span", { class: "muted" }, seconds(total(turn))),
  ]);
  return el("div", { class: "card" }, el("div", { class: "waterfall" }, bars), legend(PARTS));
}

function legend(names) {
  return el("div", { class: "legend" },
    names.map((name) => el("span", {}, el("i", { class: `k-${name}` }), name)));
}

function turnMarks(turn) {
  const retries = Object.entries(turn.env_retries).map(([kind, count]) => `${count} x ${kind}`);
  return [
    badge(`reward ${number(turn.reward)}`, turn.reward > 0 ? "good" : ""),
    turn.parse_error !== null && badge("not understood", "bad"),
    retries.length > 0 && badge(`step retried: ${retries.join(", ")}`, "warn"),
    turn.engine_retries > 0 && badge(`engine retried: ${turn.engine_retries}`, "warn"),
    turn.resamples > 0 && badge(`sampled again: ${turn.resamples}`, "warn"),
    turn.finish_reason && turn.finish_reason !== "stop" && badge(turn.finish_reason, "warn"),
  ].filter(Boolean);
}

function messageCard(entry, turn) {
  const parts = entry.parts.map((part) => ("image" in part ? picture(part.image)
    : el("p", { class: "text" }, part.text)));
  const title = turn
    ? [el("b", {}, `turn ${turn.turn}`), el("span", {}, `${entry.role}, ${turn.response_tokens} tokens`),
      turnMarks(turn)]
    : [el("b", {}, entry.role)];
  return el("article", { class: `card message ${entry.role}` }, el("header", {}, title), parts,
    turn && turn.parse_error !== null && el("p", { class: "fault" }, `parse error: ${turn.parse_error}`),
    fold("calls in the message", entry.tool_calls),
    turn && turn.tool_call !== null && el("div", {}, el("h3", {}, "tool call"), json(turn.tool_call)),
    turn && fold("info of the step", turn.info));
}

function conversation(episode) {
  const spoken = episode.messages.filter((entry) => entry.role === "assistant").length;
  // Examples in the prompt are assistant messages too; a turn that faulted early has no message.
  let turn = Math.min(episode.turns.length - spoken, 0);
  return episode.messages.map((entry) => {
    if (entry.role !== "assistant") return messageCard(entry, null);
    const record = episode.turns[turn] || null;
    turn += 1;
    return messageCard(entry, record);
  });
}

const label = (id) => (vocabulary === null ? String(id)
  : (vocabulary[id] ?? String(id)).replaceAll("\n", "⏎").replaceAll("\t", "⇥"));
const heat = (logprob) => [0.05, 0.25, 0.6, 0.9].filter((edge) => Math.exp(logprob) >= edge).length;

function token(segment, index, run, trains) {
  const id = segment.ids[index];
  if (run > 3) {
    const kind = segment.images.length ? "image" : "";
    return el("span", { class: `token ${kind}`, under: `${run} ids ${id}, mask 0` }, `${label(id)} ×${run}`);
  }
  const mask = trains ? segment.mask[index] : 0;
  const logprob = segment.logprobs.length ? segment.logprobs[index] : null;
  const known = typeof logprob === "number";
  const detail = known ? `, log-probability ${logprob}, p ${Math.exp(logprob).toPrecision(3)}` : "";
  return el("span", {
    class: `token ${mask && known ? `p${heat(logprob)}` : ""}`,
    under: `id ${id}${vocabulary ? ` ${JSON.stringify(vocabulary[id] ?? "")}` : ""}, mask ${mask}${detail}`,
  }, label(id));
}

function strip(segment, trains, limit) {
  const nodes = [];
  let index = 0;
  while (index < segment.ids.length && nodes.length < limit) {
    let run = 1;
    const collapses = segment.kind !== "model";
    while (collapses && segment.ids[index + run] === segment.ids[index]) run += 1;
    if (run <= 3) run = 1;
    nodes.push(token(segment, index, run, trains));
    index += run;
  }
  const rest = segment.ids.length - index;
  const box = el("div", { class: "strip" }, nodes);
  if (rest > 0) {
    box.append(el("button", { type: "button", onclick: () => box.replaceWith(strip(segment, trains, Infinity)) },
      `show ${rest} more`));
  }
  return box;
}

function ledger(episode) {
  const trains = episode.fault === null;
  const under = el("div", { id: "under", class: "muted" }, "point at a token");
  const segments = episode.segments.map((segment) => {
    const wire = segment.wire === segment.ids.length ? "" : ` (${segment.wire} on the wire)`;
    const count = segment.images.length;
    const images = count ? `, ${count} image${count > 1 ? "s" : ""}` : "";
    const version = segment.weight_version === null ? "" : `, weights ${segment.weight_version}`;
    return el("div", { class: "segment" },
      el("h3", {}, el("b", {}, segment.kind), ` turn ${segment.turn}: ${segment.ids.length} tokens${wire}${images}${version}`),
      strip(segment, trains, SHOWN_TOKENS[segment.kind]));
  });
  const scale = ["below 5%", "5 to 25%", "25 to 60%", "60 to 90%", "above 90%"].map((text, n) =>
    el("span", {}, el("i", { class: `p${n}` }), text));
  const card = el("div", { class: "card" },
    el("div", { class: "legend" }, "trained, by probability:", scale,
      el("span", {}, el("i", { class: "k-context" }), "mask 0"),
      el("span", {}, el("i", { class: "k-image" }), "image")),
    trains ? "" : el("p", { class: "muted" }, "Faulted: nothing here is trained."), segments, under);
  card.addEventListener("mouseover", (event) => {
    if (event.target.under) under.textContent = event.target.under;
  });
  return card;
}

function showEpisode(index) {
  const episode = block(`data-${index}`);
  const position = shown.findIndex((row) => row.dataset.index === String(index));
  const step = (offset) => {
    const row = position < 0 ? undefined : shown[position + offset];
    return { disabled: row === undefined, onclick: () => { location.hash = `e${row.dataset.index}`; } };
  };
  view.replaceChildren(
    el("nav", { class: "bar-top" },
      el("button", { type: "button", onclick: () => { location.hash = ""; } }, "← all episodes"),
      el("span", { class: "grow" }),
      el("button", { type: "button", ...step(-1) }, "previous"),
      el("button", { type: "button", ...step(1) }, "next")),
    ...head(episode),
    ...(episode.turns.length ? [el("h2", {}, "Time"), waterfall(episode.turns)] : []),
    el("h2", {}, "Conversation"), ...conversation(episode),
    el("h2", {}, "Tokens"), ledger(episode));
  document.title = `Episode ${episode.number}`;
}

function route() {
  const match = /^#e(\d+)$/.exec(location.hash);
  const exists = match !== null && document.getElementById(`data-${match[1]}`) !== null;
  overview.hidden = exists;
  view.hidden = !exists;
  if (exists) showEpisode(Number(match[1]));
  window.scrollTo(0, 0);
}

function applyFilter() {
  const { text, stop, sort, marked, count } = filter.elements;
  const wanted = text.value.trim().toLowerCase();
  for (const row of rows) {
    row.hidden = !(row.dataset.search.includes(wanted) && (!stop.value || row.dataset.stop === stop.value)
      && (!marked.checked || row.dataset.marked === "1"));
  }
  const sign = sort.value === "reward" || sort.value === "number" ? 1 : -1;
  const key = (row) => (row.dataset[sort.value] === "" ? Infinity : Number(row.dataset[sort.value]));
  const ordered = [...rows].sort((a, b) => sign * (key(a) - key(b)) || a.dataset.number - b.dataset.number);
  ordered[0]?.parentNode.append(...ordered);
  shown = ordered.filter((row) => !row.hidden);
  count.value = `${shown.length} of ${rows.length}`;
}

filter.addEventListener("input", applyFilter);
filter.addEventListener("submit", (event) => event.preventDefault());
document.querySelector("table.episodes tbody").addEventListener("click", (event) => {
  const row = event.target.closest("tr");
  if (row !== null) location.hash = `e${row.dataset.index}`;
});
window.addEventListener("hashchange", route);
applyFilter();
route();
