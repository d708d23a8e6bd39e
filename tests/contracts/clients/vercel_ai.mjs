// Play Vercel's default loop with tools: `node vercel_ai.mjs DIALECT generate|stream`.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey } = process.env;
const models = {
  "chat completions": () => createOpenAI({ baseURL, apiKey }).chat("m"),
  compatible: () => createOpenAICompatible({ name: "envkit", baseURL, apiKey })("m"),
  Responses: () => createOpenAI({ baseURL, apiKey })("m"), // its default: refers to items by id
  messages: () => createAnthropic({ baseURL, apiKey })("m"),
};
const add = tool({
  description: "Add two numbers.",
  inputSchema: z.object({ a: z.number(), b: z.number() }),
  execute: async ({ a, b }) => a + b,
});
const [dialect, mode] = process.argv.slice(2);
const asked = {
  model: models[dialect](),
  system: "Be exact.",
  tools: { add },
  stopWhen: stepCountIs(5),
  messages: [{ role: "user", content: "What is 1 + 2?" }],
};

async function play() {
  if (mode === "generate") return await generateText(asked);
  const result = streamText({ ...asked, onError: ({ error }) => { throw error; } });
  await result.consumeStream();
  return { text: await result.text, responseMessages: await result.responseMessages };
}

const first = await play();
asked.messages.push(...first.responseMessages, { role: "user", content: "And now?" });
const second = await play();
console.log(JSON.stringify([first.text, second.text]));
