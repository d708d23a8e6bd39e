// Runs in every document before its own scripts. CONFIG is {seed, clipboard}.
((config) => {
  // Math.random and crypto are drawn from the seed (sfc32, public domain, by Chris Doty-Humphrey).
  let a = 0x9e3779b9 ^ config.seed, b = 0x243f6a88, c = 0xb7e15162, d = config.seed | 1;
  const draw = () => {
    const t = (((a + b) | 0) + d) | 0;
    d = (d + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (c << 21) | (c >>> 11);
    c = (c + t) | 0;
    return t >>> 0;
  };
  for (let i = 0; i < 15; i++) draw();
  Math.random = () => (draw() * 2 ** 21 + (draw() >>> 11)) / 2 ** 53;
  if (globalThis.Crypto) {
    Crypto.prototype.getRandomValues = function (array) {
      const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
      for (let i = 0; i < bytes.length; i++) bytes[i] = draw();
      return array;
    };
    Crypto.prototype.randomUUID = function () {
      const hex = [...this.getRandomValues(new Uint8Array(16))]
        .map((v, i) => (i === 6 ? (v & 15) | 64 : i === 8 ? (v & 63) | 128 : v))
        .map((v) => v.toString(16).padStart(2, "0")).join("");
      return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
    };
  }
  // Date follows the virtual clock already; the other clocks start a few real milliseconds apart.
  const now = Date.now, began = now();
  performance.now = () => now() - began;
  const request = globalThis.requestAnimationFrame;
  if (request) globalThis.requestAnimationFrame = (f) => request.call(globalThis, () => f(now() - began));
  // Native popups are separate windows: no screenshot shows them, and the page draws no frame
  // while one is open. A control that would open one only takes the focus, and keys change it.
  const opens = (target) => target.closest?.("select:not([multiple]):not([size])") ??
    target.closest?.("input[type=color], input[type=date], input[type=datetime-local], " +
      "input[type=month], input[type=time], input[type=week]");
  addEventListener("mousedown", (event) => {
    const control = opens(event.target);
    if (control?.localName !== "select") return;
    event.preventDefault();
    control.focus();
  }, true);
  addEventListener("click", (event) => {
    if (opens(event.target)?.type === "color") event.preventDefault();
  }, true);
  addEventListener("keydown", (event) => {
    const control = opens(event.target);
    const arrow = event.altKey && /^Arrow(Up|Down)$/.test(event.key);
    const press = (control?.localName === "select" || control?.type === "color") &&
      (event.key === " " || event.key === "Enter");
    if (control && (arrow || press || event.key === "F4")) event.preventDefault();
  }, true);
  for (const kind of [globalThis.HTMLInputElement, globalThis.HTMLSelectElement])
    if (kind) kind.prototype.showPicker = () => {};
  if (globalThis.CSSStyleSheet && globalThis.document?.adoptedStyleSheets) {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync("::-webkit-calendar-picker-indicator { pointer-events: none; }");
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  }
  // What a page opens would be another page, which nobody sees.
  globalThis.open = () => null;
  // Ways out that no proxy stands in.
  for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection", "WebTransport"]) delete globalThis[name];
  // The browser's clipboard is shared by all pages: each session has its own here.
  const tell = globalThis.__envkit_tell;
  delete globalThis.__envkit_tell;
  const board = { text: config.clipboard };
  const keep = (text) => { board.text = text; tell?.(JSON.stringify({ clipboard: text })); };
  const selected = () => {
    const element = document.activeElement;
    try {
      if (element && typeof element.selectionStart === "number" && element.type !== "password")
        return element.value.slice(element.selectionStart, element.selectionEnd);
    } catch {}
    return String(getSelection() ?? "");
  };
  const onCopy = (event) => {
    const text = selected();
    addEventListener(event.type, (late) => {
      const own = late.defaultPrevented ? late.clipboardData?.getData("text/plain") : text;
      if (own) keep(own);
    }, { once: true });
  };
  addEventListener("copy", onCopy, true);
  addEventListener("cut", onCopy, true);
  addEventListener("paste", (event) => {
    if (!event.isTrusted) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    if (!board.text) return;
    const data = new DataTransfer();
    data.setData("text/plain", board.text);
    const again = new ClipboardEvent("paste",
      { clipboardData: data, bubbles: true, cancelable: true, composed: true });
    if (event.target.dispatchEvent(again)) document.execCommand("insertText", false, board.text);
  }, true);
  if (globalThis.Clipboard) {
    Clipboard.prototype.writeText = async (text) => keep(String(text));
    Clipboard.prototype.readText = async () => board.text;
  }
})(CONFIG);
