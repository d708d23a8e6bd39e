// Certificates of environments and evaluations with their intervals, as the folder holds them.
import { h, num, percent, many, plain, isNumber } from "./dom.js";
import { link } from "./address.js";
import { environmentsIn, linesTable, runLinks } from "./evaluation.js";

const GOOD_VERDICTS = ["pass"], BAD_VERDICTS = ["fail", "not run"];
const tone = verdict => GOOD_VERDICTS.includes(verdict) ? ".good" : BAD_VERDICTS.includes(verdict) ? ".bad" : "";

function certificate(one) {
  const failed = one.lines.filter(line => BAD_VERDICTS.includes(line.verdict)).length;
  const told = !one.is_complete ? "interrupted" : one.passed ? "passed" : `${many(failed, "line")} failed or not run`;
  return h("details.doc", {}, h("summary", {}, h("b", { dir: "auto" }, plain(one.target)), h(`span.flip${one.passed ? ".good" : ".bad"}`, {}, told),
    h("span.muted.cut", {}, `${isNumber(one.episodes) ? `${many(one.episodes, "episode")} per policy · ` : ""}${plain(one.name)}`)),
  h("div.sideways", { tabindex: 0 }, h("table.mini.left", {}, h("thead", {}, h("tr", {}, ["line", "verdict", "value", "what was measured"].map(x => h("th", { scope: "col" }, x)))),
    h("tbody", {}, one.lines.map(line => h("tr", {}, h("th", { scope: "row" }, plain(line.name)), h("td", {}, h(`span.flip${tone(line.verdict)}`, {}, plain(line.verdict))), h("td", {}, num(line.value, 4)),
      h("td.words", { dir: "auto" }, plain(line.detail), line.evidence.length ? h("ul", {}, line.evidence.map(text => h("li.muted", {}, plain(text)))) : null)))))));
}
function evaluation(one) {
  const whole = one.lines.find(line => line.tag === null) ?? one.lines[0], success = whole?.success;
  const short = isNumber(success?.mean) ? h("span", {}, `${percent(success.mean)} success`, isNumber(success.interval.low) ? h("span.muted", {}, ` ${percent(success.interval.low)} to ${percent(success.interval.high)}, ${many(whole.tasks, "task")}`) : null)
    : isNumber(whole?.reward.mean) ? h("span", {}, `mean reward ${num(whole.reward.mean)}`, h("span.muted", {}, " no reward threshold is declared")) : null;
  return h("details.doc", {}, h("summary", {}, h("b", { dir: "auto" }, plain(environmentsIn(one) || "no figures yet")), short, one.is_complete ? null : h("span.flip", {}, "not finished"), h("span.muted.cut", {}, plain(one.name))),
    h("p.muted", {}, "Means over tasks with 95% intervals. ", one.variants.length ? [h("a", { href: link([], { evaluation: one.name }) }, "Variants compared"), ". "] : null, runLinks(one)), linesTable(one));
}
export function documents(list) {
  const part = (name, kind, build) => {
    const own = list.filter(one => one.kind === kind);
    return own.length ? h("section.card.docs", {}, h("h2", {}, name), own.map(build)) : null;
  };
  return [part("Evaluations", "evaluation", evaluation), part("Certificates of environments", "certificate", certificate)].filter(Boolean);
}
