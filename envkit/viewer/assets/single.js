// The home of the single file: one run, or two and what changed between them.
import { embedded } from "./embedded.js";
import { start } from "./app.js";
import { diffPage } from "./diff.js";

async function compared(context, query) {
  const diff = await context.source.diff();
  return diff && diffPage(context, diff, await Promise.all(diff.names.map(context.runOf)), query);
}
start(embedded(), compared);
