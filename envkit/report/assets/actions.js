"use strict";
// What can be done with an episode: copy it, save it as a picture.

/** Copies a text, or shows it selected where the browser lets no page write to the clipboard. */
async function copyText(text, said) {
  try {
    await navigator.clipboard.writeText(text);
    toast(said);
  } catch {
    const dialog = byId("copy");
    const area = dialog.querySelector("textarea");
    area.value = text;
    dialog.showModal();
    area.focus();
    area.select();
  }
}

async function savePicture(episode, name) {
  const canvas = await episodePicture(episode);
  const data = await new Promise((done) => canvas.toBlob(done, "image/png"));
  if (data === null) {
    toast("this browser could not draw the picture");
    return;
  }
  const href = URL.createObjectURL(data);
  el("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
  toast(`saved ${name}`);
}
