// One episode: turns at the left, the conversation in the middle, the chosen turn's facts at the
// right; or two episodes side by side at the same turn.
import { h, num, signed, many, plain, folded, json, busy, seconds } from "./dom.js";
import { link, go, say } from "./address.js";
import { findBar } from "./find.js";
import { gain, stopWords } from "./model.js";
import { chip } from "./parts.js";
import { icon, shot, summary } from "./marks.js";
import { factList, inspector } from "./inspector.js";
import { copyLink, saveText } from "./export.js";
import { recordView } from "./record.js";
import { actions, turnCard } from "./turn.js";
import { commonTurns, ends, pathTo, relatives, treeFold } from "./branches.js";
import { enlarge, isEnlarged, shrink } from "./lightbox.js";

const NARROW = matchMedia("(max-width: 1180px)"), CALM = matchMedia("(prefers-reduced-motion: reduce)");
const FRAME_MS = 900;

// What the pages need of an episode: one path through its tree, the last one unless another is named.
function viewOf(source, row, data, run, wanted) {
  const all = ends(data.sequences), named = parseInt(wanted, 10), at = all.includes(named) ? named : all.at(-1);
  const view = { row, data, run, at, isBranched: all.length > 1, ...pathTo(data.sequences, at), ending: stopWords(data.stop) };
  view.turns.slice(0, row.shared).forEach(turn => { turn.isInherited = true; });
  view.relatives = relatives(view);
  view.draw = (sha, marks, options = {}) => shot(source, run, sha, data.sizes[sha], marks, { onopen: () => view.onopen?.(sha, marks), ...options });
  return view;
}
const nameOf = (view, other) => view.isBranched && view.row === other?.row ? `Branch ${ends(view.data.sequences).indexOf(view.at) + 1}` : view.run !== other?.run ? plain(view.run) : view.row.of.members.length > 1 ? view.row.name : `Episode ${view.row.number}`;

export async function episodePage(context, number, query) {
  const { source, run } = context, row = run.byNumber.get(number), data = await source.episode(run.name, number);
  if (!row || !data) return null;
  const view = viewOf(source, row, data, run.name, query.b), other = await otherView(context, query, number, view);
  const state = { now: 1, timer: null, quiet: 0, touched: -Infinity, q: "", isJson: false }, total = view.turns.length;
  const steps = Math.max(total, other?.turns.length ?? 0) + 1;  // the last step is the end
  const common = other ? commonTurns(view, other) : 0;
  const around = context.visible(run), place = around.indexOf(row), members = row.of.members;
  const own = () => query.b ? { b: view.at } : {};
  const partner = () => other ? { vs: other.row.number, in: other.run === run.name ? "" : other.run, vb: other.row === row ? other.at : "" } : {};
  const save = () => go([run.name, "e", number], { ...own(), t: state.now > 1 ? state.now : "", q: state.q, view: state.isJson ? "json" : "", ...partner() }, true);
  const to = (n, extra = {}) => go([run.name, "e", n], extra);

  const cards = [], pairs = [], items = [], slot = h("aside.side", { "aria-label": "The chosen turn", tabindex: 0 }), pane = h("div.conv");
  const against = extra => link([run.name, "e", number], { ...own(), ...extra });
  const rail = turnList(view, other, { steps, items, common, choose: n => choose(n, true) });
  const film = filmBar(steps, total, { choose: n => choose(n, true), step: d => choose(state.now + d, true), toggle });
  const layout = h(`div.layout${other ? ".versus" : ""}`, {}, h("nav.rail", { "aria-label": "Turns" }, rail),
    h("div.center", {}, other ? null : systemPrompt(view), pane, other ? null : folded("Identifiers, seal and task", identity(view))), other ? null : slot);
  if (!other) {
    for (let n = 1; n <= total + 1; n++) {
      const card = turnCard(view, n, { isEager: n < 3, to: against });
      card.addEventListener("click", () => n !== state.now && choose(n), true);
      cards.push(card);
    }
    pane.append(...cards);
    if (total > 30) pane.classList.add("many");
  }
  // Both episodes at a turn: one lane while they share it.
  function pairAt(n, isEager) {
    const lanes = () => n <= common ? [sharedNote(n, common), lane(view, n, other, isEager)] : [view, other].map(one => lane(one, n, one === view ? other : view, isEager));
    return pairs[n - 1] ??= lanes();
  }
  const everyPair = () => Array.from({ length: steps }, (_, i) => pairAt(i + 1, false)).flat();
  view.onopen = (sha, marks) => show(view, sha, marks);
  if (other) other.onopen = (sha, marks) => show(other, sha, marks);
  function show(one, sha, marks) {
    const turn = one.turns[state.now - 1], words = turn?.words.length ? actions(turn) : turn ? summary(turn).text : one.ending;
    enlarge(shot(source, one.run, sha, one.data.sizes[sha], marks, { isEager: true }), turn ? `Turn ${state.now} of ${one.turns.length}` : "End", words);
  }
  function enlargeNow() {
    const button = (other ? pane : cards[state.now - 1])?.querySelectorAll(".frame");
    if (button?.length) [...button].at(other ? 0 : -1).click();
  }

  function choose(n, isScrolled) {
    if (state.isLeft) return;
    state.now = Math.max(1, Math.min(steps, n));
    const { now } = state, turn = view.turns[now - 1];
    film.show(now, turn ? `turn ${now}: ${summary(turn).text}` : "end", turn ? `${now} / ${total}` : now === total + 1 ? "end" : String(now));
    items.forEach((item, i) => item.setAttribute("aria-current", i + 1 === now ? "step" : "false"));
    keepInView(rail, items[now - 1]);
    if (other) pane.replaceChildren(...pairAt(now, true));
    else {
      cards.forEach((card, i) => card.classList.toggle("on", i + 1 === now));
      slot.replaceChildren(turn ? inspector(data, turn, now, total) : h("div.inspect", {}, h("h2", {}, "End"), identity(view)));
      if (NARROW.matches) cards[now - 1].append(slot); else if (slot.parentNode !== layout) layout.append(slot);
      if (isScrolled) {
        state.quiet = performance.now() + 900;
        cards[now - 1].scrollIntoView({ block: "start", behavior: state.timer || CALM.matches ? "auto" : "smooth" });
      }
    }
    if (isEnlarged()) enlargeNow();
    save();
    if (isScrolled) say(turn ? `Turn ${now}. ${summary(turn).text}` : "End");
  }
  function toggle() {
    if (state.timer) { clearInterval(state.timer); state.timer = null; } else {
      if (state.now === steps) choose(1, true);
      state.timer = setInterval(() => { if (state.now < steps) choose(state.now + 1, true); else toggle(); }, FRAME_MS);
    }
    film.play(Boolean(state.timer));
  }
  // Who scrolls through the conversation with the wheel sees the facts of the turn that is there.
  const touch = () => { state.touched = performance.now(); };
  const follow = () => {
    if (other || NARROW.matches || performance.now() < state.quiet || performance.now() - state.touched > 400) return;
    const at = document.elementFromPoint(innerWidth / 2, innerHeight * .4)?.closest(".turn"), n = cards.indexOf(at) + 1;
    if (n > 0 && n !== state.now) choose(n);
  };
  const resize = () => choose(state.now);
  const heading = episodeHead(context, view, other, { t: () => state.now });
  const record = h("div", { hidden: true }), tabs = [false, true].map(isJson => h("button", { type: "button", "aria-pressed": String(!isJson), onclick: () => open(isJson) }, isJson ? "JSON" : "Turns"));
  const find = findBar(() => [heading.node, ...other ? everyPair() : [layout.querySelector(".center")]], {
    place: other ? "both episodes" : undefined,
    changed(q) { state.q = q; save(); },
    show(mark) {
      const n = (other ? pairs : cards).findIndex(nodes => [nodes].flat().some(node => node.contains(mark))) + 1, look = () => mark.scrollIntoView({ block: "center" });
      state.quiet = performance.now() + 900;
      open(false);
      if (n && n !== state.now) choose(n);
      look();
      requestAnimationFrame(look);  // cards that come into view get their real height
    },
  });
  const shown = other ? [view, other] : [view], texts = () => Promise.all(shown.map(one => source.record(one.run, one.row.number)));
  const fileName = other ? `${run.name}-episodes-${number}-${other.row.number}.jsonl` : `${run.name}-episode-${number}.json`;
  async function recordViews() {
    const found = await texts(), note = one => `${other ? `${nameOf(one, one === view ? other : view)}: ` : ""}${source.recordNote(one.row.number)}`;
    return shown.map((one, i) => recordView(found[i], note(one)));
  }
  async function open(isJson) {
    if (isJson === state.isJson) return;
    state.isJson = isJson;
    tabs.forEach((tab, i) => tab.setAttribute("aria-pressed", String(isJson === Boolean(i))));
    layout.hidden = film.node.hidden = isJson;
    record.hidden = !isJson;
    save();
    if (isJson && !record.firstChild) try { record.replaceChildren(...await busy(recordViews())); } catch (error) { record.replaceChildren(h("p.error", {}, plain(error.message))); }
  }
  // A print has the whole conversation: texts in full, and images that were not scrolled to.
  const complete = () => {
    if (other) pane.replaceChildren(...everyPair());
    pane.querySelectorAll(".rest").forEach(rest => rest.unfold());
    return Promise.allSettled([...pane.querySelectorAll("img")].map(img => { img.loading = "eager"; return img.decode(); }));
  };
  async function print() {
    open(false);
    await complete();
    globalThis.print();
  }
  const act = (name, title, run) => h("button.button.small", { type: "button", title, onclick: run }, name);
  const tools = h("div.tools.eptools", {}, h("div.toggle", { role: "group", "aria-label": "View" }, tabs), find.node, h("span.grow"),
    copyLink(), act("Download", other ? "The JSON of both episodes, one per line" : "The JSON of this episode", async () => saveText(other ? (await texts()).map(one => `${one.trim()}\n`).join("") : (await texts())[0], fileName)), act("Print", other ? "All turns of both episodes" : "All turns of this episode", print));
  return {
    name: other ? "ep vs" : "ep", title: data.title, crumb: `${members.length > 1 ? `${row.name} of ${members.length}` : `episode ${number}`}: ${plain(row.task)}`,
    node: [heading.node, tools, layout, record, film.node],
    enter() {
      NARROW.addEventListener("change", resize);
      addEventListener("scroll", follow, { passive: true });
      addEventListener("beforeprint", complete);
      addEventListener("afterprint", resize);
      ["wheel", "touchmove"].forEach(kind => addEventListener(kind, touch, { passive: true }));
      const first = Math.min(steps, Math.max(1, parseInt(query.t, 10) || 1));
      if (query.view === "json") open(true);
      choose(first);
      if (query.q) find.fill(query.q);
      if (first > 1 && !other) cards[first - 1].scrollIntoView({ block: "start" }); else scrollTo(0, 0);
    },
    leave() {
      state.isLeft = true;
      clearInterval(state.timer);
      find.stop();
      NARROW.removeEventListener("change", resize);
      removeEventListener("scroll", follow);
      removeEventListener("beforeprint", complete);
      removeEventListener("afterprint", resize);
      ["wheel", "touchmove"].forEach(kind => removeEventListener(kind, touch));
      shrink();
    },
    key(event) {
      const k = event.key, i = members.indexOf(row), isSlid = event.target === film.slider;
      const next = { j: 1, ArrowDown: 1, ArrowRight: 1, k: -1, ArrowUp: -1, ArrowLeft: -1 }[k];
      if (state.isJson && k === "Escape") open(false);
      else if (state.isJson && !["[", "]", "n", "p"].includes(k)) return false;
      else if (next !== undefined && (k === "j" || k === "k" || !isSlid)) choose(state.now + next, true);
      else if (k === "Home") choose(1, true);
      else if (k === "End") choose(steps, true);
      else if (k === " ") toggle();
      else if (k === "[" && i > 0) to(members[i - 1].number);
      else if (k === "]" && i + 1 < members.length) to(members[i + 1].number);
      else if (k === "n" && around[place + 1]) to(around[place + 1].number);
      else if (k === "p" && place > 0) to(around[place - 1].number);
      else if (k === "c" && (other || heading.nearest)) to(number, { ...own(), t: state.now, ...(other ? {} : heading.nearest) });
      else if (k === "z") { if (isEnlarged()) shrink(); else enlargeNow(); }
      else if (k === "Enter" && (event.target === document.body || event.target.id === "main")) enlargeNow();
      else if (k === "Escape" && !isEnlarged()) context.back(run);
      else return false;
      return true;
    },
  };
}
async function otherView({ source, run, runOf }, query, number, view) {
  const wanted = parseInt(query.vs, 10);
  if (wanted === number && !query.in) return query.vb && view.isBranched ? viewOf(source, view.row, view.data, run.name, query.vb) : null;
  if (!Number.isInteger(wanted)) return null;
  const theirs = query.in ? await runOf(query.in) : run, row = theirs?.byNumber.get(wanted);
  const data = row && await source.episode(theirs.name, wanted);
  return data ? viewOf(source, row, data, theirs.name) : null;
}
function turnWords({ turns }) {
  const asked = turns.filter(turn => turn.purpose).length;
  return `${many(turns.length - asked, "turn")}${asked ? ` and ${many(asked, "question")}` : ""}`;
}
const systemPrompt = view => {
  const system = view.turns[0]?.heard.find(m => m.role === "system");
  return system ? folded("System prompt", h("pre", { tabindex: 0 }, plain(system.text))) : null;
};
function lane(view, now, other, isEager) {
  const turn = view.turns[now - 1], data = view.data;
  return h("section.lane", { "aria-label": nameOf(view, other) }, h("h2.lanehead", {}, nameOf(view, other), " ", chip({ reward: view.data.sequences[view.at].reward ?? view.row.reward }), h("span.muted", {}, ` ${turnWords(view)} · ${view.ending}`)),
    turnCard(view, now, { isCompared: true, isEager }), turn ? h("details.fold.facts2", {}, h("summary", {}, "Tokens, time, info"), inspector(data, turn, now, view.turns.length)) : null);
}
const sharedNote = (now, common) => h("p.notice.wholelane", {}, `Turn ${now} belongs to both: they diverge after turn ${common}.`);
function turnList(view, other, { steps, items, common, choose }) {
  const forks = new Set((other ? [common] : view.relatives.map(one => one.shared)).filter(shared => shared > 0));
  return h("ol.turns", {}, Array.from({ length: steps }, (_, i) => {
    const turn = view.turns[i], isEnd = i === view.turns.length, what = turn ? summary(turn) : { kind: "terminate", text: isEnd ? view.ending : "–" };
    const their = other?.turns[i], theirs = their ? summary(their).text : i === other?.turns.length ? other.ending : "–";
    // Actions are compared, not replies: other words for the same click are no difference.
    const acts = one => one ? (one.words.length ? one.words.join("\n") : one.reply.trim()) : null, isFork = other && (turn || their) && acts(turn) !== acts(their);
    const isFirst = forks.has(i) && (turn || their), isInherited = (other ? i < common : turn?.isInherited);
    const item = h(`button${isInherited ? ".inherited" : ""}`, { type: "button", onclick: () => choose(i + 1), title: what.text }, h("b.n", {}, turn || their ? String(i + 1) : ""), turn || isEnd ? icon(what.kind) : h("i.icon"),
      turn?.starts?.prompt ? h("span.rewrote", { title: "history rewritten" }, "⟲", h("span.vh", {}, "history rewritten")) : null,
      h("span.cut", { dir: "auto" }, what.text, isFork ? h("span.theirs", {}, theirs) : null), turn?.reward ? h("i.dotscore", { vars: gain(turn.reward), role: "img", "aria-label": `reward ${num(turn.reward)}`, title: `reward ${num(turn.reward)}` }) : null,
      turn?.cut ? h("span.flag", { title: turn.cut }, "✂ cut") : null,
      what.isBad ? h("span.flag", { title: "not understood" }, icon("bad"), h("span.vh", {}, "not understood")) : null, isFork ? h("em.fork", { title: "the actions differ" }, "≠") : null);
    items.push(item);
    return h(`li${isFirst ? ".forkpoint" : ""}`, {}, isFirst ? h("span.forkline", {}, other ? "diverge here" : "fork") : null, item);
  }));
}
function keepInView(rail, item) {
  const box = rail.getBoundingClientRect(), r = item.getBoundingClientRect();
  if (r.top < box.top || r.bottom > box.bottom) rail.scrollTop += r.top - box.top - box.height / 3;
  if (r.left < box.left || r.right > box.right) rail.scrollLeft += r.left - box.left - box.width / 3;
}
function filmBar(steps, total, { choose, step, toggle }) {
  const slider = h("input", { type: "range", min: 1, max: steps, value: 1, step: 1, "aria-label": "Turn", oninput: event => choose(+event.target.value) });
  const play = h("button.button", { type: "button", "aria-label": "Play", onclick: toggle }, "▶"), at = h("output.at");
  const node = h("div.film", { role: "group", "aria-label": "Film" }, h("button.button", { type: "button", "aria-label": "Previous turn", onclick: () => step(-1) }, "‹"), play,
    h("button.button", { type: "button", "aria-label": "Next turn", onclick: () => step(1) }, "›"), slider, at);
  return { node, slider,
    show(now, words, text) { slider.value = now; slider.setAttribute("aria-valuetext", words); at.textContent = text; },
    play(isOn) { play.textContent = isOn ? "❚❚" : "▶"; play.setAttribute("aria-label", isOn ? "Stop" : "Play"); } };
}
function identity(view) {
  const { data } = view;
  return h("div", {}, factList([["episode", data.id, true], ["line", String(data.number)], ["environment", data.env, true], ["task", typeof data.task.id === "string" ? data.task.id : null, true], ["seed", data.seed, true], ["group", data.group, true],
    ["engine", data.engine, true], ["duration", seconds(data.seconds)], ["restarts", data.restarts || null], ["certificate", data.certificate.status], ["seal", data.certificate.seal, true]]),
    folded("Task as data", json(data.task)), Object.keys(data.reset_info).length ? folded("Reset info", json(data.reset_info)) : null, Object.keys(data.metadata).length ? folded("Metadata", json(data.metadata)) : null);
}
// How many observations the run compared with full renders, and what came of it.
function checksOf(turns) {
  const count = test => turns.filter(test).length, unchecked = count(turn => turn.sanity === "unchecked"), checked = count(turn => turn.sanity) - unchecked;
  const words = [[checked, "checked"], [count(turn => turn.sanity === "different"), "of them different"], [count(turn => turn.sanity === "whitespace"), "of them different in white space"], [unchecked, "unchecked"], [count(turn => !turn.sanity && turn.observation_tokens), "not drawn for the check"]];
  return checked + unchecked ? `observations: ${words.filter(([n]) => n).map(([n, what]) => `${num(n, 0)} ${what}`).join(", ")}` : null;
}
function episodeHead(context, view, other, { t }) {
  const { run } = context, { row, data } = view, members = row.of.members, rest = members.filter(m => m !== row), isOwn = !other || other.run === run.name;
  const related = new Map(view.relatives.map(one => [one.row, one])), member = rest.find(m => m.solved !== row.solved) ?? rest[0], isSelf = other?.row === row;
  const kin = view.relatives.find(one => (one.row ?? row).solved !== row.solved) ?? view.relatives[0];
  const nearest = kin ? { ...kin.query, t: kin.shared + 1 } : member && { vs: member.number };
  const standing = row.advantage === null ? null : row.of.isFlat ? "equal rewards in its group" : `advantage ${signed(row.advantage)}`;
  const facts = [view.ending, turnWords(view), row.family && plain(row.family.replaceAll("_", " ")), row.role && `role ${plain(row.role)}`, standing, checksOf(view.turns)].filter(Boolean).join(" · ");
  const chips = members.length > 1 && !row.of.isTree ? h("div.switch", { role: "group", "aria-label": "Members of the group" }, members.map(m => h("a", { href: link([run.name, "e", m.number]), "aria-current": m === row ? "page" : null, title: `${m.name}: ${stopWords(m.stop)}` }, `${m.place} `, chip(m)))) : null;
  const agents = row.team.length > 1 ? h("div.switch", { role: "group", "aria-label": "Agents of the episode" }, row.team.map(m => h("a", { href: link([run.name, "e", m.number]), "aria-current": m === row ? "page" : null }, `${plain(m.role ?? "agent")} `, chip(m)))) : null;
  const compare = rest.length || other || view.relatives.length ? h("select", { "aria-label": "Compare with another episode", onchange: event => { const [vs, vb] = event.target.value.split(" "); go([run.name, "e", row.number], { b: view.isBranched ? view.at : "", t: view.relatives.find(one => one.query.vs === +vs && one.query.vb === (vb && +vb))?.shared + 1 || t(), vs, vb }); } },
    h("option", { value: "" }, other ? "stop comparing" : "compare with …"), other && !isOwn ? h("option", { value: other.row.number, selected: true }, `${plain(other.run)} · reward ${num(other.row.reward)}`) : null,
    view.relatives.filter(one => !one.row).map(one => h("option", { value: `${row.number} ${one.query.vb}`, selected: isSelf && one.query.vb === other.at }, `${one.name} · reward ${num(one.reward)}`)),
    rest.map(m => h("option", { value: m.number, selected: isOwn && m === other?.row }, `${m.name} · reward ${num(m.reward)}${related.get(m)?.shared ? ` · from turn ${related.get(m).shared + 1}` : ""}`))) : null;
  const problems = [...data.problems.map(p => `${p.rule}: ${p.message}`), ...(data.certificate.kind === "bad" ? [`certificate ${data.certificate.status}`] : [])];
  const node = h("div.ephead", {}, h("h1", { dir: "auto" }, plain(data.title)),
    h("div.line", {}, chip(row), data.success ? h(`span.flip${row.solved ? ".good" : row.solved === false ? ".bad" : ""}`, {}, plain(data.success)) : null, h("span.muted", {}, facts), h("span.grow"), chips, agents, compare),
    treeFold(view, run.name, other),
    data.fault ? h("p.error", {}, icon("bad"), `Fault in ${plain(data.fault.where)} (${plain(data.fault.kind)}): `, plain(data.fault.message)) : null,
    problems.length ? h("p.error", {}, icon("bad"), "Do not train on this episode. ", plain(problems.join("; "))) : null,
    data.has_ledger ? null : h("p.note", {}, "No token ledger: the engine recorded text only."));
  return { node, nearest };
}
