// The home of `envkit ui`: the table of runs, several compared, what changed between two, or an evaluation.
import { served } from "./served.js";
import { start } from "./app.js";
import { diffPage, pairsOf } from "./diff.js";
import { runsPage } from "./runs.js";
import { comparePage } from "./compare.js";
import { evaluationPage } from "./evaluation.js";

async function overview(context, query) {
  if (query.first && query.second) {
    const compared = () => pairsOf(context, query.first, query.second), found = await compared();
    if (found) return diffPage(context, found, query, compared);
  }
  const found = await context.source.runs(), one = found.documents.find(({ kind, name }) => kind === "evaluation" && name === query.evaluation);
  if (one) return evaluationPage(context, one);
  return query.compare ? comparePage(context, found, query) : runsPage(context, found, query);
}
// The key came in the address; the cookie has it now.
if (location.search) history.replaceState(null, "", `/${location.hash}`);
start(served(), overview);
