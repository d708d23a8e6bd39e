// What the model did, drawn over the image that it saw. The environment says it in info.marks; a
// mark carries its own words, so nothing here reads a reply.
import { h, s, plain, isNumber } from "./dom.js";

const PATHS = {  // 16 x 16
  __proto__: null,
  click: "M8 1v3M8 12v3M1 8h3M12 8h3M8 8h.01M8 4a4 4 0 1 0 0 8 4 4 0 0 0 0-8", move: "M8 1v14M1 8h14", drag: "M2 13C5 5 8 12 13 4M9 3.5l4.2.3-.4 4.2",
  scroll: "M8 1.500v13M4.500 5 8 1.500 11.500 5M4.500 11 8 14.500 11.500 11", type: "M1.500 4h13v8h-13zM4 7h.01M7 7h.01M10 7h.01M12 7h.01M5 10h6", key: "M3 3h10v10H3zM6 10l2-4 2 4",
  wait: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2M8 5v3l2 2", box: "M2 5V2h3M11 2h3v3M14 11v3h-3M5 14H2v-3", answer: "M2 8.500 6 12.500 14 4", terminate: "M3.500 3.500h9v9h-9z",
  question: "M5 5.500a3 3 0 1 1 4.500 2.600C8.300 8.800 8 9.300 8 10.500M8 13.200h.01",
  call: "M5 2 2 8l3 6M11 2l3 6-3 6", text: "M2 4h12M2 8h12M2 12h7", bad: "M8 2 1.500 13.500h13zM8 6v4M8 12h.01",
};
const ALIAS = { __proto__: null, double_click: "click", triple_click: "click", mouse_down: "click", mouse_up: "click" };
export const icon = kind => s("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, s("path", { d: PATHS[ALIAS[kind] ?? kind] ?? PATHS.call }));

// A turn in the list: an icon and the actions in words, or the first words of the reply.
export function summary(turn) {
  const isBad = Boolean(turn.parse_error);
  if (turn.purpose) return { kind: "question", text: plain(turn.reply.trim().slice(0, 90)) || "(empty reply)", isBad };
  if (turn.words.length) return { kind: turn.marks.at(-1)?.kind ?? "call", text: plain(turn.words.join(" · ")), isBad };
  return { kind: isBad ? "bad" : "text", text: plain(turn.reply.trim().slice(0, 90)) || "(empty reply)", isBad };
}
const at = m => isNumber(m.x) && isNumber(m.y) ? [m.x, m.y] : null;
const pathOf = m => Array.isArray(m.path) ? m.path.filter(p => Array.isArray(p) && isNumber(p[0]) && isNumber(p[1])) : [];
const isBox = m => Array.isArray(m.box) && m.box.length === 4 && m.box.every(isNumber);
export const isDrawn = m => Boolean(at(m) || pathOf(m).length > 1 || isBox(m));

// Where the reply acted on the image, and nothing else: words and texts are in the list of actions,
// with the same step numbers. A mark's `step` is its number in that list, 0 if it needs none.
let tips = 0;
function places(marks, [w, ht]) {
  const tip = `tip${tips += 1}`, lines = [], points = [], steps = [];
  const spot = ([x, y]) => ({ "--x": `${100 * Math.min(Math.max(x / w, 0), 1)}%`, "--y": `${100 * Math.min(Math.max(y / ht, 0), 1)}%` });
  const count = (p, step, where = "") => {  // places that nearly coincide share one number plate
    if (!step) return;
    const near = steps.find(one => Math.hypot(one.p[0] - p[0], one.p[1] - p[1]) < w / 20);
    if (near) near.numbers.push(step); else steps.push({ p, where, numbers: [step] });
  };
  for (const m of marks.filter(isDrawn)) {
    const failed = m.ok === false ? ".failed" : "", pen = `pen${failed ? " dash" : ""}`, p = at(m), path = pathOf(m);
    if (path.length > 1) {
      const d = path.map((q, k) => (k ? "L" : "M") + q.slice(0, 2).join(" ")).join("");
      lines.push(s("path", { d, class: "halo" }), s("path", { d, class: pen, "marker-end": `url(#${tip})` }));
      points.push(h("i.dot", { vars: spot(path[0]) }));
      count(path[0], m.step);
    } else if (isBox(m)) {
      const [l, t, r, b] = m.box, size = { x: Math.min(l, r), y: Math.min(t, b), width: Math.max(1, Math.abs(r - l)), height: Math.max(1, Math.abs(b - t)) };
      lines.push(s("rect", { ...size, class: "halo" }), s("rect", { ...size, class: "pen dash" }));
      count([size.x + size.width, size.y], m.step);
    } else {
      const isOut = p[0] < 0 || p[1] < 0 || p[0] > w || p[1] > ht;
      const arrow = m.kind !== "scroll" ? null : m.dy ? (m.dy > 0 ? "↓" : "↑") : m.dx > 0 ? "→" : "←";
      points.push(h(`i.ring${isOut ? ".out" : ""}${failed}`, { "data-kind": String(m.kind), vars: spot(p) }, arrow));
      count(p, m.step, ".ringed");
    }
  }
  return { lines, tip, points: [...points, steps.map(({ p, where, numbers }) => h(`b.step${where}${p[0] > w * .94 ? ".left" : ""}${p[1] < ht * .08 ? ".under" : ""}`, { vars: spot(p) }, numbers.length > 3 ? `${numbers[0]} … ${numbers.at(-1)}` : numbers.join(" ")))] };
}
// A figure: the image at its own size, never larger, with the marks over it. `label` names its button.
export function shot(source, run, sha, size, marks, { onopen, label, isEager, isSmall } = {}) {
  const src = source.image(sha, run), known = size ?? [4, 3];
  if (!src && source.isServed) return h("p.missing", {}, "the file of this image is missing");
  if (!src) return h("p.missing", {}, "image not in this file ", h("a", { href: `images/${sha}.png` }, `images/${sha.slice(0, 12)}….png`));
  const { lines, points, tip } = places(size ? marks : [], known);
  const said = label ?? (marks.length ? `Screenshot. The model did: ${marks.map(m => plain(m.words)).join("; ")}` : "Screenshot");
  return h(`figure.shot${isSmall ? ".small" : ""}`, {},
    h("button.frame", { type: "button", "aria-label": `${said}. Enlarge`, onclick: onopen, vars: { "--w": `${known[0]}px`, "--ratio": `${known[0]} / ${known[1]}` } },
      h("img", { src, width: known[0], height: known[1], alt: "", loading: isEager ? "eager" : "lazy", decoding: "async" }),
      h("span.marks", { "aria-hidden": "true" }, s("svg", { viewBox: `0 0 ${known[0]} ${known[1]}`, preserveAspectRatio: "none" },
        s("defs", {}, s("marker", { id: tip, viewBox: "0 0 10 10", refX: 8, refY: 5, markerWidth: 5, markerHeight: 5, orient: "auto-start-reverse" },
          s("path", { d: "M0 0L10 5L0 10z", class: "tip" }))), lines), points)));
}
