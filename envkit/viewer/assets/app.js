// The shell: the address decides the page, one key map serves all pages.
import { h, num, plain } from "./dom.js";
import { address, go, link } from "./address.js";
import { derive } from "./model.js";
import { runPage } from "./overview.js";
import { episodesPage } from "./episodes.js";
import { episodePage } from "./episode.js";

const KEYS = [["j ↓ →", "next turn"], ["k ↑ ←", "previous turn"], ["Home End", "first, last turn"], ["Space", "play or stop the film"], ["[ ]", "previous, next member of the group"],
  ["p n", "previous, next episode of the list"], ["c", "compare with another member"], ["z Enter", "enlarge the screenshot"], ["/", "search"], ["t", "light or dark"], ["Esc", "back"], ["?", "this help"]];

// Starts the pages on a source. `home` builds the page of "#/": home(context, query) returns a page,
// or null to show the first run.
export function start(source, home) {
  const main = document.getElementById("main"), top = document.getElementById("top"), help = document.getElementById("help");
  const runs = new Map(), watching = new Map(), filters = new Map();
  let page = {}, asked = 0, listed = null, current = null;

  async function runOf(name) {
    if (!runs.has(name)) {
      const found = await source.run(name);
      if (!found) return null;
      runs.set(name, derive(found));
    }
    if (!watching.has(name)) watching.set(name, source.watch(name, fresh => {
      if (!fresh) return;
      const { isGrouped } = runs.get(name), now = derive(fresh);
      runs.set(name, now);
      if (current !== name) return;
      chrome(now, page);
      if (page.changed && now.isGrouped === isGrouped) page.changed(now); else if (page.tab !== undefined) redraw();
    }));
    return runs.get(name);
  }
  const context = {
    source, runOf,
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
    if (!run) return [null, missing(`There is no run named ${plain(name)} here.`, "#/")];
    const here = { ...context, run };
    if (path[1] === "e") return [run, await episodePage(here, parseInt(path[2], 10), query) ?? missing(`Run ${plain(name)} has no episode ${plain(path[2])}.`, link([name, "episodes"]))];
    return [run, path[1] === "episodes" ? episodesPage(here, query) : runPage(here)];
  }
  const missing = (text, href) => ({ name: "lost", title: "Not found", node: h("p.pad", {}, text, " ", h("a", { href }, "Go back")) });

  async function route() {
    const turn = asked += 1;
    let found;
    page.leave?.();
    page = {};  // the old page is still drawn, and must not change the address of the next
    try { found = await pageOf(address()); } catch (error) { found = [null, missing(`This page could not be shown: ${plain(error.message)}.`, "#/")]; }
    if (turn !== asked) return found[1].leave?.();
    const [run, next] = found;
    page = next;
    current = run?.name ?? null;
    chrome(run, page);
    main.className = page.name;
    main.replaceChildren(...[page.node].flat().filter(Boolean));
    document.title = `${plain(page.title)} · envkit`;
    if (!page.name.startsWith("ep ") && page.name !== "ep") scrollTo(0, 0);
    page.enter?.();
    performance.mark("page ready");
  }
  async function redraw() {  // in place: the reader's position, open folds and focus stay
    const y = scrollY, folds = () => [...main.querySelectorAll("details")], stops = () => [...main.querySelectorAll("a, button, summary")];
    const open = folds().map(fold => fold.open), at = stops().indexOf(document.activeElement);
    await route();
    folds().forEach((fold, i) => { if (open[i]) fold.open = true; });
    if (at >= 0) stops()[at]?.focus({ preventScroll: true });
    scrollTo(0, y);
  }
  help.append(h("h2", { id: "help-title" }, "Keyboard"), h("dl.keymap", {}, KEYS.map(([keys, what]) => [h("dt", {}, keys.split(" ").map(x => h("kbd", {}, x))), h("dd", {}, what)])),
    h("form", { method: "dialog" }, h("button.button", {}, "Close")));

  addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const { target, key } = event;
    if (target.closest?.("input:not([type=range]), select, textarea")) { if (key === "Escape") target.blur(); return; }
    if (target.closest?.("dialog[open]") && !target.closest("#light")) return;
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
