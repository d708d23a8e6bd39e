// Episodes as GRPO sees them: one row per task, its members side by side; or one row per episode.
import { h, num, signed, many, plain, seconds } from "./dom.js";
import { link, go, say } from "./address.js";
import { keyOf, SHOWS, stopWords } from "./model.js";
import { chip, hitLine, lazyPictures, taskText } from "./parts.js";

const PAGE = 60, CARDS = 64, DEBOUNCE_MS = 80;
const GROUP_COLUMNS = [["task", "Task", g => g.task], ["members", "Members", null], ["solved", "Solved", g => g.solved / g.members.length], ["mean", "Mean", g => g.mean],
  ["std", "Spread", g => g.std], ["turns", "Turns", g => g.turns], ["tokens", "Tokens", g => g.tokens]];
const LIST_COLUMNS = [["shot", "", null], ["task", "Task", e => e.task], ["reward", "Reward", e => e.reward], ["advantage", "Advantage", e => e.advantage], ["stop", "Ended by", e => stopWords(e.stop)],
  ["turns", "Turns", e => e.turns], ["tokens", "Tokens", e => e.sampled], ["seconds", "Seconds", e => e.seconds]];
const TEXT_COLUMNS = ["task", "stop", "members", "shot"];

const flagsOf = e => e.flags.filter(flag => flag !== "fault").join(", ");
function memberCard(e, { href, pictures, hits, query }) {
  const hit = hits?.get(e.number), ending = e.stop === "terminated" ? "" : ` · ${stopWords(e.stop)}`;
  return h(`a.member${e.flags.includes("fault") ? ".fault" : ""}`, { href: href(e) }, pictures.node(e.thumbnail),
    h("span.line", {}, chip(e), h("span.adv", { title: "advantage in its group" }, e.of.isFlat || e.advantage === null ? "" : `adv ${signed(e.advantage)}`)),
    h("span.line.muted", {}, h("span.cut", { title: stopWords(e.stop) }, many(e.turns, "turn"), ending)), hit ? hitLine(hit, query) : null);
}
function groupRow([g, members], tools) {
  return h(`tr${g.isFlat ? ".flat" : ""}`, {},
    h("th.taskcell", { scope: "row" }, taskText(g.task, tools.query), g.family ? h("div.muted", {}, plain(g.family.replaceAll("_", " "))) : null,
      g.isFlat ? h("span.badge", { title: "All rewards are equal, so every advantage is 0" }, "equal rewards · no gradient") : null),
    h("td.memberscell", {}, h("div.members", {}, members.map(m => memberCard(m, tools)))),
    [["solved", `${g.solved}/${g.members.length}`], ["mean", num(g.mean)], ["spread", num(g.std)], ["turns", num(g.turns, 1)], ["tokens", num(g.tokens, 0)]].map(([name, text]) => h("td.n", { "data-l": name }, text)));
}
function listRow([e], tools) {
  const hit = tools.hits?.get(e.number), about = [e.of.members.length > 1 && `member ${e.place}`, e.role, flagsOf(e)].filter(Boolean).join(" · ");
  return h("tr", {}, h("td.thumb", {}, tools.pictures.node(e.thumbnail)),
    h("th.taskcell", { scope: "row" }, h("a", { href: tools.href(e) }, taskText(e.task, tools.query)), about ? h("div.muted", {}, plain(about)) : null, hit ? hitLine(hit, tools.query) : null),
    h("td.n", { "data-l": "reward" }, chip(e)), h("td.n", { "data-l": "advantage" }, e.advantage === null ? "–" : e.of.isFlat ? "0" : signed(e.advantage)), h("td", { "data-l": "ended by" }, stopWords(e.stop)),
    h("td.n", { "data-l": "turns" }, num(e.turns)), h("td.n", { "data-l": "tokens" }, num(e.sampled)), h("td.n", { "data-l": "seconds" }, seconds(e.seconds)));
}
function ordered(rows, value, isDown) {
  if (!value) return rows;
  const known = rows.map(row => [value(row[0]), row]), sign = isDown ? -1 : 1;
  known.sort(([x], [y]) => x === null || y === null ? (x === null) - (y === null) : sign * (typeof x === "string" ? x.localeCompare(y) : x - y));
  return known.map(entry => entry[1]);
}
export function episodesPage(context, query) {
  const { source } = context;
  let { run } = context, hits = null, hitsOf = null, rows = [], drawn = 0, asked = 0;
  const state = { q: "", show: "all", sort: "", dir: "", view: run.isGrouped ? "groups" : "list", group: "", stop: "", ...query };
  if (!SHOWS[state.show]) state.show = "all";
  const pictures = lazyPictures(source, run.name), body = h("div.scroll"), tally = h("p.tally.muted"), end = h("div.more", { "aria-hidden": "true" });
  const href = e => link([run.name, "e", e.number]);
  const address = () => ({ q: state.q.trim(), show: state.show === "all" ? "" : state.show, sort: state.sort, dir: state.sort ? state.dir : "", view: state.view === (run.isGrouped ? "groups" : "list") ? "" : state.view, group: state.group, stop: state.stop });
  const save = () => { context.remember(run, address()); go([run.name, "episodes"], address(), true); };
  const isList = () => state.view === "list", lowered = () => state.q.trim().toLowerCase();
  const tools = { href, pictures, get hits() { return hits; }, get query() { return lowered(); } };

  async function refresh(isQuiet) {
    const wanted = lowered(), turn = asked += 1;
    if (!wanted) hits = null;
    else if (wanted !== hitsOf) {
      try {
        const found = await source.search(run.name, wanted);
        if (turn !== asked) return;
        hits = found;
      } catch (error) { tally.textContent = plain(error.message); return; }
    }
    hitsOf = wanted;
    draw(isQuiet);
  }
  const keep = e => SHOWS[state.show][1](e) && (!state.group || (e.group ?? "") === state.group) && (!state.stop || e.stop === state.stop) && (!hits || hits.has(e.number));
  function draw(isQuiet) {
    const columns = isList() ? LIST_COLUMNS : GROUP_COLUMNS, isDown = state.dir === "down";
    rows = isList() ? run.episodes.filter(keep).map(e => [e]) : run.groups.map(g => [g, g.members.filter(keep)]).filter(([, members]) => members.length);
    rows = ordered(rows, columns.find(c => c[0] === state.sort)?.[2], isDown);
    const shown = isList() ? rows.map(row => row[0]) : rows.flatMap(row => row[1]);
    context.list(run, shown);
    drawn = 0;
    body.replaceChildren(rows.length ? h(`table.grid.episodes.${isList() ? "list" : "groups"}`, {}, h("thead", {}, h("tr", {}, columns.map(header))), h("tbody"))
      : run.episodes.length === 0 ? h("p.pad.muted", {}, "No episode yet.") : h("p.pad", {}, "Nothing matches. ", h("a", { href: link([run.name, "episodes"]) }, "Show all episodes")));
    grow();
    tally.textContent = `${many(shown.length, "episode")}${isList() ? "" : ` in ${many(rows.length, "group")}`}`;
    if (isQuiet !== true) say(tally.textContent);
  }
  function header([key, name, by]) {
    const isChosen = state.sort === key, isDown = state.dir === "down";
    const sort = () => { state.dir = isChosen && !isDown ? "down" : "up"; state.sort = key; save(); draw(); body.querySelector(`[data-sort="${key}"]`)?.focus(); };
    return h(`th${TEXT_COLUMNS.includes(key) ? "" : ".n"}`, { scope: "col", "aria-sort": isChosen ? (isDown ? "descending" : "ascending") : null },
      by ? h("button.sort", { type: "button", "data-sort": key, onclick: sort }, name, h("i", { "aria-hidden": "true" }, isChosen ? (isDown ? " ↓" : " ↑") : "")) : name ? h("span.sort", {}, name) : h("span.vh", {}, "Image"));
  }
  function grow() {
    const tbody = body.querySelector("tbody"), next = [];
    for (let cards = 0; drawn + next.length < rows.length && cards < (isList() ? PAGE : CARDS);) {
      next.push(rows[drawn + next.length]);
      cards += isList() ? 1 : next.at(-1)[1].length;
    }
    tbody?.append(...next.map(row => isList() ? listRow(row, tools) : groupRow(row, tools)));
    drawn += next.length;
  }
  const watcher = new IntersectionObserver(entries => { if (entries.some(e => e.isIntersecting) && drawn < rows.length) { grow(); watcher.unobserve(end); watcher.observe(end); } }, { rootMargin: "800px" });

  let timer;
  const search = h("input", { type: "search", value: state.q, placeholder: "Search tasks, replies and observations", "aria-label": "Search tasks, replies and observations", maxlength: 200,
    oninput: event => { state.q = event.target.value; clearTimeout(timer); timer = setTimeout(() => { save(); refresh(); }, DEBOUNCE_MS); } });
  const toggle = (label, key, choices) => h("div.toggle", { role: "group", "aria-label": label }, choices.map(([value, name]) => h("button", { type: "button", "data-value": value, "aria-pressed": String(state[key] === value), onclick: event => {
    state[key] = value;
    for (const button of event.currentTarget.parentNode.children) button.setAttribute("aria-pressed", String(button === event.currentTarget));
    save();
    draw();
  } }, name)));
  const shows = toggle("Which episodes", "show", Object.entries(SHOWS).map(([key, [name]]) => [key, [name, h("span.muted")]]));
  function counts() {
    for (const button of shows.children) {
      const [, test] = SHOWS[button.dataset.value], n = run.episodes.filter(test).length;
      button.lastChild.textContent = ` ${num(n)}`;
      button.hidden = n === 0 && button.dataset.value !== "all" && button.dataset.value !== state.show;
    }
  }
  const views = run.isGrouped ? toggle("View", "view", [["groups", "By group"], ["list", "List"]]) : null;
  const only = state.group || state.stop ? h("a.badge.only", { href: link([run.name, "episodes"], { ...address(), group: "", stop: "" }) }, state.group ? "one group " : `${stopWords(state.stop)} `, h("span", { "aria-hidden": "true" }, "✕"), h("span.vh", {}, "remove this filter")) : null;
  context.remember(run, address());
  return { name: "eps", title: `Episodes of ${run.name}`, tab: 1, node: [h("h1.vh", {}, "Episodes"), h("div.tools", {}, search, shows, views, only, tally), body, end],
    async enter() { counts(); await refresh(); watcher.observe(end); if (query.find) search.focus(); },
    leave() { clearTimeout(timer); asked += 1; pictures.stop(); watcher.disconnect(); },
    async changed(fresh) {  // what was drawn stays drawn, where it was
      const y = scrollY, before = drawn, at = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      run = fresh;
      hitsOf = null;  // the old hits stay drawn until the new ones are there
      counts();
      await refresh(true);
      while (drawn < Math.min(before, rows.length)) grow();
      if (at) [...body.querySelectorAll("a[href]")].find(one => one.getAttribute("href") === at)?.focus({ preventScroll: true });
      scrollTo(0, y);
    } };
}
