// The address of a page is in the hash, so a single file has it too: #/RUN/e/12?t=3
// A lone surrogate, which no address can have, becomes U+FFFD in it.
const encoded = text => encodeURIComponent(String(text).toWellFormed());
export const link = (path, query = {}) => {
  const kept = Object.entries(query).filter(([, v]) => v !== "" && v !== null && v !== undefined);
  const q = new URLSearchParams(kept).toString();
  return `#/${path.map(encoded).join("/")}${q ? "?" + q : ""}`;
};
// Browsers refuse an address that changes too often, as while a key is held: Safari after 100 changes
// in 30 s, Chrome after 200 in 10 s. Some are written at once, then the last one now and then.
const MOST_AT_ONCE = 20, REFILL_MS = 400;
let credit = MOST_AT_ONCE, since = 0, unwritten = null, writing = null, current = location.hash;
// The event of a new address comes later than the address. A page that is left writes nothing in between.
function write() {
  clearTimeout(writing);
  if (unwritten !== null && location.hash === current) {
    history.replaceState(null, "", unwritten);
    current = location.hash;
  }
  unwritten = null;
}
function writeSoon() {
  const now = performance.now();
  credit = Math.min(MOST_AT_ONCE, credit + (now - since) / REFILL_MS);
  since = now;
  clearTimeout(writing);
  if (credit < 1) { writing = setTimeout(writeSoon, REFILL_MS); return; }
  credit -= 1;
  write();
}
addEventListener("click", write, true);  // it may follow a link, or copy the address
addEventListener("hashchange", () => { current = location.hash; unwritten = null; clearTimeout(writing); });
export function go(path, query, replace) {
  const url = link(path, query);
  if (replace) { unwritten = url; writeSoon(); } else { write(); location.hash = url; }
}
export function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const decoded = part => { try { return decodeURIComponent(part); } catch { return part; } };
  return { path: path.split("/").filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(query)) };
}
export const say = text => { document.getElementById("say").textContent = text; };
// Names in one query value; a name may hold any character.
export const joined = names => [...names].map(encoded).join(",");
export const split = text => (text ?? "").split(",").filter(Boolean).map(part => { try { return decodeURIComponent(part); } catch { return part; } });
