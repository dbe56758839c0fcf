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
