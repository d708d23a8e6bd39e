// The front end of the three widgets. Whatever a model or an environment said is set as text, never
// as markup; pictures are PNG bytes of the kernel, shown by blob addresses.

const pictureCaches = new WeakMap(); // model -> Map(name -> Promise of a blob address)

// Controls become images of themselves, and what reorders or hides text a box.
function plain(text) {
  return String(text).replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (c) => (c.charCodeAt(0) < 32 ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : "\u25af"),
  );
}

function el(tag, className = "", text = null) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== null) node.textContent = plain(text);
  return node;
}

function add(parent, ...children) {
  for (const child of children) if (child) parent.append(child);
  return parent;
}

function button(text, className, onClick, enabled = true) {
  const node = el("button", `ek-button ${className}`, text);
  node.type = "button";
  node.disabled = !enabled;
  node.addEventListener("click", onClick);
  return node;
}

// A box that may scroll can have the focus, so that keys scroll it.
function scrolling(node, label) {
  node.tabIndex = 0;
  node.setAttribute("role", "group");
  node.setAttribute("aria-label", label);
  return node;
}

// ---- pictures

function cacheOf(model) {
  if (!pictureCaches.has(model)) {
    const waiting = new Map();
    model.on("msg:custom", (content, buffers) => {
      if (!content || typeof content.picture !== "string") return;
      const entry = waiting.get(content.picture);
      if (!entry) return;
      const bytes = (buffers || [])[0];
      entry.settle(bytes ? URL.createObjectURL(new Blob([bytes], { type: "image/png" })) : null);
    });
    pictureCaches.set(model, waiting);
  }
  return pictureCaches.get(model);
}

function pictureAddress(model, name) {
  const cache = cacheOf(model);
  if (!cache.has(name)) {
    let settle;
    const address = new Promise((resolve) => (settle = resolve));
    cache.set(name, { address, settle });
    model.send({ do: "pictures", names: [name] });
  }
  return cache.get(name).address;
}

function picture(model, name, size, onPoint) {
  const image = el("img", "ek-picture");
  if (size) [image.width, image.height] = size; // its place, before its bytes are here
  image.alt = `picture ${name.slice(0, 12)}`;
  pictureAddress(model, name).then((address) => {
    if (address) image.src = address;
    else image.replaceWith(el("span", "ek-error", `picture ${name.slice(0, 12)} is missing`));
  });
  if (onPoint) {
    image.classList.add("ek-pointable");
    image.title = "click to write the action";
    image.addEventListener("click", (event) => {
      const box = image.getBoundingClientRect();
      const x = Math.floor(((event.clientX - box.left) * image.naturalWidth) / box.width);
      const y = Math.floor(((event.clientY - box.top) * image.naturalHeight) / box.height);
      onPoint(Math.max(0, x), Math.max(0, y));
    });
  }
  return image;
}

// ---- steps

function messageNode(model, message, onPoint) {
  const node = el("div", `ek-message ek-${message.role}`);
  add(node, el("div", "ek-role", message.who));
  for (const [name, size] of message.images) add(node, picture(model, name, size, onPoint));
  if (message.text) add(node, el("div", "ek-text", message.text));
  if (message.role !== "system") return node;
  const details = el("details", "ek-message ek-system");
  add(details, el("summary", "ek-role", message.who), ...[...node.children].slice(1));
  return details;
}

function replyNode(text, speaker) {
  const node = el("div", "ek-message ek-assistant");
  return add(node, el("div", "ek-role", speaker || "model"), el("div", "ek-text", text));
}

// Where a sequence starts: what was rewritten, and what the model saw from there on.
function startNode(start) {
  const node = el("div", "ek-rewrite");
  for (const line of start.lines) add(node, el("div", "", line));
  if (!start.saw.length) return node;
  const details = add(el("details"), el("summary", "", "What the model saw from then on"));
  return add(node, add(details, tableNode(start.saw)));
}

function tableNode(rows) {
  const body = el("tbody");
  for (const row of rows) {
    const line = el("tr");
    row.forEach((text, index) => add(line, el(index ? "td" : "th", "ek-text", text)));
    add(body, line);
  }
  return add(el("table", "ek-table"), body);
}

// The environment's answer to a reply.
function outcomeNode(step) {
  const node = el("div", "ek-outcome");
  if (step.parse_error) add(node, el("span", "ek-badge ek-warn", `not understood: ${step.parse_error}`));
  return add(node, tableNode(step.facts));
}

function stepNode(model, step, index, onPoint) {
  const node = el("div", "ek-step");
  if (step.summary) add(node, el("div", "ek-summary", `turn ${index + 1}  ${step.summary}`));
  if (step.start) add(node, startNode(step.start));
  for (const message of step.reads) add(node, messageNode(model, message, onPoint));
  if (step.reply !== null) add(node, replyNode(step.reply, step.speaker));
  if (step.facts && step.facts.length) add(node, outcomeNode(step));
  return node;
}

// ---- tokens

function spelled(text, id) {
  if (text === null) return String(id);
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
}

function segmentNode(segment) {
  const node = el("div", "ek-segment");
  const trained = segment.mask.reduce((sum, one) => sum + one, 0);
  const wire = segment.wire_length === segment.length ? "" : `, ${segment.wire_length} on the wire`;
  const label = `${segment.kind}: ${segment.length} tokens${wire}, ${trained} trained`;
  const strip = scrolling(el("div", "ek-tokens"), label);
  segment.ids.forEach((id, index) => {
    const text = segment.texts[index];
    const count = segment.counts[index];
    const token = el("span", "ek-token", spelled(text, id) + (count > 1 ? ` ×${count}` : ""));
    let title = `id ${id}` + (text === null ? "" : ` ${JSON.stringify(text)}`);
    if (segment.mask.length) {
      const logprob = segment.logprobs[index];
      const share = Math.exp(Math.min(0, logprob));
      token.style.background = `hsl(${Math.round(120 * share)} 70% 50% / 0.35)`;
      if (segment.mask[index]) token.classList.add("ek-trained");
      title += `, log-probability ${logprob}, ${(100 * share).toFixed(1)}%, mask ${segment.mask[index]}`;
    } else {
      token.classList.add("ek-context");
      title += ", mask 0";
    }
    token.title = title;
    add(strip, token);
    if (text !== null && text.endsWith("\n")) add(strip, el("br"));
  });
  return add(node, el("div", "ek-role", label), strip);
}

function tokensNode(segments) {
  const node = el("details", "ek-strip");
  node.open = true;
  add(node, el("summary", "", "tokens of this turn"));
  for (const segment of segments) add(node, segmentNode(segment));
  return add(node, legend());
}

function legend() {
  const node = el("div", "ek-legend");
  const trained = el("span", "ek-token ek-trained", "trained");
  const likely = el("span", "ek-token", "likely");
  likely.style.background = "hsl(120 70% 50% / 0.35)";
  const unlikely = el("span", "ek-token", "unlikely");
  unlikely.style.background = "hsl(0 70% 50% / 0.35)";
  return add(node, trained, likely, unlikely, el("span", "ek-token ek-context", "context, mask 0"));
}

// ---- the reply box: kept through every redraw, so that nobody loses a text

function makeComposer(model, send) {
  const node = el("div", "ek-composer");
  const box = el("textarea", "ek-box");
  box.rows = 3;
  box.placeholder = "your reply, as the model would write it (Ctrl+Enter sends)";
  box.setAttribute("aria-label", "reply");
  const buttons = el("div", "ek-buttons");
  add(node, box, buttons);
  const reply = () => send({ do: "reply", text: box.value });
  box.addEventListener("keydown", (event) => {
    event.stopPropagation(); // the notebook has its own shortcuts
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) reply();
  });
  // The buttons stay the same elements: a press on one that is replaced before the release is lost.
  const say = button("Send", "ek-primary ek-send", reply);
  const oracle = button("Oracle's reply", "ek-oracle", () => send({ do: "oracle" }));
  const undo = button("Take back", "ek-undo", () => send({ do: "undo" }));
  const giveUp = button("Give up", "ek-give-up", () => send({ do: "give_up" }));
  const start = button("Start again", "ek-start", () => send({ do: "start" }));
  const state = el("span", "ek-state");
  add(buttons, say, oracle, undo, giveUp, start, state);
  let turns = -1;
  function update(game, busy) {
    const steps = game.steps.filter((step) => step.reply !== null).length;
    if (steps !== turns) box.value = ""; // the reply was played
    turns = steps;
    box.disabled = game.is_over;
    for (const one of [say, oracle, giveUp]) one.disabled = busy || game.is_over;
    oracle.hidden = !game.has_oracle;
    undo.disabled = busy || steps === 0;
    start.disabled = busy;
    state.textContent = busy ? "working …" : game.is_over ? "the episode is over" : "";
  }
  return { node, update, fill: (text) => ((box.value = text), box.focus()) };
}

function header(title, facts) {
  const node = el("div", "ek-header");
  add(node, el("span", "ek-title", title));
  for (const fact of facts) add(node, el("span", "ek-badge", fact));
  return node;
}

function errorNode(view) {
  return view.error ? el("div", "ek-error", view.error) : null;
}

// ---- play

function gameSteps(model, game, send, from = 0) {
  const last = game.steps.length - 1;
  return game.steps.slice(from).map((step, index) => {
    const open = from + index === last && step.reply === null && game.takes_clicks && !game.is_over;
    const point = open ? (x, y) => send({ do: "click", x, y }) : null;
    return stepNode(model, step, from + index, point);
  });
}

function playMode(model, root, send) {
  const head = el("div");
  const talk = scrolling(el("div", "ek-talk"), "conversation");
  const composer = makeComposer(model, send);
  add(root, head, talk, composer.node);
  return {
    fill: composer.fill,
    draw(view) {
      head.replaceChildren();
      add(add(head, header(view.title, view.facts || [])), errorNode(view));
      talk.replaceChildren(...gameSteps(model, view, send));
      requestAnimationFrame(() => (talk.scrollTop = talk.scrollHeight));
      composer.update(view, view.is_busy);
    },
  };
}

// ---- show

function showMode(model, root, send) {
  let turn = null; // the first that is the episode's own
  let shown = null;
  root.tabIndex = 0;
  root.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    event.stopPropagation();
    turn += event.key === "ArrowRight" ? 1 : -1;
    draw(shown);
  });
  function navigation(view) {
    const node = el("div", "ek-buttons");
    const go = (to) => () => ((turn = to), draw(view));
    const last = view.steps.length - 1;
    add(node, button("◀ previous turn", "ek-previous", go(turn - 1), turn > 0));
    add(node, button("next turn ▶", "ek-next", go(turn + 1), turn < last));
    const after = view.steps[turn] && view.steps[turn].reply === null;
    add(node, el("span", "ek-state", after ? "the end" : `turn ${turn + 1} of ${replies(view)}`));
    if (view.count > 1) {
      const episode = (to) => () => ((turn = null), send({ do: "episode", index: to }));
      add(node, el("span", "ek-space"));
      add(node, button("◀", "ek-episode", episode(view.index - 1), view.index > 0));
      add(node, el("span", "ek-state", `episode ${view.index + 1} of ${view.count}`));
      add(node, button("▶", "ek-episode", episode(view.index + 1), view.index + 1 < view.count));
    }
    return node;
  }
  function draw(view) {
    shown = view;
    root.replaceChildren();
    if (!view.steps) return add(root, errorNode(view));
    turn = Math.max(0, Math.min(turn ?? view.first, view.steps.length - 1));
    const open = (index) => ((turn = null), send({ do: "episode", index }));
    if (view.count > 1) add(root, runNode(view, send), leavesNode(view, open));
    add(root, header(view.title, view.facts), errorNode(view), navigation(view));
    if (view.origin) add(root, el("div", "ek-state", view.origin));
    for (const problem of view.problems) add(root, el("div", "ek-error", problem));
    const step = view.steps[turn];
    if (step) {
      add(root, stepNode(model, step, turn, null));
      if (step.tokens.length) add(root, tokensNode(step.tokens));
    }
    return add(root, proofNode(view));
  }
  return { draw, fill() {} };
}

// ---- the run: its figures and its trees

function runNode(view, send) {
  const node = el("details", "ek-run");
  const { run } = view;
  add(node, el("summary", "", run ? `The run: ${run.facts}` : "The run"));
  if (!run) {
    node.addEventListener("toggle", () => node.open && send({ do: "run" }), { once: true });
    return add(node, el("div", "ek-state", "reading the run …"));
  }
  for (const note of run.notes) add(node, el("div", "ek-error", note));
  for (const section of run.sections) {
    add(node, el("h4", "", section.title), section.note ? el("p", "ek-state", section.note) : null);
    add(node, tableNode(section.rows));
  }
  return node;
}

function leavesNode(view, open) {
  const node = el("details", "ek-leaves");
  const groups = view.run ? view.run.groups || [] : [];
  node.open = view.count <= 24;
  add(node, el("summary", "", `Episodes: ${view.count}`));
  for (const group of groups) {
    add(node, el("div", "ek-state", [group.task, group.facts].filter(Boolean).join(" · ")));
    for (const member of group.members) {
      const index = member.number - 1;
      const line = button("", "ek-leaf", () => open(index));
      add(line, el("span", "ek-guide", member.guide), el("span", "", `episode ${member.number}`));
      add(line, el("b", "", member.reward), el("span", "ek-state", member.facts));
      if (index === view.index) line.setAttribute("aria-current", "true");
      add(node, line);
    }
  }
  return groups.length ? node : null;
}

function replies(view) {
  return view.steps.filter((step) => step.reply !== null).length;
}

function proofNode(view) {
  const node = el("div", "ek-proof");
  const kind = view.proof.holds ? "ek-good" : "ek-warn";
  add(node, el("span", `ek-badge ${kind}`, `certificate ${view.proof.status}`));
  return add(node, el("code", "ek-seal", view.proof.seal));
}

// ---- branch

function branchMode(model, root, send) {
  const head = el("div");
  const editor = el("div", "ek-editor");
  const choice = el("select", "ek-choice");
  const box = el("textarea", "ek-box ek-edit");
  box.rows = 3;
  box.setAttribute("aria-label", "the other reply");
  box.addEventListener("keydown", (event) => event.stopPropagation());
  const run = el("div", "ek-buttons");
  const shared = el("div");
  const columns = el("div", "ek-columns");
  const composer = makeComposer(model, send);
  add(editor, add(el("label", "ek-state", "change the reply of "), choice), box, run);
  add(root, head, editor, shared, columns);
  let drawn = null;
  choice.addEventListener("change", () => (box.value = drawn.replies[Number(choice.value)] || ""));

  function fillEditor(view) {
    choice.replaceChildren(
      ...view.replies.map((_, index) => {
        const option = el("option", "", `turn ${index + 1}`);
        option.value = String(index);
        return option;
      }),
    );
    choice.value = String(view.turn);
    box.value = view.edit ?? (view.replies[view.turn] || "");
  }
  function column(name, view, steps) {
    const node = el("div", "ek-column");
    return add(node, header(name, view ? view.facts : []), ...steps);
  }
  function draw(view) {
    if (!view.left) return;
    if (drawn === null) fillEditor(view);
    drawn = view;
    head.replaceChildren();
    add(head, header(view.title, []), errorNode(view));
    const wish = () => send({ do: "branch", turn: Number(choice.value), text: box.value });
    run.replaceChildren(
      button("Continue from this reply", "ek-primary ek-branch", wish, !view.is_busy),
      el("span", "ek-state", view.is_busy ? "working …" : ""),
    );
    shared.replaceChildren();
    if (view.turn > 0) {
      const before = el("details", "ek-shared");
      add(before, el("summary", "", `the ${view.turn === 1 ? "turn" : `${view.turn} turns`} before it, the same in both`));
      add(before, ...view.left.steps.slice(0, view.turn).map((step, n) => stepNode(model, step, n, null)));
      add(shared, before);
    }
    const left = view.left.steps.map((step, n) => stepNode(model, step, n, null)).slice(view.turn);
    const right = view.right;
    const steps = right ? gameSteps(model, right, send, view.turn) : [];
    const other = column("branch", right, steps);
    if (right === null) add(other, el("div", "ek-state", "nothing played yet"));
    if (right && view.by_hand) {
      composer.update(right, view.is_busy);
      add(other, composer.node);
    }
    columns.replaceChildren(column("recorded", view.left, left), other);
  }
  return { draw, fill: composer.fill };
}

// ---- one view

const MODES = { play: playMode, show: showMode, branch: branchMode };

function render({ model, el: host }) {
  const root = el("div", `ek-root ek-mode-${model.get("mode")}`);
  host.append(root);
  const mode = MODES[model.get("mode")](model, root, (wish) => model.send(wish));
  const draw = () => mode.draw(model.get("view"));
  const fill = (content) => {
    if (content && typeof content.fill === "string") mode.fill(content.fill);
  };
  model.on("change:view", draw);
  model.on("msg:custom", fill);
  draw();
  return () => {
    model.off("change:view", draw);
    model.off("msg:custom", fill);
  };
}

export default { render };
