// Notes and tags of runs: chips, and the dialog that changes them.
import { h, s, plain } from "./dom.js";

const MOST_WORDS = 4000, MOST_TAG = 40;
export const pencil = () => s("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, s("path", { d: "M2.500 13.500 3.200 10.500 11.200 2.500 13.500 4.800 5.500 12.800zM9.700 4 12 6.300" }));
export const tagChips = run => run.tags.length ? h("span.runtags", {}, run.tags.map(tag => h("span.runtag", { dir: "auto" }, plain(tag)))) : null;
const tagList = text => [...new Set(text.split(",").map(tag => tag.trim()).filter(Boolean))];

// `changed(run, notes)` is called once the notes of a run are written.
export function noteDialog(source, changed) {
  const title = h("h2", { id: "note-title", dir: "auto" }), told = h("div", { role: "alert" });
  const note = h("textarea", { rows: 6, maxlength: MOST_WORDS, id: "note-text", dir: "auto" }), tags = h("input", { type: "text", id: "note-tags", autocomplete: "off", dir: "auto", "aria-describedby": "note-how" });
  let run = null, before = null, back = null;
  async function write(event) {
    event.preventDefault();
    const of = run, wanted = { note: note.value, tags: tagList(tags.value) };
    if (wanted.tags.some(tag => tag.length > MOST_TAG)) return complain(`A tag has at most ${MOST_TAG} characters.`);
    try {
      const made = await source.annotate(of.name, before, wanted);
      if (!made) return complain("This run is no longer in the folder.");
      if (made.isOld) {  // tags are merged; of two notes a person chooses
        before = { ...before, note: made.note };
        return complain("Somebody else changed this note meanwhile. Save again to replace theirs:", made.note);
      }
      changed(of, { note: made.note, tags: made.tags });
      box.close();
    } catch (error) { complain(error.message); }
  }
  const complain = (text, theirs) => told.replaceChildren(h("p.notice", {}, plain(text), theirs === undefined ? null : h("pre", { tabindex: 0 }, plain(theirs))));
  const box = h("dialog.notebox", { "aria-labelledby": "note-title", onclose: () => back?.() }, h("form", { onsubmit: write }, title, told,
    h("label", { for: "note-text" }, "Note"), note, h("label", { for: "note-tags" }, "Tags"), tags, h("p.muted", { id: "note-how" }, "Separate tags by commas."),
    h("div.buttons", {}, h("button.button", { type: "button", onclick: () => box.close() }, "Cancel"), h("button.button.main", {}, "Save"))));
  return { node: box, open(chosen, focus) {
    [run, back, before] = [chosen, focus, { note: chosen.note, tags: chosen.tags }];
    title.textContent = `Note on ${plain(run.name)}`;
    note.value = run.note;
    tags.value = run.tags.join(", ");
    told.replaceChildren();
    box.showModal();
    note.focus();
  } };
}
