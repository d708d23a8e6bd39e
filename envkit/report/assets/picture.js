"use strict";
// An episode as a picture: drawn on a canvas, so that nothing of it can run and nothing is loaded.

const SHEET = { width: 900, margin: 36, pad: 16, gap: 14, line: 21, scale: 2, height: 7600, image: 420, lines: 60 };

function ink() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  return Object.fromEntries(["page", "card", "line", "text", "muted", "accent", "good", "bad", "warn", "env"]
    .map((name) => [name, color(name)]));
}

const font = (size, weight) => `${weight || 400} ${size}px system-ui, "DejaVu Sans", sans-serif`;

/** Returns lines that fit the width; a word that is wider is cut. */
function wrapText(context, text, width) {
  const lines = [];
  for (const paragraph of text.split("\n")) {
    let line = "";
    for (const word of paragraph.split(/(?<=\s)/u)) {
      if (context.measureText(line + word).width <= width) { line += word; continue; }
      if (line) lines.push(line);
      line = "";
      for (const character of word) {
        if (context.measureText(line + character).width > width) { lines.push(line); line = ""; }
        line += character;
      }
    }
    lines.push(line);
    if (lines.length > SHEET.lines) break;
  }
  return lines.length <= SHEET.lines ? lines : [...lines.slice(0, SHEET.lines), "…"];
}

async function loadedPicture(sha256) {
  const stored = byId(`image-${sha256}`);
  if (stored === null) return null;
  const image = new Image();
  image.src = stored.textContent;
  try {
    await image.decode();
  } catch {
    return null;
  }
  return image;
}

/** Returns what one message shows: lines and pictures with their heights. */
async function layMessage(context, entry, turn, width) {
  const items = [];
  for (const part of entry.parts) {
    if ("text" in part) {
      context.font = font(15);
      for (const text of wrapText(context, part.text, width)) items.push({ text, height: SHEET.line });
      continue;
    }
    const image = await loadedPicture(part.image);
    if (image === null) { items.push({ text: "(a picture that is not in this file)", height: SHEET.line, color: "muted" }); continue; }
    const factor = Math.min(1, SHEET.image / image.naturalWidth, SHEET.image / image.naturalHeight);
    const grown = image.naturalWidth < 64 ? 96 / image.naturalWidth : factor;
    items.push({ image, width: image.naturalWidth * grown, height: image.naturalHeight * grown + 10 });
  }
  const notes = turn === null ? [] : [
    ...(turn.tool_call === null ? [] : [["muted", `call ${JSON.stringify(turn.tool_call)}`]]),
    ...troubles(turn).map(([kind, name, cause]) => [kind, `${name}: ${cause}`])];
  context.font = font(13);
  for (const [color, said] of notes) {
    for (const text of wrapText(context, said, width)) items.push({ text, height: 19, color, size: 13 });
  }
  const title = turn === null ? entry.role
    : `turn ${turn.turn}  ${entry.role}, ${plural(turn.response_tokens, "token")}, reward ${number(turn.reward)}`;
  const height = items.reduce((sum, item) => sum + item.height, 0) + 2 * SHEET.pad + 24;
  return { title, items, height, role: entry.role };
}

function drawLine(context, item, x, y, width, colors) {
  context.font = font(item.size || 15);
  context.fillStyle = colors[item.color || "text"];
  const strong = /[A-Za-z\u00c0-\u02af\u0370-\u058f]|[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/u.exec(item.text);
  const isRight = strong !== null && strong[0] >= "\u0590" && !/[A-Za-z]/.test(strong[0]);
  context.direction = isRight ? "rtl" : "ltr";
  context.textAlign = "start";
  context.fillText(item.text, isRight ? x + width : x, y + item.height - 6);
}

function drawMessage(context, message, y, colors) {
  const x = SHEET.margin;
  const width = SHEET.width - 2 * SHEET.margin;
  context.fillStyle = colors.card;
  context.strokeStyle = colors.line;
  context.beginPath();
  context.roundRect(x, y, width, message.height, 10);
  context.fill();
  context.stroke();
  context.fillStyle = message.role === "assistant" ? colors.accent : message.role === "system" ? colors.line : colors.env;
  context.fillRect(x, y + 8, 4, message.height - 16);
  let top = y + SHEET.pad;
  drawLine(context, { text: message.title, height: 20, size: 13, color: "muted" }, x + SHEET.pad, top - 2, width, colors);
  top += 24;
  for (const item of message.items) {
    if (item.image) {
      context.imageSmoothingEnabled = item.image.naturalWidth >= 64;
      context.drawImage(item.image, x + SHEET.pad, top, item.width, item.height - 10);
    } else {
      drawLine(context, item, x + SHEET.pad, top, width - 2 * SHEET.pad, colors);
    }
    top += item.height;
  }
}

/** Returns a canvas with the verdict, the reward and the conversation of an episode. */
async function episodePicture(episode) {
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d");
  const colors = ink();
  const width = SHEET.width - 2 * SHEET.margin;
  context.font = font(15);
  const task = wrapText(context, `${episode.env_id}, seed ${episode.seed ?? "none"}, ${episode.engine}`, width).slice(0, 2);
  const messages = [];
  let height = SHEET.margin + 88 + task.length * SHEET.line;
  const entries = withTurns(episode);
  for (const [entry, turn] of entries) {
    const message = await layMessage(context, entry, turn, width - 2 * SHEET.pad);
    if (height + message.height > SHEET.height && messages.length > 0) break;
    messages.push(message);
    height += message.height + SHEET.gap;
  }
  const hidden = entries.length - messages.length;
  height = Math.min(height + (hidden ? 34 : 0) + SHEET.margin - SHEET.gap, SHEET.height + 400);
  canvas.width = SHEET.width * SHEET.scale;
  canvas.height = height * SHEET.scale;
  context.scale(SHEET.scale, SHEET.scale);
  context.fillStyle = colors.page;
  context.fillRect(0, 0, SHEET.width, height);
  let y = SHEET.margin;
  context.direction = "ltr";
  context.fillStyle = colors.text;
  context.font = font(24, 700);
  context.fillText(`Episode ${episode.number}`, SHEET.margin, y + 22);
  const verdict = episode.fault === null ? `reward ${number(episode.reward)}, ${episode.stop_reason}`
    : `${episode.stop_reason}: ${episode.fault.kind} in ${episode.fault.where}`;
  context.font = font(16, 600);
  context.fillStyle = numeric(episode.reward) > 0 ? colors.good : colors[episode.kind === "good" ? "muted" : episode.kind];
  context.fillText(verdict, SHEET.margin, y + 52);
  y += 64;
  for (const text of task) { drawLine(context, { text, height: SHEET.line, color: "muted" }, SHEET.margin, y, width, colors); y += SHEET.line; }
  y += SHEET.gap;
  for (const message of messages) { drawMessage(context, message, y, colors); y += message.height + SHEET.gap; }
  if (hidden) {
    drawLine(context, { text: `and ${plural(hidden, "message")} more`, height: 24, color: "muted" }, SHEET.margin, y, width, colors);
  }
  return canvas;
}
