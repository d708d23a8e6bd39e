"use strict";
// The way between the list and one entry of it, by address, keys and buttons.

const overview = byId("overview");
const view = byId("episode");

class Viewer {
  /**
   * @param list The RowList of the page.
   * @param options `letter` that begins an entry's place, `noun` for it, `load(number)`: its data or
   *   null, `draw(data)`: its nodes, `turns(data)`: how many turns it has, `keys`: further keys of it.
   */
  constructor(list, options) {
    this.list = list;
    this.options = options;
    this.title = document.title;
    this.pattern = new RegExp(`^${options.letter}(\\d+)(?:t(\\d+))?$`);
    this.current = null; // the data of the entry that is drawn
    this.number = null; // and its number
    this.turn = null; // the turn that the address names
    this.wantsFilter = false; // whether the way back to the list leads into the filter
    this.asked = 0; // counts what was asked for: a slow entry must not replace a later one
  }

  get place() {
    return `${this.options.letter}${this.number}`;
  }

  /** Returns the address of a turn of the entry. */
  turnAddress(turn) {
    return this.list.address(`${this.place}t${turn}`);
  }

  back() {
    location.hash = this.list.address("");
  }

  step(offset) {
    const row = this.list.beside(this.place, offset);
    if (row === undefined) return false;
    location.hash = this.list.address(this.list.options.place(row));
    return true;
  }

  stepTurn(offset) {
    const count = this.options.turns(this.current);
    if (count === 0) return false;
    const turn = Math.min(Math.max(0, (this.turn ?? -1) + offset), count - 1);
    location.hash = this.turnAddress(turn);
    return true;
  }

  bar(...actions) {
    const beside = (offset) => ({ disabled: this.list.beside(this.place, offset) === undefined });
    const { noun } = this.options;
    return el("nav", { class: "bar-top", "aria-label": noun },
      button(`← all ${noun}s`, () => this.back()), el("span", { class: "grow" }), actions,
      button("previous", () => this.step(-1), beside(-1)), button("next", () => this.step(1), beside(1)),
      button("?", showKeys, { "aria-label": "show the keys" }));
  }

  showList() {
    const before = this.current === null ? null : this.place;
    this.current = this.number = this.turn = null;
    view.hidden = true;
    view.replaceChildren();
    overview.hidden = false;
    document.title = this.title;
    if (this.wantsFilter) focusFilter();
    else if (before !== null) this.list.focus(this.list.position(before));
    this.wantsFilter = false;
  }

  async show(number) {
    const ticket = this.asked += 1;
    const data = await this.options.load(number);
    if (ticket !== this.asked) return false;
    if (data === null) {
      toast(`this file has no ${this.options.noun} ${number}`);
      this.showList();
      return false;
    }
    this.current = data;
    this.number = number;
    view.replaceChildren(this.bar(this.options.actions), ...this.options.draw(data));
    overview.hidden = true;
    view.hidden = false;
    document.title = `${this.options.noun} ${number}`;
    window.scrollTo(0, 0);
    return true;
  }

  async route() {
    const { place, params } = readAddress();
    this.list.take(params);
    const match = this.pattern.exec(place);
    if (match === null) {
      this.asked += 1;
      this.showList();
      return;
    }
    const number = Number(match[1]);
    if (this.number !== number && !(await this.show(number))) return;
    this.turn = match[2] === undefined ? null : Number(match[2]);
    if (this.turn !== null) showTurn(view, this.turn);
  }

  filterKey() {
    this.wantsFilter = this.current !== null;
    if (this.wantsFilter) this.back();
    else focusFilter();
  }

  start() {
    const { list } = this;
    const inList = (action) => () => (this.current === null ? action() : false);
    const inEntry = (action) => () => (this.current === null ? false : action());
    const either = (one, other) => () => (this.current === null ? one() : other());
    const further = Object.entries(this.options.keys).map(([key, action]) => [key, inEntry(action)]);
    listenForKeys({
      j: either(() => list.move(1), () => this.step(1)), k: either(() => list.move(-1), () => this.step(-1)),
      ArrowDown: inList(() => list.move(1)), ArrowUp: inList(() => list.move(-1)),
      ArrowRight: inEntry(() => this.step(1)), ArrowLeft: inEntry(() => this.step(-1)),
      n: inEntry(() => this.stepTurn(1)), p: inEntry(() => this.stepTurn(-1)),
      Escape: inEntry(() => this.back()), "/": () => this.filterKey(), "?": showKeys,
      ...Object.fromEntries(further),
    });
    window.addEventListener("hashchange", () => this.route());
    list.apply();
    performance.mark("list ready");
    this.route();
  }
}

/** Returns rows as objects, with a lower-case text of some columns to search in. */
function readRows(index, searched) {
  return index.rows.map((values) => {
    const row = Object.fromEntries(index.columns.map((name, n) => [name, values[n]]));
    row.search = searched.map((name) => row[name]).join("\n").toLowerCase();
    return row;
  });
}
