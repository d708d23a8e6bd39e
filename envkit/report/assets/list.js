"use strict";
// A list of many rows, drawn a page at a time, with its filter in the address:
// #<place>?<filter>, where the place is empty for the list.

const PAGE_ROWS = 50;

function readAddress() {
  const [place, query] = location.hash.slice(1).split("?", 2);
  return { place, params: new URLSearchParams(query || "") };
}

class RowList {
  /**
   * @param rows What there is to show.
   * @param options `matches(row, filter)`, `order(row, name)`: a number to sort by, ascending;
   *   `draw(row, href)`: the cells of a table row, and `place(row)`: its place in the address.
   */
  constructor(rows, options) {
    this.rows = rows;
    this.options = options;
    this.form = byId("filter");
    this.body = byId("list").tBodies[0];
    this.pager = byId("pager");
    this.shown = rows;
    this.cursor = -1;
    this.page = 0;
    this.form.addEventListener("input", () => { this.apply(); this.remember(); });
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.move(1); });
    this.body.addEventListener("click", (event) => this.clicked(event));
    this.body.addEventListener("focusin", (event) => this.focused(event));
  }

  fields() {
    return Array.from(this.form.elements).filter((field) => field.name && field.tagName !== "OUTPUT");
  }

  filter() {
    const values = {};
    for (const field of this.fields()) {
      const value = field.type === "checkbox" ? (field.checked ? field.value : "") : field.value;
      if (value.trim()) values[field.name] = value.trim();
    }
    return values;
  }

  query() {
    const params = new URLSearchParams(this.filter());
    if (this.page > 0) params.set("page", String(this.page + 1));
    const text = params.toString();
    return text ? `?${text}` : "";
  }

  address(place) {
    return `#${place}${this.query()}`;
  }

  remember() {
    history.replaceState(null, "", this.address(readAddress().place));
  }

  /** Takes the filter of an address; one without a filter leaves it as it is. */
  take(params) {
    if ([...params].length === 0) return;
    for (const field of this.fields()) {
      const value = params.get(field.name) || "";
      if (field.type === "checkbox") field.checked = value === field.value;
      else field.value = value;
      if (field.tagName === "SELECT" && field.selectedIndex < 0) field.value = "";
    }
    this.apply();
    this.show(Number(params.get("page") || 1) - 1);
  }

  apply() {
    const filter = { ...this.filter() };
    filter.text = (filter.text || "").toLowerCase();
    const { matches, order } = this.options;
    this.shown = this.rows.filter((row) => matches(row, filter));
    if (filter.sort) {
      const value = (row) => { const key = order(row, filter.sort); return Number.isNaN(key) ? Infinity : key; };
      this.shown = this.shown.map((row) => [value(row), row])
        .sort((a, b) => (a[0] === b[0] ? 0 : a[0] < b[0] ? -1 : 1)).map((pair) => pair[1]);
    }
    this.cursor = -1;
    this.show(0);
  }

  pages() {
    return Math.max(1, Math.ceil(this.shown.length / PAGE_ROWS));
  }

  show(page) {
    this.page = Math.min(Math.max(0, Number.isFinite(page) ? Math.floor(page) : 0), this.pages() - 1);
    const first = this.page * PAGE_ROWS;
    const rows = this.shown.slice(first, first + PAGE_ROWS);
    this.body.replaceChildren(...rows.map((row, index) => {
      const drawn = el("tr", {}, this.options.draw(row, this.address(this.options.place(row))));
      drawn.dataset.position = String(first + index);
      return drawn;
    }));
    if (rows.length === 0) {
      const text = this.rows.length ? "Nothing fits the filter." : "There is nothing to list.";
      this.body.append(el("tr", {}, el("td", { colspan: "20", class: "muted" }, text)));
    }
    this.form.elements.count.value = `${grouped(this.shown.length)} of ${grouped(this.rows.length)}`;
    this.drawPager(first, rows.length);
  }

  drawPager(first, count) {
    const last = this.pages() - 1;
    const turn = (text, page, title) => button(text, () => { this.show(page); this.remember(); },
      { disabled: page < 0 || page > last || page === this.page, "aria-label": title });
    this.pager.hidden = last === 0;
    this.pager.replaceChildren(
      turn("«", 0, "first page"), turn("‹", this.page - 1, "page before"),
      el("span", { class: "muted" }, `${grouped(first + 1)} to ${grouped(first + count)}, page ${this.page + 1} of ${last + 1}`),
      turn("›", this.page + 1, "page after"), turn("»", last, "last page"));
  }

  clicked(event) {
    const row = event.target.closest("tr");
    if (row === null || row.dataset.position === undefined || event.target.closest("a") !== null) return;
    location.hash = this.address(this.options.place(this.shown[Number(row.dataset.position)]));
  }

  focused(event) {
    const row = event.target.closest("tr");
    if (row !== null && row.dataset.position !== undefined) this.cursor = Number(row.dataset.position);
  }

  /** Moves the focus by so many rows, onto the next page where it must. */
  move(step) {
    const start = this.cursor < 0 ? this.page * PAGE_ROWS + (step > 0 ? -1 : 0) : this.cursor;
    this.focus(Math.min(Math.max(0, start + step), this.shown.length - 1));
  }

  focus(position) {
    if (position < 0 || position >= this.shown.length) return;
    const page = Math.floor(position / PAGE_ROWS);
    if (page !== this.page) { this.show(page); this.remember(); }
    this.cursor = position;
    const link = this.body.querySelector(`tr[data-position="${position}"] a`);
    link.focus({ preventScroll: true });
    link.closest("tr").scrollIntoView({ block: "nearest" });
  }

  /** Returns the row that stands so many before or after the one at a place, or undefined. */
  beside(place, step) {
    const position = this.position(place);
    return position < 0 ? undefined : this.shown[position + step];
  }

  position(place) {
    return this.shown.findIndex((row) => this.options.place(row) === place);
  }
}
