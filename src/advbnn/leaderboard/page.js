"use strict";
(() => {
  const table = document.querySelector(".board-table");
  const body = table.tBodies[0];
  const headings = [...table.querySelectorAll("thead th")];
  const count = document.querySelector(".count");
  const filters = [...document.querySelectorAll(".filters select")];

  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.sort !== undefined ? Number(cell.dataset.sort) : cell.textContent.trim().toLowerCase();
  };

  // what was not measured stays at the end, whatever the direction
  const missing = (row, column) => {
    const cell = row.cells[column];
    return cell.classList.contains("number") && cell.dataset.sort === undefined;
  };

  const sortBy = (column) => {
    const heading = headings[column];
    const numeric = heading.classList.contains("number");
    const first = numeric ? "descending" : "ascending";
    const other = numeric ? "ascending" : "descending";
    const direction = heading.getAttribute("aria-sort") === first ? other : first;
    headings.forEach((each) => each.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", direction);
    const sign = direction === "ascending" ? 1 : -1;
    const rows = [...body.rows].sort((a, b) => {
      if (missing(a, column) !== missing(b, column)) return missing(a, column) ? 1 : -1;
      const [x, y] = [value(a, column), value(b, column)];
      return x < y ? -sign : x > y ? sign : 0;
    });
    body.append(...rows);
  };

  const filter = () => {
    const fits = (element) => filters.every((select) => {
      const own = element.dataset[select.name];
      // there is a figure for each kind, and one for all of them
      const all = select.value === "" && !(select.name === "kind" && element.matches("figure"));
      return all || own === select.value;
    });
    document.querySelectorAll("[data-dataset]").forEach((element) => { element.hidden = !fits(element); });
    const shown = [...body.rows].filter((row) => !row.hidden).length;
    count.textContent = `${shown} of ${body.rows.length} entries`;
  };

  const open = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const details = target && target.closest("details.evidence");
    if (details) { details.open = true; target.scrollIntoView(); }
  };

  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => sortBy(column));
  });
  filters.forEach((select) => select.addEventListener("change", filter));
  window.addEventListener("hashchange", open);
  table.tHead.classList.add("ready");
  document.documentElement.classList.add("scripted");
  filter();
  open();
})();
