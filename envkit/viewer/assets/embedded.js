// The source of the single file: its script blocks, decoded when they are asked for.
//
// A source tells the pages about runs. Every home has one with these methods:
//   runs()                 -> [{name, figures}]
//   run(name)              -> {name, figures, columns, rows, notes, live}, null if there is none
//   episode(name, number)  -> the data of an episode, with `vocabulary` (id -> text, or null)
//   image(sha256, name)    -> its address, "" if the source does not have it
//   search(name, query)    -> has(number), get(number) of {where, before, hit, after}; as a Map has
//   watch(name, callback)  -> a function that stops it; the callback gets a new run()
//   version()              -> a number that changes with any run
//   isScanned()            -> whether all runs are known
//   diff()                 -> the comparison of two runs, or null
//   ready                  -> a promise: from then on image() knows every image
// All methods but image(), watch() and version() return promises.

const SHA256 = /^[0-9a-f]{64}$/;
const BEFORE = 24, AFTER = 40, KEPT = 400;

const whole = () => document.readyState !== "loading" ? Promise.resolve()
  : new Promise(done => addEventListener("DOMContentLoaded", done, { once: true }));

async function block(id) {  // the script may run before the file is read to its end
  if (!document.getElementById(id)?.nextSibling) await whole();
  return document.getElementById(id)?.textContent ?? null;
}
const bytesOf = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
async function unpack(id) {
  const text = await block(id);
  if (text === null) return null;
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}
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
  const texts = new Map(), addresses = new Map();
  let vocabulary;
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
      const found = await unpack(`episode-${numberOf(name)}-${number}`);
      if (!found) return null;
      vocabulary ??= await unpack("vocabulary");
      return { ...found, vocabulary };
    },
    image(sha256) {
      if (!SHA256.test(sha256)) return "";
      if (addresses.has(sha256)) {
        const known = addresses.get(sha256);
        addresses.delete(sha256);
        addresses.set(sha256, known);
        return known;
      }
      const text = document.getElementById(`image-${sha256}`)?.textContent;
      if (!text) return "";
      const url = URL.createObjectURL(new Blob([bytesOf(text)], { type: "image/png" }));
      addresses.set(sha256, url);
      if (addresses.size > KEPT) {  // the one that was not used for the longest time
        const [oldest, old] = addresses.entries().next().value;
        URL.revokeObjectURL(old);
        addresses.delete(oldest);
      }
      return url;
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
  };
}
