// The source of `envkit ui`: the runs of a folder, asked of the server. See embedded.js for what a
// source is. A run that is known already gets only the rows that are new.
//   runs()                 -> {folder, runs, documents, note, is_scanned}
//   diff(first, second)    -> the comparison of two runs by name
//   watch(null, callback)  -> the callback gets a new runs()

const HASH = /^[0-9a-f]{64}$/, PAUSE_MS = 1000, RETRY_MS = 3000;

async function ask(path, query = {}) {
  let answer;
  try {
    answer = await fetch(`/api/${path}?${new URLSearchParams(query)}`, { cache: "no-store" });
  } catch { throw new Error("the server does not answer; is envkit ui still running?"); }
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}
const later = ms => new Promise(done => setTimeout(done, ms));
const seen = () => document.hidden ? new Promise(done => document.addEventListener("visibilitychange", done, { once: true })) : null;

export function served() {
  const known = new Map(), watchers = new Set(), missing = new Set();
  let isPolling = false;
  async function run(name) {
    const old = known.get(name), found = await ask("run", old ? { name, since: old.rows.length, epoch: old.epoch } : { name });
    if (!found) { known.delete(name); return null; }
    const rows = found.from ? [...old.rows.slice(0, found.from), ...found.rows] : found.rows;
    known.set(name, { ...found, rows });
    return known.get(name);
  }
  // One request waits for everything: a browser has few connections to one server.
  async function poll() {
    let version = 0;
    isPolling = true;
    while (watchers.size) {
      try {
        await seen();
        const state = await ask("changes", { version });
        if (state.version !== version) for (const { name, callback } of [...watchers]) {
          const old = known.get(name);
          if (name === null) callback(await ask("runs"));
          else if (old && state.revisions[name] !== undefined && state.revisions[name] !== old.revision) callback(await run(name));
        }
        version = state.version;
        await later(PAUSE_MS);
      } catch { await later(RETRY_MS); }
    }
    isPolling = false;
  }
  return {
    isServed: true,
    ready: Promise.resolve(),
    runs: () => ask("runs"),
    run,
    async episode(name, number) {
      const found = await ask("episode", { name, number });
      for (const sequence of found?.sequences ?? []) for (const sha256 of sequence.pictures) if (found.sizes[sha256]) missing.delete(sha256); else missing.add(sha256);
      return found;
    },
    image: (sha256, name) => HASH.test(sha256) && !missing.has(sha256) ? `/image/${sha256}?${new URLSearchParams({ name })}` : "",
    search: async (name, q) => new Map(await ask("search", { name, q })),
    watch(name, callback) {
      const own = { name, callback };
      watchers.add(own);
      if (!isPolling) poll();
      return () => watchers.delete(own);
    },
    diff: (first, second) => ask("diff", { first, second }),
  };
}
