// Sorts, filters and shortens the table of tensors. Without scripts the table stands whole, the largest moves first.
(() => {
  "use strict";
  const LIMIT = 40;
  const LOW_FIRST = new Set(["Tensor", "Cosine", "Signs kept"]); // the first click shows the largest moves
  const panel = document.querySelector(".tensors");
  const body = panel.querySelector("tbody");
  const heads = [...panel.querySelectorAll("thead th")];
  const value = (cell) => {
    const data = cell.querySelector("data");
    return data ? Number(data.value) : cell.firstChild.textContent;
  };
  const rows = [...body.rows].map((row) => ({ row, values: [...row.cells].map(value) }));
  let wanted = [];
  let all = false;

  const make = (name, attributes, parent) => parent.appendChild(Object.assign(document.createElement(name), attributes));
  const tools = document.createElement("div");
  tools.className = "tools";
  const search = make("input", { type: "search", placeholder: "Filter by name, e.g. 7 q_proj", ariaLabel: "Filter tensors by name" }, tools);
  const shown = make("span", { role: "status" }, tools);
  panel.prepend(tools);
  const more = make("button", { type: "button", className: "more" }, panel);

  const show = () => {
    let found = 0;
    for (const { row, values } of rows) {
      const parts = values[0].toLowerCase();
      const match = wanted.every((word) => (/^\d+$/.test(word) ? parts.split(".").includes(word) : parts.includes(word)));
      found += match;
      row.hidden = !match || (!all && found > LIMIT);
    }
    const visible = all ? found : Math.min(found, LIMIT);
    shown.textContent = `${visible < rows.length ? `${visible} of ` : ""}${rows.length} tensor${rows.length === 1 ? "" : "s"}`;
    more.hidden = visible === found;
    more.textContent = `Show all ${found}`;
  };

  const sort = (place, ascending) => {
    const sign = ascending ? 1 : -1;
    rows.sort((a, b) => {
      const [x, y] = [a.values[place], b.values[place]];
      if (typeof x === "string") return sign * x.localeCompare(y, "en", { numeric: true });
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // what has no figure comes last
      return x === y ? 0 : sign * (x < y ? -1 : 1);
    });
    body.append(...rows.map(({ row }) => row));
    heads.forEach((head, i) => (i === place ? head.setAttribute("aria-sort", ascending ? "ascending" : "descending") : head.removeAttribute("aria-sort")));
    show();
  };

  heads.forEach((head, place) => {
    const title = head.textContent;
    head.textContent = "";
    make("button", { type: "button", textContent: title }, head).addEventListener("click", () => {
      const current = head.getAttribute("aria-sort");
      sort(place, current ? current === "descending" : LOW_FIRST.has(title));
    });
  });
  heads[1].setAttribute("aria-sort", "descending");
  search.addEventListener("input", () => {
    wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    show();
  });
  more.addEventListener("click", () => {
    all = true;
    show();
  });
  show();
})();
