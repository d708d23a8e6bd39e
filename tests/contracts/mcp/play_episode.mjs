// Plays two turns of a served environment with the TypeScript SDK, over one session.
import { pathToFileURL } from "node:url";

const [folder, command, ...args] = process.argv.slice(2);
const at = (path) => pathToFileURL(`${folder}/@modelcontextprotocol/sdk/dist/esm/${path}`).href;
const { Client } = await import(at("client/index.js"));
const { StdioClientTransport } = await import(at("client/stdio.js"));

const client = new Client({ name: "episode", version: "1" });
await client.connect(new StdioClientTransport({ command, args, env: process.env, stderr: "inherit" }));
const listed = (await client.listTools()).tools.map((tool) => tool.name);
const opening = await client.callTool({ name: "reset", arguments: { seed: 7 } });
const { episode } = opening.structuredContent;
const steps = [];
for (const reply of ["0", "0"]) {
  steps.push(await client.callTool({ name: "step", arguments: { episode, reply } }));
}
await client.close();
console.log(JSON.stringify({ listed, opening, steps }));
