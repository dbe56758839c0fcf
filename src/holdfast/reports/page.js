// Decompresses plotly.js from the page itself and draws the figures; redraws when the colour scheme changes and for print.
(async () => {
  "use strict";
  const boxes = [...document.querySelectorAll(".plot[data-figure]")];
  if (!boxes.length) return;
  const figures = JSON.parse(document.getElementById("figures").textContent);

  const giveUp = (reason) => {
    for (const box of boxes) {
      box.style.height = "auto";
      box.classList.add("undrawn");
      box.textContent = `This figure could not be drawn (${reason}); its numbers are in the table below.`;
      const numbers = box.parentElement.querySelector("details.numbers");
      if (numbers) numbers.open = true;
    }
  };

  const loadPlotly = async () => {
    const packed = document.getElementById("plotly-gzip").textContent;
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    if (!window.Plotly) throw new Error("plotly.js did not start");
  };

  // Figures name colours as var(--x); the style sheet is the only place that knows their values.
  const resolve = (value, style) => {
    if (typeof value === "string") return value.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
    if (Array.isArray(value)) return value.map((v) => resolve(v, style));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, resolve(v, style)]));
    return value;
  };

  const touch = matchMedia("(pointer: coarse)").matches;
  const hover = matchMedia("(hover: hover)").matches;
  const config = { responsive: true, displaylogo: false, showSendToCloud: false, displayModeBar: hover ? "hover" : false, modeBarButtons: [["toImage", "resetScale2d"]] };

  // Paper is narrower than the screen, and the browser lays it out too late for the plots to follow.
  const onPaper = { full: 640, half: 300, third: 190 };

  const draw = (printing = false) => {
    const style = getComputedStyle(document.documentElement);
    for (const box of boxes) {
      const figure = resolve(figures[Number(box.dataset.figure)], style);
      if (printing) figure.layout.width = onPaper[[...box.parentElement.classList].find((name) => name in onPaper)] ?? 640;
      // A finger that scrolls the page must not zoom the plot.
      if (touch) figure.layout.dragmode = false;
      if (box.clientWidth < 480 && figure.layout.meta?.narrow) figure.layout.yaxis.ticktext = figure.layout.meta.narrow;
      Plotly.react(box, figure.data, figure.layout, config);
    }
  };

  if (typeof DecompressionStream === "undefined") return giveUp("this browser has no DecompressionStream");
  try {
    await loadPlotly();
    draw();
  } catch (error) {
    return giveUp(error.message);
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.scheme = "light";
    draw(true);
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.scheme;
    draw();
  });
})();

// Tables to find something in: sorted at a click on a column, searched where they are long, the first rows only. Without scripts they stand whole.
(() => {
  "use strict";
  const LIMIT = 40;
  for (const panel of document.querySelectorAll("[data-find]")) {
    const noun = panel.dataset.find;
    const body = panel.querySelector("tbody");
    const heads = [...panel.querySelectorAll("thead th")];
    const name = (cell) => {
      const copy = cell.cloneNode(true);
      for (const below of copy.querySelectorAll(".sub")) below.remove();
      return copy.textContent;
    };
    const value = (cell) => {
      const data = cell.querySelector("data");
      return data ? Number(data.value) : cell.classList.contains("num") ? NaN : name(cell);
    };
    const rows = [...body.rows].map((row) => ({ row, values: [...row.cells].map(value), words: name(row.cells[0]).toLowerCase() }));
    const make = (name, attributes, parent) => parent.appendChild(Object.assign(document.createElement(name), attributes));
    const bar = Object.assign(document.createElement("div"), { className: "finder" });
    const search = make("input", { type: "search", placeholder: "Filter by name", ariaLabel: `Filter ${noun}s by name` }, bar);
    const shown = make("span", { role: "status" }, bar);
    panel.prepend(bar);
    const more = make("button", { type: "button", className: "more" }, panel);
    let wanted = [];
    let all = rows.length <= LIMIT + 5;

    const show = () => {
      let found = 0;
      for (const { row, words } of rows) {
        const match = wanted.every((word) => (/^\d+$/.test(word) ? words.split(/[^\w]/).includes(word) : words.includes(word)));
        found += match;
        row.hidden = !match || (!all && found > LIMIT);
      }
      const visible = all ? found : Math.min(found, LIMIT);
      shown.textContent = `${visible < rows.length ? `${visible} of ` : ""}${rows.length} ${noun}${rows.length === 1 ? "" : "s"}`;
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
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: head.textContent });
      head.replaceChildren(button);
      const lowFirst = !head.classList.contains("num") || ["Cosine", "Signs kept"].includes(button.textContent); // the first click shows the largest moves
      button.addEventListener("click", () => {
        const current = head.getAttribute("aria-sort");
        sort(place, current ? current === "descending" : lowFirst);
      });
    });
    search.addEventListener("input", () => ((wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean)), show()));
    more.addEventListener("click", () => ((all = true), show()));
    show();
  }
})();
