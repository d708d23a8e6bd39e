// The record of an episode as JSON: a tree whose levels are built when they are opened, so a large
// one costs what is shown of it.
import { h, num, many, plain } from "./dom.js";
import { copyButton } from "./export.js";

const ENTRIES = 100, LONGEST_VALUE = 400, SHORT_LIST = 16, LARGEST_RECORD = 64_000_000;

// Whole numbers that JavaScript would round keep their digits, at a price that few records pay.
const HAS_LONG = /[[:,]\s*-?\d{16,}\s*[,\]}]/;
const exactNumber = (key, value, context) => Number.isInteger(value) && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source) ? BigInt(context.source) : value;
const isTree = value => value !== null && typeof value === "object";
const isShort = value => Array.isArray(value) && value.length <= SHORT_LIST && value.every(one => !isTree(one) && String(one).length < 24);
const jsonWords = value => typeof value === "bigint" ? String(value) : isShort(value) ? `[${value.map(jsonWords).join(", ")}]` : JSON.stringify(value);

function jsonLeaf(key, value) {
  const text = plain(jsonWords(value)), node = h("span", { dir: "auto" }, text.length > LONGEST_VALUE ? `${text.slice(0, LONGEST_VALUE)}…` : text);
  const rest = text.length > LONGEST_VALUE ? h("button.button.small", { type: "button", onclick: () => { node.textContent = text; rest.remove(); } }, `Show all ${num(text.length, 0)} characters`) : null;
  return h("li", {}, key, node, rest);
}
const isNumbers = value => Array.isArray(value) && value.length > SHORT_LIST && value.every(one => typeof one === "number");
const jsonSize = value => !Array.isArray(value) ? `{ ${many(Object.keys(value).length, "key")} }` : `[ ${isNumbers(value) ? many(value.length, "number") : many(value.length, "entry", "entries")} ]`;

// The entries of a value, a hundred at a time; long lists of numbers are lines of them.
function jsonLevel(value) {
  const list = h("ul.json"), areNumbers = isNumbers(value);
  const entries = areNumbers ? Array.from({ length: Math.ceil(value.length / SHORT_LIST) }, (_, i) => [i * SHORT_LIST, value.slice(i * SHORT_LIST, (i + 1) * SHORT_LIST)]) : Object.entries(value);
  const more = from => {
    list.append(...entries.slice(from, from + ENTRIES).map(([key, one]) => areNumbers ? h("li", {}, h("b", {}, `${key} `), one.join(", ")) : jsonBranch(Array.isArray(value) ? key : JSON.stringify(key), one)));
    const left = entries.length - from - ENTRIES;
    if (left > 0) list.append(h("li", {}, h("button.button.small", { type: "button", onclick: event => { event.currentTarget.parentNode.remove(); more(from + ENTRIES); } }, `Show more: ${num(left, 0)} left`)));
  };
  more(0);
  return list;
}
function jsonBranch(name, value, isOpen = false) {
  const key = name === null ? null : h("b", {}, `${plain(name)}: `);
  if (!isTree(value) || isShort(value) || !Object.keys(value).length) return jsonLeaf(key, value);
  const fill = () => { if (node.open && node.children.length === 1) node.append(jsonLevel(value)); };
  const node = h("details", { open: isOpen, ontoggle: fill }, h("summary", {}, key, h("span.muted", {}, jsonSize(value))));
  fill();
  return h("li", {}, node);
}
function jsonTree(text) {
  if (text.length > LARGEST_RECORD) return h("p.notice", {}, `${num(text.length / 1e6, 0)} MB is too much to show here. Copy or download it.`);
  try {
    return h("ul.json", {}, jsonBranch(null, JSON.parse(text, HAS_LONG.test(text) ? exactNumber : null), true));
  } catch (error) { return [h("p.error", {}, plain(error.message)), h("pre", { tabindex: 0 }, plain(text.slice(0, 20_000)))]; }
}
// The page of a record; `text` is its JSON and `note` says where it comes from.
export const recordView = (text, note) => h("section.card.record", { "aria-label": "JSON" },
  h("div.tools", {}, h("p.muted", {}, note), h("span.grow"), copyButton("Copy JSON", () => text, "Copy JSON")), jsonTree(text));
