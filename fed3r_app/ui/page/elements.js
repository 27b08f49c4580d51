// Elements, and what the tables of the page have in common: sorting, searching, counting.

const MOST_ROWS = 500; // of a table at once

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return a row of buttons of which one is pressed. */
export function choice(options, chosen, choose) {
  const press = (key) => buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(options[i][0] === key)));
  const buttons = options.map(([key, label]) => h("button", { type: "button", click: () => { press(key); choose(key); } }, label));
  press(chosen);
  return h("div", { class: "choice", role: "group" }, buttons);
}

/**
 * Return a table that sorts by its heads, and what shows other rows in it.
 * A column is [key, label, is a number, cell of a row]; no label, no head to sort by.
 */
export function sortable(kind, columns, start, down) {
  const order = { key: start, down };
  let rows = [];
  const heads = columns.map(([key, label, isNumber]) => h("th", { scope: "col", class: isNumber ? "number" : null },
    label ? h("button", { type: "button", click: () => sortBy(key, isNumber) }, label) : ""));
  const body = h("tbody");
  const table = h("table", { class: kind }, h("thead", {}, h("tr", {}, heads)), body);

  function sortBy(key, isNumber) {
    order.down = order.key === key ? !order.down : Boolean(isNumber) || key === "began";
    order.key = key;
    draw();
  }

  function draw() {
    const missing = (value) => value === null || value === undefined || value === "";
    const sorted = order.key === null ? rows : rows.toSorted((one, other) => {
      const [a, b] = [one[order.key], other[order.key]];
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      return (order.down ? -1 : 1) * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
    });
    heads.forEach((head, i) => {
      if (columns[i][0] === order.key) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    body.replaceChildren(...sorted.slice(0, MOST_ROWS).map((row) => h("tr", {}, columns.map(([, , , cell]) => cell(row)))));
  }

  return { table, show: (others) => { rows = others; draw(); } };
}

export const cell = (text, kind) => h("td", kind ? { class: kind } : {}, text);

/** Return a search field that calls back with what tells whether a text has all its words. */
export function searchField(label, changed) {
  const field = h("input", { type: "search", placeholder: label, "aria-label": label, input: () => changed() });
  field.finds = (text) => field.value.toLowerCase().split(/\s+/).every((word) => text.toLowerCase().includes(word));
  return field;
}

export function counted(found, all, one, many) {
  const shown = Math.min(found, MOST_ROWS);
  return `${shown < all ? `${shown} of ` : ""}${all} ${all === 1 ? one : many}`;
}
