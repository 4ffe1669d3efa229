// The table of models: sorting, filtering, choosing.
function startTable() {
  const table = byId("table");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = all("thead tr:last-child th", table);
  const keys = rows.map((row) => [...row.cells].map((cell, column) => {
    const key = cell.dataset.key;
    if (key === undefined) return null;
    return heads[column].classList.contains("number") ? Number(key) : key.toLowerCase();
  }));
  const order = new Intl.Collator("en", { numeric: true });
  const place = new Map(rows.map((row, index) => [row, index]));

  function sort(column) {
    const head = heads[column];
    const numeric = head.classList.contains("number");
    const first = numeric ? "descending" : "ascending";
    const second = numeric ? "ascending" : "descending";
    const direction = head.getAttribute("aria-sort") === first ? second : first;
    for (const other of heads) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", direction);
    const sign = direction === "ascending" ? 1 : -1;
    const sorted = [...rows].sort((a, b) => {
      const [i, j] = [place.get(a), place.get(b)];
      const [left, right] = [keys[i][column], keys[j][column]];
      if (left === null || right === null) return (left === null) - (right === null) || i - j;
      const compared = numeric ? left - right : order.compare(left, right);
      return compared * sign || i - j;
    });
    body.append(...sorted);
  }
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => sort(column));
  });

  const shownRows = () => [...body.rows].filter((row) => !row.hidden);
  const buttonOf = (row) => row.querySelector("button.choose");
  function focusable(row) {
    for (const other of rows) buttonOf(other).tabIndex = other === row ? 0 : -1;
  }
  function filter() {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const position = byId("position").value;
    const group = byId("group")?.value ?? "";
    for (const row of rows) {
      const { text, position: kind, group: own } = row.dataset;
      row.hidden = !words.every((word) => text.includes(word))
        || (position !== "" && kind !== position) || (group !== "" && own !== group);
    }
    const shown = shownRows();
    byId("shown").textContent = `${shown.length} of ${rows.length} shown`;
    if (!shown.some((row) => buttonOf(row).tabIndex === 0) && shown.length) focusable(shown[0]);
  }
  for (const id of ["filter", "position", "group"]) byId(id)?.addEventListener("input", filter);

  const indexOf = (row) => Number(row.dataset.index);
  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (!row || event.target.closest("a") || String(getSelection())) return;
    focusable(row);
    choose([indexOf(row)], !slots.has(indexOf(row)));
  });
  body.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target.closest("tr");
    if (!step || !row) return;
    event.preventDefault();
    const shown = shownRows();
    const next = shown[shown.indexOf(row) + step];
    if (next) {
      focusable(next);
      buttonOf(next).focus();
    }
  });
  byId("choose-shown").addEventListener("click", () => choose(shownRows().map(indexOf), true));
  byId("choose-none").addEventListener("click", () => choose(chosen(), false));

  onChoice.push(() => {
    for (const row of rows) {
      const index = indexOf(row);
      const on = slots.has(index);
      row.classList.toggle("chosen", on);
      const button = buttonOf(row);
      button.setAttribute("aria-pressed", String(on));
      button.querySelector(".swatch").replaceChildren(...(on ? [swatch(index)] : []));
    }
  });
  focusable(rows[0]);
  filter();
}
