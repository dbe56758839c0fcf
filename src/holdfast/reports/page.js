// Decompresses plotly.js from the page itself and draws the figures; redraws when the colour scheme changes and for print.
(async () => {
  "use strict";
  const boxes = [...document.querySelectorAll(".plot[data-figure]")];
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
      // Names beside points run into each other on a phone; the legend has them too.
      if (box.clientWidth < 480) for (const trace of figure.data) if (trace.meta === "named in legend") trace.mode = trace.mode.replace("+text", "");
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

// Questions whose answers changed: a box that filters them, a lost / gained switch, and the first few only. Without scripts all stand there.
(() => {
  "use strict";
  const LIMIT = 12;
  for (const panel of document.querySelectorAll(".flips")) {
    const cards = [...panel.querySelectorAll(".flip")].map((node) => ({ node, change: node.dataset.change, words: node.textContent.toLowerCase() }));
    const make = (name, attributes, parent) => parent.appendChild(Object.assign(document.createElement(name), attributes));
    const bar = document.createElement("div");
    bar.className = "finder";
    const search = make("input", { type: "search", placeholder: "Filter by words or entry", ariaLabel: "Filter questions by words or entry" }, bar);
    const switches = ["all", "lost", "gained"].map((name) => make("button", { type: "button", textContent: name }, bar));
    const shown = make("span", { role: "status" }, bar);
    panel.prepend(bar);
    const more = make("button", { type: "button" }, panel);
    let change = "all";
    let limit = LIMIT;

    const show = () => {
      const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let found = 0;
      for (const card of cards) {
        const match = (change === "all" || card.change === change) && wanted.every((word) => card.words.includes(word));
        found += match;
        card.node.hidden = !match || found > limit;
      }
      const visible = Math.min(found, limit);
      shown.textContent = `${visible < found ? `${visible} of ` : ""}${found} question${found === 1 ? "" : "s"}`;
      more.hidden = visible === found;
      more.textContent = `Show all ${found}`;
      for (const button of switches) button.setAttribute("aria-pressed", String(button.textContent === change));
    };

    search.addEventListener("input", show);
    for (const button of switches) button.addEventListener("click", () => ((change = button.textContent), show()));
    more.addEventListener("click", () => ((limit = Infinity), show()));
    show();
  }
})();
