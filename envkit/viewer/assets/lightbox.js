// The image as large as the window, then 1:1 and 2:1 by a click, with the actions below it; arrow
// keys step through the film.
import { h } from "./dom.js";

const LEVELS = ["fit", "one", "two"], NAMES = { fit: "fit", one: "1:1", two: "2:1" };
const box = () => document.getElementById("light");
export const isEnlarged = () => box().open;

export function enlarge(figure, title, words) {
  if (!figure?.querySelector?.(".frame")) return;
  const light = box(), frame = figure.querySelector(".frame");
  if (!light.open) light.dataset.zoom = "fit";
  const level = h("span.muted", {}, NAMES[light.dataset.zoom]);
  const next = () => {
    light.dataset.zoom = LEVELS[(LEVELS.indexOf(light.dataset.zoom) + 1) % LEVELS.length];
    level.textContent = NAMES[light.dataset.zoom];
  };
  frame.addEventListener("click", event => { event.stopImmediatePropagation(); next(); }, true);
  light.replaceChildren(
    h("div.bar", {}, h("b", {}, title), h("span.grow"), h("button.button", { type: "button", onclick: next, "aria-label": "Change the size" }, level), h("button.button", { type: "button", onclick: () => light.close() }, "Close")),
    h("div.stage", { onclick: event => event.target.className === "stage" && light.close() }, figure), h("div.foot", { tabindex: 0 }, words));
  if (!light.open) light.showModal();
}
export const shrink = () => { if (box().open) box().close(); };
