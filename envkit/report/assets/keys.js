"use strict";
// Keys, for every page. A key with Ctrl, Alt or Meta belongs to the browser.

function isWriting(target) {
  return target instanceof HTMLElement && target.matches("input[type=search], textarea, select");
}

/**
 * @param actions Key -> what to do; false when the key does nothing here.
 */
function listenForKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
    if (isWriting(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const action = actions[event.key];
    if (action !== undefined && action() !== false) event.preventDefault();
  });
  for (const node of document.querySelectorAll("[data-shows]")) {
    node.addEventListener("click", () => byId(node.dataset.shows).showModal());
  }
}

function showKeys() {
  byId("keys").showModal();
}

function focusFilter() {
  const field = byId("filter").elements.text;
  field.focus();
  field.select();
}
