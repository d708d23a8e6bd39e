// A chart: panels of series on their own axes, as a node, an image and a table. A plan is
//   {x, y, smooth, hasLinks, isDense, panels: [{title, names, series: [{name, colour, isLine, points: [{x, y, low, high, label, href}]}]}]}
// where an axis has a name, `text` of a value and `scale` of values, and `names` label x = 0, 1, … if it is not a number.
// `hasLinks` makes each point a link, and `isDense` leaves out the points of lines. A field whose points are no links
// is one stop of the keyboard: arrow keys walk through its points and Enter opens one.
import { h, s, num, many, plain, isNumber } from "./dom.js";
import { niceStep, rangeOf } from "./charts.js";

const MOST_NAMES = 12, MOST_TICKS = 8, REACH = 24;
const WIDTH = 1000, HEIGHT = 380, LEFT = 80, TOP = 64, FOOT = 60;

// Exponential moving average without the pull to zero of its start, as TensorBoard and W&B smooth.
export function smoothed(values, factor) {
  let sum = 0, weight = 0;
  return values.map(value => {
    sum = factor * sum + (1 - factor) * value;
    weight = factor * weight + (1 - factor);
    return sum / weight;
  });
}
const position = (value, [from, to]) => from === to ? 50 : 4 + 92 * (value - from) / (to - from);
// Places of x to label: the values themselves if they are few, else round numbers.
function ticksOf(values, [from, to], isWide) {
  const own = [...new Set(values)].sort((a, b) => a - b);
  if (isWide) return own.length > 1 ? [from, to] : own;
  if (own.length <= MOST_TICKS) return own.filter((value, i) => !i || 100 * (value - own[i - 1]) > 7 * (to - from));
  const step = niceStep((to - from) / 6), start = Math.ceil(from / step);
  return Array.from({ length: Math.floor(to / step) - start + 1 }, (_, i) => (start + i) * step);
}
// Names without the words that all begin with, which is all that a narrow label would show.
function endings(names) {
  let same = names.length > 1 ? names[0] : "";
  for (const name of names) while (!name.startsWith(same)) same = same.slice(0, -1);
  const cut = same.replace(/[^-_./ ]*$/, "").length;
  return cut > 3 ? names.map(name => `…${name.slice(cut)}`) : names;
}
// Where everything of a panel is, in percent of its field.
function layout(panel, plan) {
  const points = panel.series.flatMap(one => one.points), xs = points.map(p => p.x), ys = points.flatMap(p => [p.y, p.low, p.high]).filter(isNumber);
  const across = panel.names ? [-.5, panel.names.length - .5] : rangeOf(xs), [low, high] = plan.y.scale ? plan.y.scale(ys) : rangeOf(ys);
  const x = value => panel.names ? 100 * (value + .5) / panel.names.length : position(value, across), y = value => 100 - position(value, [low, high]);
  const ticks = panel.names ? (panel.names.length > MOST_TICKS ? [] : endings(panel.names).map((text, i) => ({ at: x(i), text: plain(text), title: plain(panel.names[i]) }))) : ticksOf(xs, across, plan.x.isWide).map(value => ({ at: x(value), text: plan.x.text(value) }));
  const lines = panel.series.filter(one => one.isLine && one.points.length > 1).flatMap(one => {
    const raw = one.points.map(p => [x(p.x), y(p.y)]);
    const soft = plan.smooth ? smoothed(one.points.map(p => p.y), plan.smooth).map((value, i) => [raw[i][0], y(value)]) : null;
    return [{ at: raw, colour: one.colour, isFaint: Boolean(soft) }, soft && { at: soft, colour: one.colour }].filter(Boolean);
  });
  const hasLine = new Set(panel.series.filter(one => one.isLine && one.points.length > 1 && plan.isDense));
  const dots = panel.series.flatMap(one => hasLine.has(one) ? [] : one.points.map(p => ({ ...p, at: [x(p.x), y(p.y)], ends: isNumber(p.low) && isNumber(p.high) ? [y(p.low), y(p.high)] : null, colour: one.colour, isFaint: Boolean(plan.smooth) && one.isLine && one.points.length > 1 })));
  const series = panel.series.map(one => one.points.map(p => ({ ...p, at: [x(p.x), y(p.y)] })));
  return { ticks, lines, dots, low, high, series, all: series.flat() };
}
// The point that a key leads to: along a series, or to the nearest one of the next series.
function pointAt(key, now, series) {
  const row = Math.max(0, series.findIndex(points => points.includes(now))), points = series[row], i = points.indexOf(now), jump = Math.ceil(points.length / 10);
  const to = { ArrowRight: i + 1, ArrowLeft: i - 1, PageDown: i + jump, PageUp: i - jump, Home: 0, End: points.length - 1 }[key];
  if (to !== undefined) return points[Math.max(0, Math.min(points.length - 1, to))];
  const next = series[row + { ArrowUp: -1, ArrowDown: 1 }[key]];
  return next ? next.reduce((best, p) => Math.abs(p.at[0] - now.at[0]) < Math.abs(best.at[0] - now.at[0]) ? p : best) : null;
}
const path = points => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");
const specks = points => points.map(({ at: [x, y] }) => `M${x.toFixed(2)} ${y.toFixed(2)}h0`).join("");

function panelNode(panel, plan) {
  const place = layout(panel, plan), { dots, lines } = place, colours = [...new Set(dots.map(dot => dot.colour))], readout = h("span.readout.muted.cut");
  const drawn = plan.hasLinks ? dots.map(({ at, colour, isFaint, href, label }) => h(`a.point.c${colour}${isFaint ? ".faint" : ""}`, { href, vars: { "--x": `${at[0]}%`, "--y": `${at[1]}%` }, title: label, "aria-label": label })) : [];
  const spot = h("i.spot", { hidden: true }), walked = drawn.length ? { role: "group" } : { role: "slider", tabindex: 0, "aria-valuemin": 1, "aria-valuemax": place.all.length, "aria-valuenow": 1, "aria-valuetext": "No point chosen: use the arrow keys" };
  const field = h("div.field", { ...walked, "aria-label": `${plain(panel.title ? `${panel.title}: ` : "")}${plan.y.name} over ${plan.x.name}, ${many(place.all.length, "point")}` }, s("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" },
    [4, 50, 96].map(y => s("line", { class: "rule", x1: 0, x2: 100, y1: y, y2: y })), lines.map(one => s("path", { class: `trace c${one.colour}${one.isFaint ? " faint" : ""}`, d: path(one.at) })),
    dots.map(dot => dot.ends ? s("line", { class: `whisker c${dot.colour}`, x1: dot.at[0], x2: dot.at[0], y1: dot.ends[0], y2: dot.ends[1] }) : null),
    drawn.length ? null : colours.map(colour => s("path", { class: `specks c${colour}${plan.smooth ? " faint" : ""}`, d: specks(dots.filter(dot => dot.colour === colour)) }))), drawn, spot);
  let chosen = null;
  const tell = point => {
    readout.textContent = point?.label ?? "";
    spot.hidden = !point || drawn.length > 0;
    if (point) { spot.style.setProperty("--x", `${point.at[0]}%`); spot.style.setProperty("--y", `${point.at[1]}%`); }
  };
  const nearest = event => {
    const box = field.getBoundingClientRect(), gap = ({ at }) => Math.hypot(event.clientX - box.left - at[0] / 100 * box.width, event.clientY - box.top - at[1] / 100 * box.height);
    let best = null, least = REACH;
    for (const point of place.all) { const away = gap(point); if (away < least) [best, least] = [point, away]; }
    return best;
  };
  field.addEventListener("pointermove", event => { const found = nearest(event); tell(found); field.classList.toggle("near", Boolean(found?.href)); });
  field.addEventListener("pointerleave", () => tell(chosen));
  if (!drawn.length) field.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isMove = /^(Arrow|Page(Up|Down)$|Home$|End$)/.test(event.key), isOpened = event.key === "Enter" && chosen?.href;
    if (!isMove && !isOpened) return;
    event.preventDefault();
    if (isOpened) { location.hash = chosen.href; return; }
    chosen = (chosen ? pointAt(event.key, chosen, place.series) : place.all[0]) ?? chosen;
    field.setAttribute("aria-valuenow", place.all.indexOf(chosen) + 1);
    field.setAttribute("aria-valuetext", chosen.label);
    tell(chosen);
  });
  field.addEventListener("click", event => { const found = event.target.closest("a") ? null : nearest(event); if (found?.href) location.hash = found.href; });
  return h("figure.panel", {}, h("figcaption", {}, h("span.strong.cut", { dir: "auto" }, plain(panel.title)), readout),
    h("div.plot", {}, h("span.high.muted", {}, plan.y.text(place.high)), h("span.low.muted", {}, plan.y.text(place.low)), field,
      h("div.ticks.muted", {}, place.ticks.map(({ at, text, title }) => h("span.cut", { vars: { "--x": `${at}%`, "--share": `${panel.names ? 96 / panel.names.length : 30}%` }, title: title ?? text }, text))), panel.names ? null : h("div.axis.muted", {}, plain(plan.x.name.toLowerCase()))));
}
const seriesOfPlan = plan => [...new Map(plan.panels.flatMap(panel => panel.series).map(one => [one.name, one.colour]))];
export function plotNode(plan) {
  const names = seriesOfPlan(plan), more = names.length - MOST_NAMES;
  if (!plan.panels.length) return h("p.muted", {}, plan.empty);
  return h("div.panels", {}, plan.panels.map(panel => panelNode(panel, plan)),
    names.length > 1 ? h("ul.legend.across", {}, names.slice(0, MOST_NAMES).map(([name, colour]) => h("li", {}, h(`i.s${colour}`), plain(name))), more > 0 ? h("li", {}, `and ${num(more, 0)} more`) : null) : null);
}
export const smoothingText = plan => plan.smooth ? `Exponential moving average, factor ${plan.smooth.toFixed(2)}, corrected at the start; the raw line is faint.` : "";

// Rows of the chart's table, with the smoothed value beside each.
export function plotTable(plan) {
  const hasEnds = plan.panels.some(panel => panel.series.some(one => one.points.some(p => isNumber(p.low))));
  const head = ["environment", "series", "point", plan.x.name, plan.y.name, ...hasEnds ? ["low", "high"] : [], ...plan.smooth ? [`smoothed ${plan.smooth}`] : []];
  return [head, ...plan.panels.flatMap(panel => panel.series.flatMap(one => {
    const soft = plan.smooth && one.isLine ? smoothed(one.points.map(p => p.y), plan.smooth) : [];
    return one.points.map((p, i) => [panel.title, one.name, p.of, panel.names ? panel.names[p.x] : p.x, p.y, ...hasEnds ? [p.low ?? "", p.high ?? ""] : [], ...plan.smooth ? [soft[i] ?? ""] : []]);
  }))];
}
// The chart drawn anew at a size of its own; `node` has the page's colours and font.
export function plotCanvas(plan, node) {
  const names = seriesOfPlan(plan).slice(0, MOST_NAMES), height = HEIGHT * plan.panels.length + FOOT, canvas = h("canvas", { width: 2 * WIDTH, height: 2 * height }), pen = canvas.getContext("2d");
  const probe = h("i"), colourOf = name => { probe.className = name; return getComputedStyle(probe).color; };
  node.append(probe);
  const { fontFamily, color } = getComputedStyle(node), dim = colourOf("muted"), ground = getComputedStyle(node.closest(".card") ?? document.body).backgroundColor, traces = [0, 1, 2, 3, 4, 5].map(i => colourOf(`c${i}`));
  probe.remove();
  const write = (text, x, y, { align = "left", fill = dim, weight = 400, size = 13, most = WIDTH - LEFT } = {}) => Object.assign(pen, { font: `${weight} ${size}px ${fontFamily}`, fillStyle: fill, textAlign: align }).fillText(text, x, y, most);
  const stroke = (points, colour, width, alpha) => { Object.assign(pen, { strokeStyle: colour, lineWidth: width, globalAlpha: alpha }).beginPath(); points.forEach(([x, y], i) => i ? pen.lineTo(x, y) : pen.moveTo(x, y)); pen.stroke(); pen.globalAlpha = 1; };
  pen.scale(2, 2);
  Object.assign(pen, { fillStyle: ground, lineJoin: "round" }).fillRect(0, 0, WIDTH, height);
  plan.panels.forEach((panel, i) => {
    const top = HEIGHT * i + TOP, wide = WIDTH - LEFT - 24, tall = HEIGHT - TOP - 60, place = layout(panel, plan), at = ([x, y]) => [LEFT + x / 100 * wide, top + y / 100 * tall];
    write(`${plan.y.name} over ${plan.x.name}`, LEFT, top - 34, { fill: color, weight: 600, size: 16 });
    write(plain(panel.title), LEFT, top - 14);
    [4, 50, 96].forEach(y => stroke([at([0, y]), at([100, y])], dim, .5, .5));
    [[4, place.high], [96, place.low]].forEach(([y, value]) => write(plan.y.text(value), LEFT - 8, at([0, y])[1] + 4, { align: "right", most: LEFT - 12 }));
    place.ticks.forEach(tick => write(tick.text, at([tick.at, 0])[0], top + tall + 18, { align: "center", most: wide / place.ticks.length }));
    if (!panel.names) write(plan.x.name, LEFT + wide / 2, top + tall + 38, { align: "center" });
    place.lines.forEach(one => stroke(one.at.map(at), traces[one.colour], 1.5, one.isFaint ? .25 : 1));
    place.dots.forEach(dot => {
      if (dot.ends) stroke(dot.ends.map(y => at([dot.at[0], y])), traces[dot.colour], 5, .4);
      Object.assign(pen, { fillStyle: traces[dot.colour], globalAlpha: dot.isFaint ? .35 : 1 }).beginPath();
      pen.arc(...at(dot.at), plan.hasLinks ? 5 : 2, 0, 7);
      pen.fill();
      pen.globalAlpha = 1;
    });
  });
  let x = LEFT;
  for (const [name, colour] of names.length > 1 ? names : []) {
    pen.fillStyle = traces[colour];
    pen.fillRect(x, height - FOOT + 8, 10, 10);
    write(plain(name), x + 16, height - FOOT + 18, { most: 180 });
    x += 34 + Math.min(180, pen.measureText(plain(name)).width);
    if (x > WIDTH - 200) break;
  }
  write(smoothingText(plan), LEFT, height - 16);
  return canvas;
}
