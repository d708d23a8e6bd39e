// The address of a page is in the hash, so a single file has it too: #/RUN/e/12?t=3
export const link = (path, query = {}) => {
  const kept = Object.entries(query).filter(([, v]) => v !== "" && v !== null && v !== undefined);
  const q = new URLSearchParams(kept).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${q ? "?" + q : ""}`;
};
export function go(path, query, replace) {
  const url = link(path, query);
  if (replace) history.replaceState(null, "", url); else location.hash = url;
}
export function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const decoded = part => { try { return decodeURIComponent(part); } catch { return part; } };
  return { path: path.split("/").filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(query)) };
}
export const say = text => { document.getElementById("say").textContent = text; };
// Names in one query value; a name may hold any character.
export const joined = names => [...names].map(encodeURIComponent).join(",");
export const split = text => (text ?? "").split(",").filter(Boolean).map(part => { try { return decodeURIComponent(part); } catch { return part; } });
