// The source of `envkit ui`: the runs of a folder, asked of the server. See embedded.js for what a
// source is. A run that is known already gets only the rows that are new.
//   runs()                 -> {folder, runs, documents, note, is_scanned, version}
//   diff(first, second)    -> the comparison of two runs by name
//   watch(null, callback, version) -> the callback gets a new runs() whenever there is another version

import { many, plain } from "./dom.js";

const HASH = /^[0-9a-f]{64}$/, PAUSE_MS = 1000, RETRY_MS = 3000, HOLD_MS = 10000, SILENT = "the server does not answer; is envkit ui still running?";

async function ask(path, query = {}, signal = null, kind = "json") {
  let answer;
  try {
    answer = await fetch(`/api/${path}?${new URLSearchParams(query)}`, { cache: "no-store", signal });
  } catch { throw new Error(SILENT); }
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer[kind]();
}
const later = ms => new Promise(done => setTimeout(done, ms));
const seen = () => document.hidden ? new Promise(done => document.addEventListener("visibilitychange", done, { once: true })) : null;

// A press whose target is replaced before its release is not a click, so news waits for the release,
// though not for a long one.
let isPressed = false;
const release = () => setTimeout(() => { isPressed = false; dispatchEvent(new Event("released")); });  // after the click
addEventListener("pointerdown", () => { isPressed = true; }, true);
for (const end of ["pointerup", "pointercancel", "contextmenu"]) addEventListener(end, release, true);
addEventListener("blur", release);  // the window's own: a press also takes the focus from an element
const released = () => isPressed ? Promise.race([later(HOLD_MS), new Promise(done => addEventListener("released", done, { once: true }))]) : null;

export function served() {
  const known = new Map(), asking = new Map(), watchers = new Set(), missing = new Set();
  let isPolling = false, latest = 0, isStale = true, waiting = null;
  async function load(name) {
    const old = known.get(name), found = await ask("run", old ? { name, since: old.rows.length, epoch: old.epoch } : { name });
    if (!found) { known.delete(name); return null; }
    if (old?.epoch === found.epoch && old.revision === found.revision) return old;
    const rows = found.from ? [...old.rows.slice(0, found.from), ...found.rows] : found.rows;
    known.set(name, { ...found, rows });
    return known.get(name);
  }
  // One question about a run at a time: an older answer must not replace a newer one.
  function run(name) {
    const answer = Promise.resolve(asking.get(name)).catch(() => null).then(() => load(name));
    asking.set(name, answer);
    return answer;
  }
  async function runs() {
    const found = await ask("runs");
    latest = found.version;
    return found;
  }
  async function tell(own, state) {
    const { name, callback } = own, old = known.get(name);
    let found;
    if (name === null && own.version !== state.version) {
      found = await runs();
      own.version = found.version;
    } else if (old && state.revisions[name] !== undefined && state.revisions[name] !== old.revision) found = await run(name);
    else return;
    await released();
    if (watchers.has(own)) callback(found);
  }
  // One request waits for everything: a browser has few connections to one server.
  async function poll() {
    let version = 0;
    isPolling = true;
    while (watchers.size) {
      try {
        await seen();
        waiting = new AbortController();
        const known = isStale ? 0 : version;  // 0 is answered at once
        isStale = false;
        const state = await ask("changes", { version: known }, waiting.signal);
        latest = version = state.version;
        for (const own of [...watchers]) if (watchers.has(own)) await tell(own, state);
        await later(PAUSE_MS);
      } catch {
        if (!isStale) await later(RETRY_MS);
        isStale = true;
      }
    }
    isPolling = false;
  }
  return {
    isServed: true,
    ready: Promise.resolve(),
    version: () => latest,
    isScanned: async () => (await runs()).is_scanned,
    runs,
    run,
    async episode(name, number) {
      const found = await ask("episode", { name, number });
      for (const sha256 of found?.pictures ?? []) if (found.sizes[sha256]) missing.delete(sha256); else missing.add(sha256);
      return found;
    },
    async record(name, number) {
      const text = await ask("record", { name, number }, null, "text");
      if (text === null) throw new Error("the run has no such episode any more");
      return text;
    },
    recordNote: number => `Line ${number} of the run's trajectories.jsonl.`,
    image: (sha256, name) => HASH.test(sha256) && !missing.has(sha256) ? `/image/${sha256}?${new URLSearchParams({ name })}` : "",
    metrics: () => ask("metrics"),
    // The notes after a change, null without the run; `isOld` if somebody else changed the note meanwhile.
    async annotate(name, before, after) {
      const answer = await fetch(`/api/notes?${new URLSearchParams({ name })}`, { method: "PUT", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ before, after }) }).catch(() => null);
      if (!answer) throw new Error(SILENT);
      if (answer.status === 404) return null;
      if (!answer.ok && answer.status !== 409) throw new Error((await answer.text()).trim());
      return { ...await answer.json(), isOld: answer.status === 409 };
    },
    search: async (name, q) => new Map(await ask("search", { name, q })),
    watch(name, callback, version) {
      const own = { name, callback, version };
      watchers.add(own);
      isStale = true;  // what changed between the answer that the page shows and now
      waiting?.abort();
      if (!isPolling) poll();
      return () => watchers.delete(own);
    },
    async diff(first, second) {
      const found = await ask("diff", { first, second });
      if (found?.reading) throw new Error(`${found.reading.map(plain).join(" and ")} must be read first, ${many(found.episodes, "episode")} so far`);
      return found;
    },
  };
}
