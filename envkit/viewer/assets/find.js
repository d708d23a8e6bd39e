// Search within one episode: its task, observations, thoughts, actions, errors and replies.
import { h, num, lowerCase, marked } from "./dom.js";

const MOST_MARKED = 1000, FIND_MS = 150, FOUND_IN = "h1, .said, .acts li, .reply .error, .center > .fold pre";

function textsIn(root) {
  const found = [], walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) found.push(walk.currentNode);
  return found;
}
// Marks each hit under a root, up to so many.
function markIn(root, query, most) {
  let count = 0;
  for (const node of textsIn(root)) {
    if (count >= most) break;
    if (!lowerCase(node.data).includes(query)) continue;
    const parts = marked(node.data, query, most - count);
    count += parts.filter(part => part.nodeType).length;
    node.replaceWith(...parts);
  }
  return count;
}
// The field with its buttons. `rootsOf` returns what is searched, in order, which need not be on the page;
// `show` gets each hit that is chosen, `changed` the query, for the address.
export function findBar(rootsOf, { show, changed, place = "this episode" }) {
  let hits = [], at = -1, query = "", timer = null;
  const field = h("input", { type: "search", placeholder: `Find in ${place}`, "aria-label": `Find in ${place}`, maxlength: 200, autocomplete: "off", spellcheck: "false" });
  const count = h("output.count.muted", {}), step = d => h("button.button", { type: "button", "aria-label": d > 0 ? "Next hit" : "Previous hit", onclick: () => move(d) }, d > 0 ? "↓" : "↑");
  const buttons = h("span.hits", { hidden: true }, count, step(-1), step(1));
  function clear() {
    const parents = new Set(hits.map(mark => mark.parentNode));
    hits.forEach(mark => mark.replaceWith(mark.textContent));
    parents.forEach(parent => parent?.normalize());
    hits = [];
    at = -1;
  }
  function search() {
    clearTimeout(timer);
    const wanted = lowerCase(field.value.trim());
    if (wanted === query) return;
    query = wanted;
    clear();
    let total = 0;
    const roots = query ? rootsOf() : [];
    if (query) for (const root of roots) {
      for (const rest of root.querySelectorAll(".rest")) if (lowerCase(rest.whole).includes(query)) rest.unfold();
      const own = [...root.matches(FOUND_IN) ? [root] : [], ...root.querySelectorAll(FOUND_IN)];
      for (const node of own) total += markIn(node, query, MOST_MARKED - total);
      // What a reply shows in words needs no second hit in its raw text.
      for (const raw of root.querySelectorAll(".raw > pre")) if (!raw.closest(".reply").querySelector("mark")) total += markIn(raw, query, MOST_MARKED - total);
    }
    hits = roots.flatMap(root => [...root.querySelectorAll("mark")]);
    buttons.hidden = !query;
    tell();
    changed(query);
  }
  const tell = () => { count.textContent = hits.length ? `${at < 0 ? "" : `${num(at + 1, 0)} of `}${num(hits.length, 0)}${hits.length >= MOST_MARKED ? "+" : ""}${at < 0 ? hits.length === 1 ? " hit" : " hits" : ""}` : "no hits"; };
  function move(d) {
    search();
    if (!hits.length) return;
    hits[at]?.classList.remove("now");
    at = at < 0 ? (d > 0 ? 0 : hits.length - 1) : (at + d + hits.length) % hits.length;
    const mark = hits[at];
    for (let fold = mark.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    mark.classList.add("now");
    show(mark);
    tell();
  }
  field.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(search, FIND_MS); });
  field.addEventListener("keydown", event => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    move(event.shiftKey ? -1 : 1);
  });
  // While there is a query, the field stays in sight above the film.
  const node = h("div.find", { role: "search" }, h("div.findbox", {}, field, buttons));
  const seen = new IntersectionObserver(([place]) => node.classList.toggle("away", !place.isIntersecting), { rootMargin: "-48px 0px 0px" });
  seen.observe(node);
  return { node, fill(text) { field.value = text; search(); }, stop: () => { clearTimeout(timer); seen.disconnect(); } };
}
