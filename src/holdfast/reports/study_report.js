// Sorts and shortens the table of trials. Without scripts it stands whole, in the order of the study.
(() => {
  "use strict";
  const LIMIT = 40;
  const panel = document.querySelector(".trials");
  const body = panel.querySelector("tbody");
  const heads = [...panel.querySelectorAll("thead th")];
  const value = (cell) => {
    const data = cell.querySelector("data");
    return data ? Number(data.value) : cell.classList.contains("num") ? NaN : cell.textContent;
  };
  const rows = [...body.rows].map((row) => ({ row, values: [...row.cells].map(value) }));
  const more = panel.appendChild(Object.assign(document.createElement("button"), { type: "button", className: "more", textContent: `Show all ${rows.length}` }));
  let all = rows.length <= LIMIT + 5;

  const show = () => {
    rows.forEach(({ row }, place) => (row.hidden = !all && place >= LIMIT));
    more.hidden = all;
  };
  const sort = (place, ascending) => {
    const sign = ascending ? 1 : -1;
    rows.sort((a, b) => {
      const [x, y] = [a.values[place], b.values[place]];
      if (typeof x === "string") return sign * x.localeCompare(y, "en", { numeric: true });
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // what has no figure comes last
      return sign * (x - y);
    });
    body.append(...rows.map(({ row }) => row));
    heads.forEach((head, i) => (i === place ? head.setAttribute("aria-sort", ascending ? "ascending" : "descending") : head.removeAttribute("aria-sort")));
    show();
  };
  heads.forEach((head, place) => {
    const title = head.textContent;
    head.textContent = "";
    const button = head.appendChild(Object.assign(document.createElement("button"), { type: "button", textContent: title }));
    button.addEventListener("click", () => {
      const current = head.getAttribute("aria-sort");
      sort(place, current ? current === "descending" : !head.classList.contains("num")); // figures: the largest first
    });
  });
  more.addEventListener("click", () => ((all = true), show()));
  show();
})();
