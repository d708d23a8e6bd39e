// Episodes as GRPO sees them: one row per task, its members side by side; or one row per episode.
import { h, num, signed, many, plain, seconds, isNumber, busy, heldFocus } from "./dom.js";
import { link, go, joined, say, split } from "./address.js";
import { keyOf, nameOfEpisode, nameOfGroup, SHOWS, stopWords } from "./model.js";
import { chip, columnChooser, episodeCard, hitLine, lazyPictures, opensRows, taskText } from "./parts.js";
import { leafLanes } from "./branches.js";
import { laneList } from "./tree.js";
import { longTable } from "./long_table.js";

const MOST_HITS = 3;
// Columns by view: name, value to sort by, and whether it is shown unless chosen otherwise.
const COLUMNS_OF = {
  __proto__: null,
  groups: { __proto__: null, solved: ["Solved", g => g.judged ? g.solved / g.judged : null, true], mean: ["Mean", g => g.mean, true], std: ["Spread", g => g.std, true], turns: ["Turns", g => g.turns, true], tokens: ["Tokens", g => g.tokens, true], seconds: ["Time", g => g.seconds, false] },
  list: { __proto__: null, reward: ["Reward", e => e.reward, true], advantage: ["Advantage", e => e.advantage, true], stop: ["Ended by", e => stopWords(e.stop), true], turns: ["Turns", e => e.turns, true], tokens: ["Tokens", e => e.sampled, true], seconds: ["Time", e => e.seconds, true],
    solved: ["Solved", e => e.solved === null ? null : Number(e.solved), false], family: ["Family", e => e.family, false], seed: ["Seed", e => e.seed === null ? null : Number(e.seed), false], member: ["Member", e => e.place, false], images: ["Images", e => e.images, false], unread: ["Not understood", e => e.unread, false], cut: ["Cut replies", e => e.cut, false], rewrites: ["Rewrites", e => e.rewrites, false], flags: ["Flags", e => flagsOf(e), false] },
};
const FIXED = { groups: [["task", "Task", g => g.task], ["members", "Members", null]], list: [["shot", "", null], ["task", "Task", e => e.task]] };
const TEXT_COLUMNS = ["task", "stop", "members", "shot", "family", "flags"];
const CELLS_OF = {
  groups: { solved: g => g.judged ? `${g.solved}/${g.judged}` : "–", mean: g => num(g.mean), std: g => num(g.std), turns: g => num(g.turns, 1), tokens: g => num(g.tokens, 0), seconds: g => seconds(g.seconds) },
  list: { reward: e => chip(e), advantage: e => e.advantage === null ? "–" : e.of.isFlat ? "0" : signed(e.advantage), stop: e => stopWords(e.stop), turns: e => num(e.turns), tokens: e => num(e.sampled), seconds: e => seconds(e.seconds),
    solved: e => e.solved === null ? "–" : `${e.solved ? "yes" : "no"}${isNumber(e.threshold) ? `, ≥ ${num(e.threshold)}` : ""}`, family: e => plain(e.family.replaceAll("_", " ")) || "–", seed: e => plain(e.seed ?? "–"), member: e => num(e.place), images: e => num(e.images), unread: e => num(e.unread), cut: e => num(e.cut), rewrites: e => num(e.rewrites), flags: e => plain(flagsOf(e)) || "–" },
};
const usual = view => Object.keys(COLUMNS_OF[view]).filter(key => COLUMNS_OF[view][key][2]);
const chosenCells = (view, row, columns) => columns.map(key => h(`td${TEXT_COLUMNS.includes(key) ? "" : ".n"}`, { "data-l": COLUMNS_OF[view][key][0].toLowerCase() }, CELLS_OF[view][key](row)));

const flagsOf = e => e.flags.filter(flag => flag !== "fault").join(", ");
function memberCard(e, { href, pictures, hits, query }) {
  const hit = hits?.get(e.number);
  return episodeCard(e, href(e), pictures, e.of.seed === null ? nameOfEpisode(e) : `episode ${e.number}`,
    h("span.adv", { title: "advantage in its group" }, e.of.isFlat || e.advantage === null ? "" : `adv ${signed(e.advantage)}`), hit ? hitLine(hit, query) : null);
}
function groupRow([g, members], tools) {
  const cards = g.isTree ? treeCell(g, members, tools) : h("div.members", {}, members.map(m => memberCard(m, tools)));
  return h(`tr${g.isFlat ? ".flat" : ""}`, {},
    h("th.taskcell", { scope: "row" }, h("a", { href: tools.hrefOf(g) }, taskText(g.task, tools.query)), h("div.muted", {}, nameOfGroup(g)), g.family ? h("div.muted", {}, plain(g.family.replaceAll("_", " "))) : null,
      g.isFlat ? h("span.badge", { title: "All rewards are equal, so every advantage is 0" }, "equal rewards · no gradient") : null),
    h("td.memberscell", {}, cards), chosenCells("groups", g, tools.columns));
}
// The whole tree, with what the filter leaves out dimmed.
function treeCell(g, members, { run, pictures, hits, query, href }) {
  const found = hits ? members.filter(m => (hits.get(m.number)?.where ?? "task") !== "task").slice(0, MOST_HITS) : [];
  return [laneList(leafLanes(run.name, g.members, { isDim: m => !members.includes(m), pictures: run.hasImages ? pictures : null }), plain(g.task)), found.map(m => h("div.line", {}, h("a", { href: href(m) }, m.name), hitLine(hits.get(m.number), query)))];
}
function listRow([e], tools) {
  const hit = tools.hits?.get(e.number), about = [nameOfEpisode(e), e.of.members.length > 1 && e.name.replace(" ", "\u00a0"), e.role, e.fault, !tools.columns.includes("flags") && flagsOf(e), e.from && `from turn ${e.shared + 1} of ${e.from.name}`].filter(Boolean).join(" · ");
  return h("tr", {}, tools.run.hasImages ? h("td.thumb", {}, tools.pictures.node(e.thumbnail)) : null,
    h("th.taskcell", { scope: "row" }, h("a", { href: tools.href(e) }, taskText(e.task, tools.query)), h("div.muted", {}, plain(about)), hit ? hitLine(hit, tools.query) : null),
    chosenCells("list", e, tools.columns));
}
function ordered(rows, value, isDown) {
  if (!value) return rows;
  const known = rows.map(row => [value(row[0]), row]), sign = isDown ? -1 : 1;
  known.sort(([x], [y]) => x === null || y === null ? (x === null) - (y === null) : sign * (typeof x === "string" ? x.localeCompare(y) : x - y));
  return known.map(entry => entry[1]);
}
export function episodesPage(context, query) {
  const { source } = context;
  let { run } = context, hits = null, hitsOf = null, asked = 0, drawn = null, isHere = true;
  const state = { q: "", show: "all", sort: "", dir: "", view: run.isGrouped ? "groups" : "list", group: "", stop: "", fault: "", cols: "", ...query };
  if (!SHOWS[state.show]) state.show = "all";
  const pictures = lazyPictures(source, run.name), body = h("div.scroll"), tally = h("p.tally.muted");
  if (!COLUMNS_OF[state.view]) state.view = "list";
  let columns = split(state.cols).filter(key => COLUMNS_OF[state.view][key]);
  if (!columns.length) columns = usual(state.view);
  const cols = () => columns.join() === usual(state.view).join() ? "" : joined(columns);
  const href = e => link([run.name, "e", e.number]);
  const hrefOf = g => g.members.length === 1 ? href(g.members[0]) : link([run.name, "episodes"], { view: "list", group: keyOf(g) });
  const address = () => ({ q: state.q.trim(), show: state.show === "all" ? "" : state.show, sort: state.sort, dir: state.sort ? state.dir : "", view: state.view === (run.isGrouped ? "groups" : "list") ? "" : state.view, group: state.group, stop: state.stop, fault: state.fault, cols: cols() });
  const save = () => { context.remember(run, address()); go([run.name, "episodes"], address(), true); };
  const isList = () => state.view === "list", lowered = () => state.q.trim().toLowerCase();
  const tools = { href, hrefOf, pictures, get run() { return run; }, get columns() { return columns; }, get hits() { return hits; }, get query() { return lowered(); } };

  // The first letter is searched at once; while it is, the last of those that follow waits.
  let searching = null, isWaiting = false;
  async function searchSoon() {
    if (searching) { isWaiting = true; return; }
    try {
      do {
        isWaiting = false;
        save();
        await (searching = refresh());
      } while (isWaiting);
    } finally { searching = null; }
  }
  const refresh = isQuiet => busy(searched(isQuiet));
  async function searched(isQuiet) {
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
  const keep = e => SHOWS[state.show][1](e) && (!state.group || keyOf(e.of) === state.group) && (!state.stop || e.stop === state.stop) && (!state.fault || e.fault === state.fault) && (!hits || hits.has(e.number));
  function draw(isQuiet) {
    const own = COLUMNS_OF[state.view], fixed = FIXED[state.view].filter(([key]) => key !== "shot" || run.hasImages), heads = [...fixed, ...columns.map(key => [key, own[key][0], own[key][1]])], isDown = state.dir === "down";
    let rows = isList() ? run.episodes.filter(keep).map(e => [e]) : run.groups.map(g => [g, g.members.filter(keep)]).filter(([, members]) => members.length);
    rows = ordered(rows, own[state.sort]?.[1] ?? FIXED[state.view].find(c => c[0] === state.sort)?.[2], isDown);
    const shown = isList() ? rows.map(row => row[0]) : rows.flatMap(row => row[1]);
    context.list(run, shown);
    drawn?.stop();
    drawn = rows.length ? longTable(`table.grid.episodes.${isList() ? "list" : "groups"}`, heads.map(header), rows, { draw: row => isList() ? listRow(row, tools) : groupRow(row, tools), weigh: row => isList() ? 1 : row[1].length, old: isQuiet ? drawn : null }) : null;
    body.replaceChildren(drawn ? drawn.table
      : run.episodes.length === 0 ? h("p.pad.muted", {}, "No episode yet.") : h("p.pad", {}, "Nothing matches. ", h("a", { href: link([run.name, "episodes"]) }, "Show all episodes")));
    drawn?.start();
    tally.textContent = `${many(shown.length, "episode")}${isList() ? "" : ` in ${many(rows.length, "group")}`}`;
    if (isQuiet !== true) say(tally.textContent);
  }
  function header([key, name, by]) {
    const isChosen = state.sort === key, isDown = state.dir === "down";
    const sort = () => { state.dir = isChosen && !isDown ? "down" : "up"; state.sort = key; save(); draw(); body.querySelector(`[data-sort="${key}"]`)?.focus(); };
    return h(`th${TEXT_COLUMNS.includes(key) ? "" : ".n"}`, { scope: "col", "aria-sort": isChosen ? (isDown ? "descending" : "ascending") : null },
      by ? h("button.sort", { type: "button", "data-sort": key, onclick: sort }, name, h("i", { "aria-hidden": "true" }, isChosen ? (isDown ? " ↓" : " ↑") : "")) : name ? h("span.sort", {}, name) : h("span.vh", {}, "Image"));
  }

  const search = h("input", { type: "search", value: state.q, placeholder: "Search all text", "aria-label": "Search tasks, replies and observations", maxlength: 200,
    oninput: event => { state.q = event.target.value; searchSoon(); } });
  const toggle = (label, key, choices, act = () => {}) => h("div.toggle", { role: "group", "aria-label": label }, choices.map(([value, name]) => h("button", { type: "button", "data-value": value, "aria-pressed": String(state[key] === value), onclick: event => {
    state[key] = value;
    for (const button of event.currentTarget.parentNode.children) button.setAttribute("aria-pressed", String(button === event.currentTarget));
    act();
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
  function nameOfChosen() {
    const found = run.groups.find(g => keyOf(g) === state.group);
    return found ? nameOfGroup(found) : "one group";
  }
  const choosing = h("div");
  const choices = () => choosing.replaceChildren(columnChooser(Object.entries(COLUMNS_OF[state.view]).map(([key, [name]]) => [key, name]), columns, keys => { columns = keys.length ? keys : usual(state.view); save(); draw(); }));
  const views = run.isGrouped ? toggle("View", "view", [["groups", "By group"], ["list", "List"]], () => { columns = usual(state.view); choices(); }) : null;
  choices();
  const chosen = [state.group && nameOfChosen(), state.stop && stopWords(state.stop), state.fault].filter(Boolean).join(", ");
  const only = chosen ? h("a.badge.only", { href: link([run.name, "episodes"], { ...address(), group: "", stop: "", fault: "" }) }, `${plain(chosen)} `, h("span", { "aria-hidden": "true" }, "✕"), h("span.vh", {}, "remove this filter")) : null;
  // The entry of the history keeps the place, for who comes back from an episode.
  const place = history.state?.y ?? 0, keepPlace = () => history.replaceState({ y: scrollY }, "");
  context.remember(run, address());
  opensRows(body);
  return { name: "eps", title: `Episodes of ${run.name}`, tab: 1, node: [h("h1.vh", {}, "Episodes"), h("div.tools", {}, search, shows, views, choosing, only, tally), body],
    async enter() {
      counts();
      await refresh();
      if (!isHere) return;
      if (place) scrollTo(0, place);
      addEventListener("scrollend", keepPlace);
      if (query.find) search.focus();
    },
    key(event) {
      const chooser = choosing.firstChild;
      if (event.key !== "Escape" || !chooser.open) return false;
      chooser.open = false;
      return true;
    },
    leave() { isHere = false; isWaiting = false; asked += 1; pictures.stop(); drawn?.stop(); removeEventListener("scrollend", keepPlace); },
    async changed(fresh) {  // what was drawn stays drawn, where it was
      const y = scrollY, refocus = heldFocus();
      run = fresh;
      hitsOf = null;  // the old hits stay drawn until the new ones are there
      counts();
      await refresh(true);
      refocus();
      scrollTo(0, y);
    } };
}
