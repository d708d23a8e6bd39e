// Everything on the page is built here. Text goes in as text nodes only: no markup is ever parsed.
const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [key, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "vars") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(9).filter(c => c !== null && c !== undefined && c !== false));
  return node;
}
// h("p.note.wide", {title: "…"}, "text", [nodes]): an element with classes, properties and children.
export function h(name, props, ...children) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  return fill(node, props, children);
}
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

// Controls become images of themselves and what reorders or hides text a box.
export const plain = text => String(text ?? "").replace(
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200c\u200e-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
  c => c.charCodeAt(0) < 32 ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : c === "\u2028" || c === "\u2029" ? "\n" : "\u25af");

export const isNumber = x => typeof x === "number" && Number.isFinite(x);
// Sums and squares of larger numbers, which only a damaged file has, are not finite; as in figures.py.
export const isSummable = x => isNumber(x) && Math.abs(x) < 1e100;
// A number of the data; those that JSON cannot hold are objects such as {"$float": "nan"}.
export const numeric = x => typeof x === "number" ? x : x && typeof x === "object" && "$float" in x
  ? { nan: NaN, inf: Infinity, "-inf": -Infinity }[x.$float] ?? NaN : NaN;
const HUGE = 1e15;  // its digits would fill the line
const formats = new Map();  // to make one for each number takes most of the time to draw a list
function formatOf(least, most) {
  const key = `${least} ${most}`;
  if (!formats.has(key)) formats.set(key, new Intl.NumberFormat("en", { maximumFractionDigits: most, minimumFractionDigits: least }));
  return formats.get(key);
}
export function num(value, digits = 2) {
  const x = value === null || value === undefined ? NaN : numeric(value);
  if (Number.isNaN(x)) return value && typeof value === "object" ? "nan" : "–";
  if (!Number.isFinite(x)) return x < 0 ? "−∞" : "∞";
  if (Math.abs(x) >= HUGE) return x.toExponential(2).replace("-", "−");
  return formatOf(Number.isInteger(x) ? 0 : digits, digits).format(x).replace(/^-(?=[0.]*$)/, "").replace("-", "−");
}
export const signed = (x, digits = 2) => (x > 0 ? "+" : x < 0 ? "−" : "") + num(Math.abs(x), digits);
export const percent = x => `${Math.round(100 * x)}%`;
export const seconds = x => !isNumber(x) ? "–" : x === 0 ? "0 s" : x < 0.001 ? `${num(Math.round(x * 1e6))} µs` : x < 1 ? `${num(Math.round(x * 1e3))} ms` : `${num(x, 1)} s`;
export const many = (n, word, words = `${word}s`) => `${num(n, 0)} ${n === 1 ? word : words}`;

// In lower case and as long as before, so that a place in one is a place in the other: only İ becomes longer.
export const lowerCase = text => text.replaceAll("İ", "i").toLowerCase();
// The text, with every hit of the query in <mark>, or the first `most`.
export function marked(text, query, most = Infinity) {
  const shown = plain(text);
  if (!query) return [shown];
  const out = [], low = lowerCase(shown);
  let from = 0, at;
  while (out.length < 2 * most && (at = low.indexOf(query, from)) >= 0) {
    out.push(shown.slice(from, at), h("mark", {}, shown.slice(at, at + query.length)));
    from = at + query.length;
  }
  return [...out, shown.slice(from)];
}
// Remembers what has the focus. What comes back gives it to the same control of a page that was
// drawn anew: the one of the same address, name or words, numbers aside.
export function heldFocus() {
  const was = document.activeElement, nameOf = one => one.getAttribute("href") ?? one.dataset.run ?? one.dataset.sort ?? one.textContent.replace(/\d/g, ""), name = nameOf(was);
  const alike = () => [...document.querySelectorAll(was.tagName)].filter(one => nameOf(one) === name), at = alike().indexOf(was);
  return () => { if (!was.isConnected) alike()[at]?.focus({ preventScroll: true }); };
}
// Marks the page as incomplete until the work is done: a promise of what its address shows.
let works = 0;
export async function busy(work) {
  const main = document.getElementById("main");
  works += 1;
  main.setAttribute("aria-busy", "true");
  try { return await work; } finally {
    works -= 1;
    if (!works) main.removeAttribute("aria-busy");
  }
}
export const folded = (name, ...inner) => h("details.fold", {}, h("summary", {}, name), inner);
// The content of a fold that is built when it is first opened.
export function lazily(name, build) {
  const node = h("details.fold", { ontoggle: () => { if (node.open && node.children.length === 1) node.append(build()); } }, h("summary", {}, name));
  return node;
}
export const json = value => h("pre", { tabindex: 0 }, plain(JSON.stringify(value, null, 2)));
