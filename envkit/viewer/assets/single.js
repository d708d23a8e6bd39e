// The home of the single file: one run, or two and what changed between them.
import { embedded } from "./embedded.js";
import { start } from "./app.js";
import { diffPage, pairsOf } from "./diff.js";

async function compared(context, query) {
  const found = await pairsOf(context);
  return found && diffPage(context, found, query);
}
start(embedded(), compared);
