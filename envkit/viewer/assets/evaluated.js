// The home of the single file of an evaluation.
import { embedded } from "./embedded.js";
import { start } from "./app.js";
import { evaluationPage } from "./evaluation.js";

start(embedded(), async context => evaluationPage(context, await context.source.evaluation()));
