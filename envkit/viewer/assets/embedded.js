// The source of the single file: its script blocks, decoded when they are asked for.
//
// A source tells the pages about runs. Every home has one with these methods:
//   runs()                 -> [{name, figures}]
//   run(name)              -> {name, figures, columns, rows, notes, live}, null if there is none
//   episode(name, number)  -> the data of an episode, with `vocabulary` (id -> text, or null) and
//                             `vocabulary_note` (why texts are missing, or "")
//   record(name, number)   -> its record as JSON text; recordNote(number) says where that is from
//   image(sha256, name)    -> its address, "" if the source does not have it
//   search(name, query)    -> has(number), get(number) of {where, before, hit, after}; as a Map has
//   watch(name, callback)  -> a function that stops it; the callback gets a new run()
//   version()              -> a number that changes with any run
//   isScanned()            -> whether all runs are known
//   diff()                 -> the comparison of two runs, or null
//   evaluation()           -> the evaluation of the runs, or null
//   ready                  -> a promise: from then on image() knows every image
// All methods but image(), recordNote(), watch() and version() return promises.

const SHA256 = /^[0-9a-f]{64}$/;
const BEFORE = 24, AFTER = 40;

const whole = () => document.readyState !== "loading" ? Promise.resolve()
  : new Promise(done => addEventListener("DOMContentLoaded", done, { once: true }));

async function block(id) {  // the script may run before the file is read to its end
  if (!document.getElementById(id)?.nextSibling) await whole();
  return document.getElementById(id)?.textContent ?? null;
}
function bytesOf(text) {  // a loop, because a list decodes many images while it is scrolled
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i += 1) bytes[i] = raw.charCodeAt(i);
  return bytes;
}
async function unpacked(id) {
  const text = await block(id);
  if (text === null) return null;
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream);
}
const unpack = async id => (await unpacked(id))?.json() ?? null;
// The first place of a text in the pieces of an episode.
export function findIn(pieces, query) {
  for (const [where, text] of pieces) {
    const lower = text.toLowerCase(), at = lower.indexOf(query);
    if (at < 0) continue;
    const shown = lower.length === text.length ? text : lower, end = at + query.length, from = Math.max(0, at - BEFORE);
    return { where, before: (from ? "…" : "") + shown.slice(from, at), hit: shown.slice(at, end), after: shown.slice(end, end + AFTER) };
  }
  return null;
}
export function embedded() {
  const index = JSON.parse(document.getElementById("index").textContent);
  const numberOf = name => index.runs.findIndex(run => run.name === name);
  const texts = new Map(), vocabularies = new Map(), addresses = new Map();
  async function searched(at) {
    if (!texts.has(at)) texts.set(at, unpack(`search-${at}`).then(found => found.map(([number, pieces]) =>
      ({ number, pieces, text: pieces.map(piece => piece[1]).join("\n").toLowerCase() }))));
    return texts.get(at);
  }
  return {
    ready: whole(),
    runs: async () => index.runs.map(({ name, figures }) => ({ name, figures })),
    run: async name => {
      const run = index.runs[numberOf(name)];
      if (!run) return null;
      whole().then(() => setTimeout(() => searched(numberOf(name)), 200));  // ready before the first search
      return { ...run, notes: [...index.notes, ...run.notes] };
    },
    async episode(name, number) {
      await whole();  // its images come last
      const at = numberOf(name), found = await unpack(`episode-${at}-${number}`);
      if (!found) return null;
      if (!vocabularies.has(at)) vocabularies.set(at, unpack(`vocabulary-${at}`));
      return { ...found, ...await vocabularies.get(at) };
    },
    record: async (name, number) => (await unpacked(`episode-${numberOf(name)}-${number}`)).text(),
    recordNote: number => `What this file holds of episode ${number}. Log-probabilities are rounded; the run's trajectories.jsonl has the whole record.`,
    image(sha256) {
      if (!SHA256.test(sha256)) return "";
      const text = addresses.has(sha256) ? "" : document.getElementById(`image-${sha256}`)?.textContent;
      // No address is revoked: an image that is scrolled to later still needs it. A file holds 48 MB at most.
      if (text) addresses.set(sha256, URL.createObjectURL(new Blob([bytesOf(text)], { type: "image/png" })));
      return addresses.get(sha256) ?? "";
    },
    async search(name, query) {
      const found = new Map(), wanted = query.trim().toLowerCase();
      for (const { number, pieces, text } of await searched(numberOf(name))) if (text.includes(wanted)) found.set(number, pieces);
      const shown = { has: number => found.has(number), get: number => found.has(number) ? findIn(found.get(number), wanted) : undefined };
      return shown;  // where it is found costs more than that it is, and few hits are drawn
    },
    watch: () => () => {},
    version: () => 0,
    isScanned: async () => true,
    diff: async () => index.diff,
    evaluation: async () => index.evaluation,
  };
}
