// Runs before every script of a task's page: a clock that only actions move, a cheap reset, and a
// reading of the page for the scripted policy.
(() => {
  "use strict";
  const START = Date.UTC(2026, 0, 5, 9, 0, 0);
  const MOST_CALLBACKS = 20000;  // of one advance; a page that never settles is cut off here
  const RealDate = Date;
  const timers = new Map();
  let now = START, nextTimer = 1;

  window.Date = new Proxy(RealDate, {
    construct: (target, args) => args.length ? new target(...args) : new target(now),
    apply: () => new RealDate(now).toString(),
    get: (target, name) => name === "now" ? () => now : target[name],
  });
  performance.now = () => now - START;
  const add = (callback, delay, args, repeats) => {
    const after = Math.max(repeats ? 1 : 0, Number(delay) || 0);
    timers.set(nextTimer, {at: now + after, callback, args, every: repeats ? after : null});
    return nextTimer++;
  };
  window.setTimeout = (callback, delay, ...args) => add(callback, delay, args, false);
  window.setInterval = (callback, delay, ...args) => add(callback, delay, args, true);
  window.requestAnimationFrame = (callback) =>
    add(() => callback(performance.now()), 16, [], false);
  window.clearTimeout = window.clearInterval = window.cancelAnimationFrame = (timer) => {
    timers.delete(timer);
  };

  const earliest = () => {
    let found = null;
    for (const [id, timer] of timers) {
      if (found === null || timer.at < timers.get(found).at) found = id;
    }
    return found;
  };
  const advance = (milliseconds) => {
    const end = now + milliseconds;
    for (let called = 0; called < MOST_CALLBACKS; called++) {
      const id = earliest();
      if (id === null || timers.get(id).at > end) break;
      const timer = timers.get(id);
      now = Math.max(now, timer.at);
      if (timer.every === null) timers.delete(id);
      else timer.at = now + timer.every;
      try {
        if (typeof timer.callback === "function") timer.callback(...timer.args);
      } catch (error) {
        console.error(error);
      }
    }
    now = end;
  };

  const STYLE = `
    #reward-display, #click-canvas, #sync-task-cover { display: none !important; }
    * { caret-color: transparent !important; transition: none !important; animation: none !important; }
    html.hides-goal #query, html.hides-goal #query * { visibility: hidden !important; }`;
  const dress = (showsGoal) => {
    if (!document.getElementById("envkit-style")) {
      const style = document.createElement("style");
      style.id = "envkit-style";
      style.textContent = STYLE;
      document.head.appendChild(style);
    }
    document.documentElement.classList.toggle("hides-goal", !showsGoal);
  };

  const reset = (seed, split, showsGoal) => {
    dress(showsGoal);
    timers.clear();
    now = START;
    if (document.activeElement && document.activeElement !== document.body) {
      document.activeElement.blur();
    }
    Math.seedrandom(seed);
    core.setDataMode(split);
    core.EPISODE_MAX_TIME = 1e9;
    core.EP_TIMER = null;
    core.startEpisodeReal();
    advance(1000);
    document.body.getBoundingClientRect();  // asks for the pictures that the problem needs
    const goal = core.getUtterance();
    return {goal: typeof goal === "string" ? goal : goal.utterance};
  };

  const pass = (milliseconds) => {
    advance(milliseconds);
    document.body.getBoundingClientRect();
    return {done: Boolean(WOB_DONE_GLOBAL), raw: Number(WOB_RAW_REWARD_GLOBAL)};
  };

  // What of an element can be pressed: its middle, or else the first free point of a grid.
  const SHARES = [0.5, 0.25, 0.75, 0.1, 0.9];
  const freePoint = (element, box) => {
    for (const across of SHARES) {
      for (const down of SHARES) {
        const x = box.left + box.width * across, y = box.top + box.height * down;
        if (x < 0 || y < 0 || x >= innerWidth || y >= innerHeight) continue;
        const hit = document.elementFromPoint(x, y);
        if (hit && (hit === element || element.contains(hit))) return [x, y];
      }
    }
    return null;
  };
  const ownText = (element) => {
    const nodes = [...element.childNodes].filter((node) => node.nodeType === 3);
    return {nodes, text: nodes.map((node) => node.data).join(" ").replace(/\s+/g, " ").trim()};
  };
  const textEnds = (nodes) => {
    const range = document.createRange();
    range.setStart(nodes[0], 0);
    range.setEnd(nodes[nodes.length - 1], nodes[nodes.length - 1].length);
    const lines = [...range.getClientRects()].filter((line) => line.width > 0);
    if (!lines.length) return null;
    const first = lines[0], last = lines[lines.length - 1];
    return [first.left, first.top + first.height / 2, last.right, last.top + last.height / 2];
  };
  const describe = (element, numbers) => {
    const box = element.getBoundingClientRect();
    const own = ownText(element);
    const style = getComputedStyle(element);
    const attributes = {};
    for (const attribute of element.attributes) attributes[attribute.name] = attribute.value;
    return {
      parent: numbers.has(element.parentElement) ? numbers.get(element.parentElement) : null,
      tag: element.tagName.toLowerCase(),
      attributes,
      text: element.textContent.replace(/\s+/g, " ").trim(),
      box: [box.left, box.top, box.width, box.height],
      point: box.width && box.height ? freePoint(element, box) : null,
      text_ends: own.text && box.width ? textEnds(own.nodes) : null,
      value: "value" in element ? String(element.value) : null,
      checked: Boolean(element.checked || element.selected),
      focused: document.activeElement === element,
      color: style.color, background: style.backgroundColor,
      scrolls: element.scrollHeight > element.clientHeight + 1
        && (["auto", "scroll"].includes(style.overflowY) || element.tagName === "SELECT"),
      scroll: [element.scrollTop, element.scrollHeight, element.clientHeight],
      selection: element.selectionStart === undefined || element.selectionStart === null
        ? null : [element.selectionStart, element.selectionEnd],
    };
  };
  const read = () => {
    const left = "#query, #query *, #reward-display, #reward-display *, #click-canvas, #sync-task-cover";
    const elements = [...document.body.querySelectorAll("*")].filter(
      (element) => !element.matches(left) && !["SCRIPT", "STYLE"].includes(element.tagName));
    const numbers = new Map(elements.map((element, number) => [element, number]));
    return {
      elements: elements.map((element) => describe(element, numbers)),
      bar: [...document.querySelectorAll("#query *")].map((element) => describe(element, new Map())),
      selected: getSelection().toString(),
    };
  };

  window.envkitPage = {reset, pass, read};
})();
