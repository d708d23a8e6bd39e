// What the model did, drawn over the image that it saw. The environment says it in info.marks; a
// mark carries its own words, so nothing here reads a reply.
import { h, s, plain, isNumber } from "./dom.js";

const PATHS = {  // 16 x 16
  click: "M8 1v3M8 12v3M1 8h3M12 8h3M8 8h.01M8 4a4 4 0 1 0 0 8 4 4 0 0 0 0-8", move: "M8 1v14M1 8h14", drag: "M2 13C5 5 8 12 13 4M9 3.5l4.2.3-.4 4.2",
  scroll: "M8 1.500v13M4.500 5 8 1.500 11.500 5M4.500 11 8 14.500 11.500 11", type: "M1.500 4h13v8h-13zM4 7h.01M7 7h.01M10 7h.01M12 7h.01M5 10h6", key: "M3 3h10v10H3zM6 10l2-4 2 4",
  wait: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2M8 5v3l2 2", box: "M2 5V2h3M11 2h3v3M14 11v3h-3M5 14H2v-3", answer: "M2 8.500 6 12.500 14 4", terminate: "M3.500 3.500h9v9h-9z",
  question: "M5 5.500a3 3 0 1 1 4.500 2.600C8.300 8.800 8 9.300 8 10.500M8 13.200h.01",
  call: "M5 2 2 8l3 6M11 2l3 6-3 6", text: "M2 4h12M2 8h12M2 12h7", bad: "M8 2 1.500 13.500h13zM8 6v4M8 12h.01",
};
const ALIAS = { double_click: "click", triple_click: "click", mouse_down: "click", mouse_up: "click" };
export const icon = kind => s("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, s("path", { d: PATHS[ALIAS[kind] ?? kind] ?? PATHS.call }));

// A turn in the list: an icon and the actions in words, or the first words of the reply.
export function summary(turn) {
  const isBad = Boolean(turn.parse_error);
  if (turn.purpose) return { kind: "question", text: plain(turn.reply.trim().slice(0, 90)) || "(empty reply)", isBad };
  if (turn.words.length) return { kind: turn.marks.at(-1)?.kind ?? "call", text: plain(turn.words.join(" · ")), isBad };
  return { kind: isBad ? "bad" : "text", text: plain(turn.reply.trim().slice(0, 90)) || "(empty reply)", isBad };
}
const at = m => isNumber(m.x) && isNumber(m.y) ? [m.x, m.y] : null;
const points = m => Array.isArray(m.path) ? m.path.filter(p => Array.isArray(p) && isNumber(p[0]) && isNumber(p[1])) : [];
const isBox = m => Array.isArray(m.box) && m.box.length === 4 && m.box.every(isNumber);
export const isDrawn = m => Boolean(at(m) || points(m).length || isBox(m) || m.kind === "type" || m.kind === "key");
// Where the pen stood after these marks, so typed text without a place stands at the last click.
export const penAfter = marks => { const last = marks.filter(m => at(m) || points(m).length).at(-1); return last ? at(last) ?? points(last).at(-1) : null; };

// Labels that would cover each other move down, or up where there is no room below.
const spread = frame => {
  const box = frame.getBoundingClientRect(), tags = [...frame.querySelectorAll(".tag")], taken = [...frame.querySelectorAll(".dock > span")].map(node => node.getBoundingClientRect());
  if (tags.length + taken.length < 2) return;
  tags.forEach(tag => tag.style.removeProperty("--shift"));
  for (const tag of tags) {
    const { left, right, top, height } = tag.getBoundingClientRect(), isFree = y => y >= box.top && y + height <= box.bottom && taken.every(r => right < r.left || left > r.right || y > r.bottom + 1 || y + height < r.top - 1);
    const shifts = Array.from({ length: 2 * tags.length + 4 }, (_, i) => (i % 2 ? 1 : -1) * Math.ceil(i / 2) * (height + 3)), shift = shifts.find(dy => isFree(top + dy)) ?? 0;
    if (shift) tag.style.setProperty("--shift", `${shift}px`);
    taken.push({ left, right, top: top + shift, bottom: top + shift + height });
  }
};
const sized = new ResizeObserver(entries => entries.forEach(({ target }) => spread(target)));
let tips = 0;
function layer(marks, [w, ht], pen) {
  const tip = `tip${tips += 1}`;
  const lines = [], labels = [], dock = [], isMany = marks.filter(m => isDrawn(m)).length > 1;
  const place = ([x, y]) => ({ "--x": `${100 * Math.min(Math.max(x / w, 0), 1)}%`, "--y": `${100 * Math.min(Math.max(y / ht, 0), 1)}%` });
  const isOut = ([x, y]) => x < 0 || y < 0 || x > w || y > ht;
  marks.forEach((m, i) => {
    const step = isMany ? h("b", {}, String(i + 1)) : null, failed = m.ok === false ? ".failed" : "";
    const tag = (p, cls, ...text) => labels.push(h(`span.tag${p[0] > w * .62 ? ".left" : ""}${p[1] > ht * .86 ? ".up" : ""}.${cls}${failed}`, { vars: place(p) }, step, text));
    const why = m.ok === false ? ` ${m.note ? plain(m.note) : "no effect"}` : "";
    const p = at(m), path = points(m);
    if (m.kind === "drag" && path.length > 1) {
      const d = path.map((q, k) => (k ? "L" : "M") + q.slice(0, 2).join(" ")).join("");
      lines.push(s("path", { d, class: "halo" }), s("path", { d, class: `pen${m.ok === false ? " dash" : ""}`, "marker-end": `url(#${tip})` }));
      labels.push(h("i.dot", { vars: place(path[0]) }));
      tag(path.at(-1), "soft", "drag", why);
      pen = path.at(-1);
    } else if (isBox(m)) {
      const [l, t, r, b] = m.box, size = { x: Math.min(l, r), y: Math.min(t, b), width: Math.max(1, Math.abs(r - l)), height: Math.max(1, Math.abs(b - t)) };
      lines.push(s("rect", { ...size, class: "halo" }), s("rect", { ...size, class: "pen dash" }));
      labels.push(h(`span.tag.corner${failed}`, { vars: place([size.x, size.y]) }, step, plain(m.label || m.kind), why));
    } else if (m.kind === "type" || m.kind === "key") {
      const text = m.kind === "type" ? plain(m.text).replace(/\n/g, " ⏎ ") : plain(Array.isArray(m.keys) ? m.keys.join(" + ") : m.keys);
      const where = p ?? pen;
      if (where) tag(where, m.kind === "type" ? "typed" : "keys", text, why);
      else dock.push(h(`span.${m.kind === "type" ? "typed" : "keys"}${failed}`, {}, step, text, why));
    } else if (p && m.kind === "scroll") {
      const [dx, dy] = [m.dx, m.dy].map(v => isNumber(v) ? v : 0);
      labels.push(h(`i.disc${failed}`, { vars: place(p) }, dy ? (dy > 0 ? "↓" : "↑") : dx > 0 ? "→" : "←"));
      tag(p, "soft", `scroll ${Math.abs(dy || dx)}`, why);
      pen = p;
    } else if (p) {
      const out = isOut(p), kind = String(m.kind).replace(/[^a-z_]/g, "");
      labels.push(h(`i.ring.${kind || "click"}${out ? ".out" : ""}${failed}`, { vars: place(p) }));
      const next = marks[i + 1], isCovered = next && (next.kind === "type" || next.kind === "key") && !at(next);  // its callout stands here
      const words = [m.button !== "left" && m.button, m.kind !== "click" || out || why ? plain(m.kind).replaceAll("_", " ") : "", out && "(outside)"].filter(Boolean).join(" ");
      if ((isMany && !isCovered) || words) tag(p, "soft", plain(words), why);
      pen = p;
    } else dock.push(h(`span.keys${failed}`, {}, step, plain(m.words)));
  });
  return { lines, labels, dock, tip };
}
// A figure: the image at its own size, never larger, with the marks over it. `label` names its button.
export function shot(source, run, sha, size, marks, { onopen, pen, label, isEager, isSmall } = {}) {
  const src = source.image(sha, run), known = size ?? [4, 3];
  if (!src && source.isServed) return h("p.missing", {}, "the file of this image is missing");
  if (!src) return h("p.missing", {}, "image not in this file ", h("a", { href: `images/${sha}.png` }, `images/${sha.slice(0, 12)}….png`));
  const { lines, labels, dock, tip } = layer(size ? marks : [], known, pen);
  const said = label ?? (marks.length ? `Screenshot. The model did: ${marks.map(m => plain(m.words)).join("; ")}` : "Screenshot");
  const figure = h(`figure.shot${isSmall ? ".small" : ""}`, {},
    h("button.frame", { type: "button", "aria-label": `${said}. Enlarge`, onclick: onopen, vars: { "--w": `${known[0]}px`, "--ratio": `${known[0]} / ${known[1]}` } },
      h("img", { src, width: known[0], height: known[1], alt: "", loading: isEager ? "eager" : "lazy", decoding: "async" }),
      h("span.marks", { "aria-hidden": "true" }, s("svg", { viewBox: `0 0 ${known[0]} ${known[1]}`, preserveAspectRatio: "none" },
        s("defs", {}, s("marker", { id: tip, viewBox: "0 0 10 10", refX: 8, refY: 5, markerWidth: 5, markerHeight: 5, orient: "auto-start-reverse" },
          s("path", { d: "M0 0L10 5L0 10z", class: "tip" }))), lines), labels),
      dock.length ? h("span.dock", { "aria-hidden": "true" }, dock) : null));
  if (labels.length > 1 || (labels.length && dock.length)) sized.observe(figure.firstChild);
  return figure;
}
