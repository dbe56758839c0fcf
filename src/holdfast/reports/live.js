// Follows a page that changes: asks its server for the parts that are new since the last answer and puts them in. What is
// there and still holds stays as it is, so that nothing jumps, no focus is lost and what was opened stays open.
(async () => {
  "use strict";
  const page = document.getElementById("live");
  const [pause, state] = document.querySelector(".live").children;
  const { draw } = await window.holdfast;
  const HIDDEN = 15000; // ms between two looks of a page that nobody sees
  const LONGEST = 20000; // ms between two tries while the server does not answer
  let version = "";
  let paused = false;
  let failed = 0;
  let timer;

  const NAMED = "h1, h2, h3, summary, th, dt, .label, .name";
  const key = (node) => (node.nodeType === 1 ? `${node.nodeName} ${node.id || (node.querySelector(NAMED)?.textContent ?? "")}` : node.nodeName);

  const attributes = (old, fresh) => {
    const own = (name) => name === "open" && old.nodeName === "DETAILS"; // the reader's
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !own(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value && !own(name)) old.setAttribute(name, value);
  };

  // Makes `old` what `fresh` is, with as little change as possible.
  const turn = (old, fresh) => {
    if (old.nodeType !== 1) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.classList.contains("plot")) {
      for (const name of ["data-figure", "aria-label", "style"]) if (old.getAttribute(name) !== fresh.getAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
      return; // plotly's inside
    }
    attributes(old, fresh);
    const left = [...old.childNodes];
    let place = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const wanted = key(child);
      const found = left.findIndex((node) => key(node) === wanted);
      const node = found < 0 ? child : left.splice(found, 1)[0];
      if (node === place) place = place.nextSibling;
      else old.insertBefore(node, place);
      if (node !== child) turn(node, child);
    }
    for (const node of left) node.remove();
  };

  const put = (number, { html, figures }) => {
    const fresh = document.createElement("div");
    fresh.className = "part";
    fresh.innerHTML = html;
    while (page.children.length <= number) page.append(Object.assign(document.createElement("div"), { className: "part" }));
    const part = page.children[number];
    turn(part, fresh);
    const boxes = [...part.querySelectorAll(".plot[data-figure]")].filter((box) => {
      const figure = figures[Number(box.dataset.figure)];
      const text = JSON.stringify(figure);
      if (box.drawn === text) return false;
      box.drawn = text;
      box.figure = { ...figure, layout: { ...figure.layout, uirevision: "kept" } }; // where the reader zoomed in stays
      return true;
    });
    draw(boxes);
  };

  const look = async () => {
    clearTimeout(timer);
    let wait = LONGEST;
    try {
      const answer = await fetch(`changes?since=${encodeURIComponent(version)}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(`${answer.status}`);
      const found = await answer.json();
      for (const [number, part] of Object.entries(found.parts)) put(Number(number), part);
      while (page.children.length > found.count) page.lastChild.remove();
      if (document.title !== found.tab) document.title = found.tab;
      version = found.version;
      failed = 0;
      wait = 1000 * found.seconds;
      if (!paused) state.textContent = found.over ? "Ended; this page looks for a continuation" : "Live";
    } catch {
      failed += 1;
      wait = Math.min(LONGEST, 1000 * 2 ** Math.min(failed, 5));
      state.textContent = "No answer from holdfast watch; this page shows what came last";
    }
    state.parentElement.dataset.state = failed ? "lost" : paused ? "paused" : "live";
    if (!paused) timer = setTimeout(look, document.hidden ? Math.max(wait, HIDDEN) : wait);
  };

  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    state.textContent = paused ? "Paused" : "Live";
    state.parentElement.dataset.state = paused ? "paused" : "live";
    if (paused) clearTimeout(timer);
    else look();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !paused) look();
  });
  look();
})();
