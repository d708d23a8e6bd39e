"use strict";
// The ledger of an episode: its tokens by mask and probability.

const FIRST_TOKENS = { prompt: 150, observation: 150, model: 600 }; // of a segment; the rest comes on a click
const FIRST_NODES = 6000; // of an episode; further segments come on a click
let words; // token id -> text, or null; read when first needed

function vocabulary() {
  if (words === undefined) words = block("vocabulary");
  return words;
}

// A token without a text, as special ones have, is shown by its id.
const label = (id) => (vocabulary() === null ? String(id)
  : (vocabulary()[id] || `[${id}]`).replaceAll("\n", "⏎").replaceAll("\t", "⇥"));
const heat = (logprob) => [0.05, 0.25, 0.6, 0.9].filter((edge) => Math.exp(logprob) >= edge).length;

function token(segment, index, run, trains) {
  const id = segment.ids[index];
  const text = vocabulary() === null ? "" : ` ${JSON.stringify(vocabulary()[id] ?? "")}`;
  if (run > 3) {
    const kind = segment.images.length ? "image" : "";
    return el("span", { class: `token ${kind}`, under: `${run} ids ${id}${text}, mask 0` }, `${label(id)} ×${run}`);
  }
  const mask = trains ? segment.mask[index] ?? 0 : 0;
  const logprob = segment.logprobs.length ? segment.logprobs[index] : null;
  const known = typeof logprob === "number";
  const detail = known ? `, log-probability ${logprob}, p ${Math.exp(logprob).toPrecision(3)}` : "";
  return el("span", {
    class: `token ${mask && known ? `p${heat(logprob)}` : ""}`,
    under: `id ${id}${text}, mask ${mask}${detail}`,
  }, el("bdi", {}, label(id)));
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
    box.append(button(`show ${rest} more`, () => box.replaceWith(strip(segment, trains, Infinity))));
  }
  return box;
}

function drawSegment(segment, trains) {
  const wire = segment.wire === segment.ids.length ? "" : ` (${segment.wire} on the wire)`;
  const count = segment.images.length;
  const images = count ? `, ${plural(count, "image")}` : "";
  const version = segment.weight_version === null ? "" : `, weights ${segment.weight_version}`;
  const text = ` turn ${segment.turn}: ${segment.ids.length} tokens${wire}${images}${version}`;
  return el("div", { class: "segment" }, el("h3", {}, el("b", {}, segment.kind), text),
    strip(segment, trains, FIRST_TOKENS[segment.kind]));
}

/** Draws segments up to a number of tokens, and a button for the rest. */
function drawSegments(segments, trains) {
  let nodes = 0;
  let count = 0;
  while (count < segments.length && nodes < FIRST_NODES) {
    nodes += Math.min(segments[count].ids.length, FIRST_TOKENS[segments[count].kind]);
    count += 1;
  }
  const box = el("div", {}, segments.slice(0, count).map((segment) => drawSegment(segment, trains)));
  const rest = segments.slice(count);
  if (rest.length > 0) {
    const more = button(`show ${rest.length} more segments`, () => more.replaceWith(drawSegments(rest, trains)));
    box.append(more);
  }
  return box;
}

function tokenLegend() {
  const scale = ["below 5%", "5 to 25%", "25 to 60%", "60 to 90%", "above 90%"].map((text, n) =>
    el("span", {}, el("i", { class: `p${n}` }), text));
  return el("div", { class: "legend" }, "trained, by probability:", scale,
    el("span", {}, el("i", { class: "k-context" }), "mask 0"),
    el("span", {}, el("i", { class: "k-image" }), "image"));
}

function ledger(episode) {
  const trains = episode.fault === null;
  const under = el("div", { class: "under muted", role: "status" }, "point at a token");
  const card = el("div", { class: "card ledger" }, tokenLegend(),
    trains ? "" : el("p", { class: "muted" }, "Faulted: nothing here is trained."),
    episode.segments.length ? drawSegments(episode.segments, trains) : el("p", { class: "muted" }, "No tokens were recorded."),
    under);
  const tell = (event) => {
    const said = event.target.closest(".token");
    if (said !== null) { under.textContent = said.under; under.classList.remove("muted"); }
  };
  card.addEventListener("mouseover", tell);
  card.addEventListener("click", tell);
  return card;
}
