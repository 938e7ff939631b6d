// Refreshes the page's regions in place, draws the charts, and adds keys. The page reads well without it.
"use strict";
(() => {
  const EVERY_MS = 5000, SLOW_MS = 60000;
  const live = () => document.getElementById("live");
  const plots = new Map();
  let wait = EVERY_MS;

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (c) => css(typeof c === "number" ? `--c${c}` : `--${c}`) || css("--c0");

  // ---- charts

  function drawAll() {
    for (const figure of document.querySelectorAll("[data-chart]")) draw(figure);
  }

  function draw(figure) {
    const data = JSON.parse(figure.dataset.chart), box = figure.querySelector(".plot");
    if (!window.uPlot || data.at_s.length < 2) return;
    const stacked = figure.id === "chart-gpus";
    const series = data.series.map((s) => ({
      label: s.name, stroke: colour(s.colour), width: 1.5, spanGaps: false, paths: stacked ? uPlot.paths.stepped({ align: 1 }) : undefined,
      dash: s.colour === "waiting" ? [4, 3] : undefined,
      value: (u, v) => (v === null || v === undefined ? "" : String(Math.round(v * 100) / 100)),
    }));
    const line = data.line === null ? [] : [{ label: data.line ? "an equal share" : "due now", value: () => "", stroke: css("--muted"), dash: [2, 4], width: 1, points: { show: false } }];
    const rows = [data.at_s, ...data.series.map((s) => s.values), ...line.map(() => data.at_s.map(() => data.line))];
    const brief = data.at_s.at(-1) - data.at_s[0] < 900 ? { second: "2-digit" } : {};
    const clock = (t) => new Date(t * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...brief });
    const axis = { stroke: css("--muted"), grid: { stroke: css("--edge"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    plots.get(figure.id)?.destroy();
    box.replaceChildren();
    plots.set(figure.id, new uPlot({
      width: Math.max(200, box.clientWidth), height: 180, padding: [8, 16, 0, 0],
      series: [{ value: (u, t) => (t ? clock(t) : "") }, ...series, ...line],
      axes: [{ ...axis, values: (u, times) => times.map(clock) }, { ...axis, size: 44 }], cursor: { drag: { x: true, y: false } },
      scales: { y: { range: (u, low, high) => (stacked ? [0, Math.min(Math.max(1, high), data.most) * 1.05] : [Math.min(0, low), Math.max(data.line ?? 0, high) * 1.05 || 1]) } },
      legend: { live: true },
    }, rows, box));
    figure.querySelector(".legend")?.remove();
    figure.classList.add("drawn");
  }

  function fit() {
    for (const [id, plot] of plots) {
      const box = document.getElementById(id)?.querySelector(".plot");
      if (box) plot.setSize({ width: Math.max(200, box.clientWidth), height: 180 });
    }
  }

  // ---- regions

  async function refresh() {
    try {
      const reply = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
      if (!reply.ok) throw new Error(reply.status === 503 ? "the control plane is away" : `HTTP ${reply.status}`);
      const fresh = new DOMParser().parseFromString(await reply.text(), "text/html");
      for (const region of document.querySelectorAll("[data-live]")) {
        const next = fresh.querySelector(`[data-live="${region.dataset.live}"]`);
        if (next) put(region, next);
      }
      for (const next of fresh.querySelectorAll("section[data-live]")) {
        if (!document.querySelector(`[data-live="${next.dataset.live}"]`)) document.querySelector(".grid").append(next);
      }
      wait = EVERY_MS;
      say("");
    } catch (e) {
      wait = Math.min(SLOW_MS, wait * 2);
      say(`Not up to date: ${e.message}. Trying again in ${Math.round(wait / 1000)} s.`);
    }
    setTimeout(tick, wait);
  }

  function put(region, next) {
    if (region.source === undefined) region.source = "";
    if (region.source === next.innerHTML) return;
    if (region.contains(document.activeElement) && document.activeElement.matches("input, select")) return;
    if (region.matches(":hover") && window.getSelection().toString()) return;
    const open = [...region.querySelectorAll("details[open]")].map((d) => d.id);
    const focused = region.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    region.source = next.innerHTML;
    region.replaceChildren(...next.cloneNode(true).childNodes);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    if (focused) region.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    for (const figure of region.querySelectorAll("[data-chart]")) draw(figure);
  }

  function say(text) {
    if (live()) live().textContent = text;
    document.body.classList.toggle("stale", text !== "");
  }

  function tick() {
    if (document.hidden) document.addEventListener("visibilitychange", tick, { once: true });
    else refresh();
  }

  // ---- keys

  function step(by) {
    const rows = [...document.querySelectorAll("a.row")];
    const at = rows.indexOf(document.activeElement);
    rows[Math.min(rows.length - 1, Math.max(0, at + by))]?.focus();
  }

  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.matches("input, select, textarea")) return;
    if (e.key === "/") { document.getElementById("q")?.focus(); e.preventDefault(); }
    else if (e.key === "j") step(1);
    else if (e.key === "k") step(-1);
    else if (e.key === "u" && document.querySelector(".grid.app")) location.assign(document.querySelector(".brand").href);
  });

  document.querySelector(".filter select")?.addEventListener("change", (e) => e.target.form.submit());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("resize", fit);
  drawAll();
  setTimeout(tick, wait);
})();
