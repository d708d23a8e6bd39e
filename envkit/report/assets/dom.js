"use strict";
// Elements, numbers and the data blocks of this file. All content becomes text nodes, never markup.

const byId = (id) => document.getElementById(id);

function block(id) {
  const node = byId(id);
  return node === null ? null : JSON.parse(node.textContent);
}

/** Returns the data of an episode, or null when this file has none of that name. */
async function unpack(id) {
  if (byId(id) === null && document.readyState === "loading") {
    await new Promise((done) => document.addEventListener("DOMContentLoaded", done, { once: true }));
  }
  const node = byId(id);
  if (node === null) return null;
  const bytes = Uint8Array.from(atob(node.textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function el(tag, options, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options || {})) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("aria-") || name === "role" || name === "colspan") node.setAttribute(name, value);
    else node[name] = value;
  }
  const isDrawn = (child) => child !== null && child !== undefined && child !== false && child !== "";
  node.append(...children.flat(Infinity).filter(isDrawn));
  return node;
}

const badge = (text, kind) => el("span", { class: `badge ${kind || ""}` }, text);
const button = (text, onclick, options) => el("button", { type: "button", onclick, ...options }, text);
const numeric = (value) => (typeof value === "number" ? value : NaN);
const number = (value) => (value === null ? "none" : typeof value === "object" ? value.$float
  : Number.isInteger(value) ? String(value) : Number(value.toPrecision(4)).toString());
const seconds = (value) => (typeof value !== "number" ? number(value) : value >= 10 ? `${value.toFixed(1)} s`
  : value >= 1 ? `${value.toFixed(2)} s` : `${(1000 * value).toFixed(value < 0.01 ? 1 : 0)} ms`);
const grouped = (value) => value.toLocaleString("en-US");
const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;
const isEmpty = (value) => value === null || value === undefined || (typeof value === "object" && !Object.keys(value).length);

function json(value) {
  const line = JSON.stringify(value);
  return el("pre", { dir: "auto" }, line.length <= 90 ? line : JSON.stringify(value, null, 2));
}

function fold(title, value) {
  return isEmpty(value) ? null : el("details", {}, el("summary", {}, title), json(value));
}

function facts(entries) {
  return el("dl", { class: "facts" }, entries.filter(([, value]) => value !== null && value !== "")
    .map(([name, value]) => [el("dt", {}, name), el("dd", { dir: "auto" }, value)]));
}

function picture(sha256) {
  const stored = byId(`image-${sha256}`);
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

function toast(text) {
  const node = byId("toast");
  node.value = text;
  node.hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { node.hidden = true; }, 2500);
}
