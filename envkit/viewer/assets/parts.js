// Small pieces that several pages show: rewards, intervals, bars, distributions, images.
import { h, s, num, percent, seconds, many, plain, isNumber, marked } from "./dom.js";
import { hue, stopWords } from "./model.js";

export const chip = e => e.reward === null || e.reward === undefined ? h("b.chip.none", { title: "no reward" }, "–") : h("b.chip", { vars: hue(e.reward), title: `reward ${num(e.reward, 4)}${isNumber(e.threshold) ? `, threshold ${num(e.threshold, 4)}` : ""}` }, num(e.reward));

// A mean with its interval on a scale from bottom to top.
export function interval(low, mid, high, top = 1, bottom = 0) {
  const x = v => Math.max(0, Math.min(100, 100 * (v - bottom) / (top - bottom || 1)));
  return s("svg", { class: "interval", viewBox: "0 0 100 12", preserveAspectRatio: "none", "aria-hidden": "true" },
    s("line", { x1: 0, x2: 100, y1: 6, y2: 6, class: "scale-line" }),
    isNumber(low) && isNumber(high) ? s("line", { x1: x(low), x2: Math.max(x(high), x(low) + .8), y1: 6, y2: 6, class: "span" }) : null,
    s("line", { x1: x(mid), x2: x(mid), y1: 1, y2: 11, class: "mid" }));
}
// Six colours; what comes after them is grey, not one of the first again. A fault has its own.
export const colourAt = (i, isFault = false) => isFault ? "sfault" : `s${i < 6 ? i : 4}`;
export const stack = (pairs, total) => h("div.stack", { role: "img", "aria-label": pairs.map(([k, n]) => `${k}: ${n}`).join(", ") },
  pairs.map(([key, n, , isFault], i) => h(`span.${colourAt(i, isFault)}`, { vars: { "--n": n / (total || 1) }, title: `${key}: ${num(n)}` })));
export const legend = (pairs, total) => h("ul.legend", {}, pairs.map(([key, n, href, isFault], i) =>
  h("li", {}, h(`i.${colourAt(i, isFault)}`), href ? h("a", { href }, key) : h("span", {}, key), h("b", {}, num(n, 0)), h("span.muted", {}, percent(n / (total || 1))))));

export function figure(label, value, note, { extra, isBad } = {}) {
  return h(`div.fig${isBad ? ".warn" : ""}`, {}, h("div.label", {}, label), h("div.value", {}, value), extra || null, h("div.note", {}, note));
}
export const table = (head, rows) => h("table.mini", {}, h("thead", {}, h("tr", {}, head.map(x => h("th", { scope: "col" }, x)))),
  h("tbody", {}, rows.map(([first, ...rest]) => h("tr", {}, h("th", { scope: "row" }, first), rest.map(x => h("td", {}, x))))));

// A distribution in the space it deserves: up to four values are numbers, more are a small histogram.
export function distribution(d) {
  const show = d.unit === "s" ? seconds : x => num(x, Number.isInteger(x) ? 0 : 2);
  const whole = value => show(value).replace(" ", "\u00a0"), facts = h("div.note", {}, `median ${whole(d.median)} · p95 ${whole(d.p95)}`);
  if (d.values) return h("div.dist", {}, h("div.label", {}, d.name), h("div.few", {}, d.values.map(([v, n]) => h("span", {}, h("b", {}, show(v)), ` × ${num(n)}`))), d.values.length > 1 ? facts : null);
  const most = Math.max(...d.bars), bin = i => d.is_whole ? show(d.min + i) : `${show(d.min + i * d.width)} to ${show(d.min + (i + 1) * d.width)}`;
  return h("div.dist", {}, h("div.label", {}, d.name),
    h("div.bars", { role: "img", "aria-label": `${d.name}: from ${show(d.min)} to ${show(d.max)}, median ${show(d.median)}` },
      d.bars.map((n, i) => h("i", { vars: { "--n": n / most }, title: `${bin(i)}: ${num(n)}` }))),
    h("div.ends", {}, h("span", {}, show(d.min)), h("span", {}, show(d.max))), facts);
}
// A list of columns to choose from: `columns` are [key, name], `act` gets the chosen keys in order.
export function columnChooser(columns, chosen, act) {
  let keys = chosen;
  return h("details.chooser", {}, h("summary.button", {}, "Columns"), h("fieldset", {}, h("legend.vh", {}, "Columns"), columns.map(([key, name]) => h("label", {}, h("input", { type: "checkbox", checked: chosen.includes(key), onchange: event => {
    keys = columns.map(([one]) => one).filter(one => one === key ? event.target.checked : keys.includes(one));
    act(keys);
  } }), name))));
}
// An episode as a card: its last image, its reward, and what tells it from others.
export const episodeCard = (e, href, pictures, name, aside, ...more) => h(`a.member${e.fault ? ".fault" : ""}`, { href }, pictures.node(e.thumbnail),
  h("span.line", {}, chip(e), h("span.muted", {}, many(e.turns, "turn")), aside),
  h("span.line.muted", {}, name), e.stop === "terminated" ? null : h("span.line.muted", {}, h("span.cut", { title: stopWords(e.stop) }, stopWords(e.stop))), more);
// Where a search found its text.
export const hitLine = (hit, query) => hit.where === "task" ? null
  : h("div.hit", {}, h("span.muted", {}, `${hit.where} `), plain(hit.before), h("mark", {}, plain(hit.hit)), plain(hit.after));
export const taskText = (text, query) => h("div.tasktext", { dir: "auto" }, marked(text, query));

// Small images get their address when they come near the screen.
export function lazyPictures(source, name) {
  const seen = new IntersectionObserver(entries => entries.forEach(({ isIntersecting, target }) => {
    if (!isIntersecting) return;
    seen.unobserve(target);
    source.ready.then(() => {
      const url = source.image(target.dataset.sha, name);
      if (url) target.src = url; else target.hidden = true;
    });
  }), { rootMargin: "600px" });
  return {
    node(sha) {
      if (!sha) return h("span.blank", { "aria-hidden": "true" });
      const img = h("img", { alt: "", "data-sha": sha, onerror: event => { event.target.hidden = true; }, decoding: "async", width: 180, height: 120 });
      seen.observe(img);
      return img;
    },
    stop: () => seen.disconnect(),
  };
}
// A click anywhere in a row does what its link does: with ctrl or the middle button in a new tab. Controls
// and selected text stay what they are.
export function opensRows(node) {
  node.classList.add("opens");
  const rowLink = event => event.target.closest("a, button, input, label, select, summary, textarea, .pick") ? null : event.target.closest("tbody tr")?.querySelector("th a[href]");
  node.addEventListener("mousedown", event => { if (event.button === 1 && rowLink(event)) event.preventDefault(); });  // no autoscroll
  for (const kind of ["click", "auxclick"]) node.addEventListener(kind, event => {
    const found = event.button > 1 || event.altKey ? null : rowLink(event);
    if (!found) return;
    if (event.button === 1 || event.ctrlKey || event.metaKey || event.shiftKey) window.open(found.href, "_blank", "noopener");
    else if (getSelection().isCollapsed) location.hash = found.hash;
  });
}
