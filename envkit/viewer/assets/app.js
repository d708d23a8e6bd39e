// The shell: the address decides the page, one key map serves all pages.
import { h, num, many, plain, busy, heldFocus } from "./dom.js";
import { address, go, link } from "./address.js";
import { derive } from "./model.js";
import { runPage } from "./overview.js";
import { episodesPage } from "./episodes.js";
import { episodePage } from "./episode.js";

const KEYS = [["j ↓ →", "next turn"], ["k ↑ ←", "previous turn"], ["Home End", "first, last turn"], ["Space", "play or stop the film"], ["[ ]", "previous, next member of the group"],
  ["p n", "previous, next episode of the list"], ["c", "compare with another member or branch"], ["z Enter", "enlarge the screenshot"], ["/ Enter", "search, next hit in an episode"], ["t", "light or dark"], ["Esc", "back"], ["?", "this help"]];

// Whether a box that has the focus takes the keys that scroll it.
const scrolls = box => box && (box.scrollHeight > box.clientHeight || box.scrollWidth > box.clientWidth);
const sentence = text => text.charAt(0).toUpperCase() + text.slice(1);
// Starts the pages on a source. `home` builds the page of "#/": home(context, query) returns a page,
// or null to show the first run.
export function start(source, home) {
  const main = document.getElementById("main"), top = document.getElementById("top"), help = document.getElementById("help");
  const runs = new Map(), watching = new Map(), filters = new Map();
  let page = {}, asked = 0, listed = null, current = null;

  const runOf = async name => runs.get(name) ?? newest(name);
  // A run as it is now, which may have grown since a page first asked for it.
  async function newest(name) {
    const found = await source.run(name);
    if (!found) return null;
    if (runs.get(name)?.rows !== found.rows) runs.set(name, derive(found));
    if (!watching.has(name)) watching.set(name, source.watch(name, fresh => {
      const old = runs.get(name);
      if (!fresh || old.rows === fresh.rows) return;
      runs.set(name, derive(fresh));
      if (page.runs?.some(run => run.name === name)) update(old);
    }));
    return runs.get(name);
  }
  function update(old) {  // the page shows a run as it was before
    const now = runs.get(old.name), isAnother = old.epoch !== now.epoch || (page.tab !== undefined && old.isGrouped !== now.isGrouped);
    const refocus = heldFocus();
    if (current === now.name) chrome(now, page);
    refocus();
    if (page.changed && !isAnother) busy(page.changed(now)); else if (page.tab !== undefined || isAnother) redraw();
  }
  const context = {
    source, runOf, newest,
    list: (run, episodes) => { listed = { name: run.name, episodes }; },
    visible: run => listed?.name === run.name && listed.episodes.length ? listed.episodes : run.groups.flatMap(g => g.members),
    remember: (run, query) => filters.set(run.name, query),
    back: run => go([run.name, "episodes"], filters.get(run.name) ?? {}),
  };
  function chrome(run, shown) {
    const episodes = run && link([run.name, "episodes"], filters.get(run.name) ?? {});
    const tabs = run ? [["Overview", link([run.name])], [`Episodes ${num(run.figures.episodes, 0)}`, episodes]] : [];
    top.replaceChildren(...[
      h("a.brand", { href: "#/" }, h("i", { "aria-hidden": "true" }), "envkit"),
      h("nav.crumbs", { "aria-label": "Where you are" }, run ? h("a.cut", { href: link([run.name]) }, plain(run.name)) : null, shown.crumb ? h("span.cut", { dir: "auto" }, shown.crumb) : null),
      run?.live ? h("span.live", {}, "live") : null,
      h("nav.tabs", { "aria-label": "Pages of the run" }, tabs.map(([name, href], i) => h("a", { href, "aria-current": shown.tab === i ? "page" : null }, name))),
      h("button.quiet", { type: "button", onclick: scheme, "aria-label": "Switch between light and dark" }, "◐"),
      h("button.quiet", { type: "button", onclick: () => help.showModal(), "aria-label": "Keyboard help" }, "?")].filter(Boolean));
  }
  function scheme() {
    const root = document.documentElement, now = root.dataset.scheme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.scheme = now === "dark" ? "light" : "dark";
  }
  async function pageOf({ path, query }) {
    let [name] = path;
    if (name === undefined) {
      const found = await home(context, query);
      if (found) return [null, found];
      name = (await source.runs())[0]?.name;
    }
    const run = await runOf(name);
    if (!run) return [null, await source.isScanned() ? missing(`There is no run named ${plain(name)} here.`) : missing("Looking for runs …", null)];
    const here = { ...context, run };
    if (path[1] === "e") return [run, await episodePage(here, parseInt(path[2], 10), query) ?? noEpisode(run, plain(path[2]))];
    return [run, path[1] === "episodes" ? episodesPage(here, query) : runPage(here)];
  }
  // What is not there may still come: a run that starts, an episode that is not read yet.
  const noEpisode = (run, number) => run.live ? missing(`Waiting for episode ${number}: ${many(run.episodes.length, "episode")} of this run so far.`, null) : missing(`Run ${plain(run.name)} has no episode ${number}.`, link([run.name, "episodes"]));
  function missing(text, href = "#/", name = "Not found") {
    const title = href ? name : "Waiting";
    let stop = null;
    return { name: "lost", title, node: [h("div.pad.card", {}, h("h1", {}, title), h("p", {}, text, " ", href ? h("a", { href }, "Go back") : null))],
      enter(since) { stop = source.watch(null, redraw, since); }, leave() { stop?.(); } };
  }

  const route = () => busy(draw());
  async function draw() {
    const turn = asked += 1, since = source.version();
    let found;
    page.leave?.();
    page = {};  // the old page is still drawn, and must not change the address of the next
    try { found = await pageOf(address()); } catch (error) { found = [null, missing(`${sentence(plain(error.message))}.`, "#/", "This page could not be shown")]; }
    if (turn !== asked) return found[1].leave?.();
    const [run, next] = found;
    page = next;
    current = run?.name ?? null;
    page.runs ??= run ? [run] : [];
    chrome(run, page);
    main.className = page.name;
    main.replaceChildren(...[page.node].flat().filter(Boolean));
    document.title = `${plain(page.title)} · envkit`;
    if (!page.name.startsWith("ep ") && page.name !== "ep") scrollTo(0, 0);
    busy(page.enter?.(since));
    performance.mark("page ready");
    page.runs.filter(old => runs.get(old.name) !== old).forEach(update);
  }
  async function redraw() {  // in place: the reader's position, open folds and focus stay
    const y = scrollY, folds = () => [...main.querySelectorAll("details")], refocus = heldFocus();
    const open = folds().map(fold => fold.open), turn = asked + 1;
    await route();
    if (turn !== asked) return;
    folds().forEach((fold, i) => { if (open[i]) fold.open = true; });
    refocus();
    scrollTo(0, y);
  }
  help.append(h("h2", { id: "help-title" }, "Keyboard"), h("dl.keymap", {}, KEYS.map(([keys, what]) => [h("dt", {}, keys.split(" ").map(x => h("kbd", {}, x))), h("dd", {}, what)])),
    h("form", { method: "dialog" }, h("button.button", {}, "Close")));

  addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const { target, key } = event;
    if (target.closest?.("input:not([type=range]), select, textarea")) { if (key === "Escape") target.blur(); return; }
    if (target.closest?.("dialog[open]") && !target.closest("#light")) return;
    if (/^(Arrow| $|Home|End)/.test(key) && scrolls(target.closest?.("[tabindex='0']"))) return;
    if ((key === " " || key === "Enter") && target.closest?.("button, a, summary")) return;
    if (key === "?") { help.showModal(); event.preventDefault(); } else if (key === "t") scheme();
    else if (key === "/") {
      event.preventDefault();
      const box = document.querySelector("input[type=search]");
      if (box) box.focus(); else if (current) go([current, "episodes"], { find: 1 });
    } else if (page.key?.(event)) event.preventDefault();
  });
  addEventListener("hashchange", route);
  return route();
}
