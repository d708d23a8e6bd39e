// What leaves the page: files, copies, and the link to the view.
import { h, plain } from "./dom.js";
import { say } from "./address.js";

function download(blob, name) {
  const url = URL.createObjectURL(blob), a = h("a", { href: url, download: name.replace(/[^\w.-]+/g, "-") });
  document.body.append(a);
  a.click();
  a.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
// A text that a spreadsheet would run as a formula starts with an apostrophe; numbers stay numbers.
function csvCell(value) {
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
  const text = String(value ?? "").replace(/^(?=[=+\-@\t\r])/, "'");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
export const csvText = rows => rows.map(row => row.map(csvCell).join(",") + "\r\n").join("");
export const saveCsv = (rows, name) => download(new Blob([csvText(rows)], { type: "text/csv" }), name);
export const saveText = (text, name) => download(new Blob([text], { type: "application/json" }), name);
export const savePng = (canvas, name) => canvas.toBlob(blob => download(blob, name), "image/png");

async function copyText(text) {
  try { await navigator.clipboard.writeText(text); } catch {  // no permission, as in a frame or on plain HTTP
    const area = h("textarea.vh", { "aria-hidden": "true" });
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.value = text;
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    if (!isDone) throw new Error("this browser does not allow it");
  }
}
// A button that copies what `text` returns, which may be a promise, and says so in its own words.
export function copyButton(name, text, words = "Copy", kind = ".small") {
  const node = h(`button.button.copy${kind}`, { type: "button", title: name, "aria-label": name, onclick: async () => {
    try { await copyText(await text()); node.textContent = "Copied"; } catch (error) { node.textContent = "Not copied"; say(`Not copied: ${plain(error.message)}`); }
    setTimeout(() => { node.textContent = words; }, 1500);
  } }, words);
  return node;
}
// The address has the whole view, so the link is the address.
export const copyLink = () => copyButton("Copy the address of this view", () => location.href, "Copy link", "");
export const exportButton = (name, act) => h("button.button", { type: "button", onclick: act }, name);
