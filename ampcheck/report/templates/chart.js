"use strict";
// Line charts by uPlot: hover tells values, dragging zooms, a double click or Escape shows all, arrow keys move the cursor.
window.chart = (() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // place: the element to fill. xs: the values of the horizontal axis. lines: { name, color, dashed, hollow, y: [], low: [], high: [] },
  // bands where a line has low and high. of: what the horizontal axis has. marks: { at, kind }, vertical lines. label: from a value of the axis to its text.
  const draw = (place, { xs, of, lines, marks = [], label, format, xLog = false, one = false }) => {
    const muted = css("--muted");
    const grid = { stroke: css("--line"), width: 1 };
    const axis = { stroke: muted, grid, ticks: grid, font: "11px system-ui, sans-serif" };
    const series = [{ label: of, value: (_, x) => (x === null ? "–" : label(x)) }];
    const data = [xs];
    const bands = [];
    const value = (_, y) => (y === null || y === undefined ? "–" : format(y));
    for (const line of lines) {
      const color = css(`--a${line.color}`);
      const few = xs.length <= 40;
      const points = { show: few || Boolean(line.hollow), size: 6, fill: line.hollow ? css("--bg") : color };
      series.push({ label: line.name, stroke: color, width: line.hollow ? 0 : 1.6, dash: line.dashed ? [3, 3] : undefined, points, spanGaps: true, value });
      data.push(line.y);
      if (!line.low) continue;
      for (const edge of [line.high, line.low]) {
        series.push({ label: "", stroke: "transparent", width: 0, points: { show: false }, spanGaps: true, class: "edge" });
        data.push(edge);
      }
      bands.push({ series: [series.length - 2, series.length - 1], fill: color + "28" });
    }
    const all = data.slice(1).flatMap((column) => column.filter((y) => y > 0));
    let [low, high] = [Math.min(...all), Math.max(...all)];
    if (!all.length) [low, high] = [0.5, 2];
    if (one) [low, high] = [Math.min(low, 1), Math.max(high, 1)];
    const pad = Math.max(1.03, (high / low) ** 0.05);
    const across = (u) => {
      const { ctx, bbox } = u;
      ctx.save();
      ctx.lineWidth = devicePixelRatio;
      const upright = (x, color, dash) => {
        const at = Math.round(u.valToPos(x, "x", true));
        ctx.strokeStyle = color; ctx.setLineDash(dash);
        ctx.beginPath(); ctx.moveTo(at, bbox.top); ctx.lineTo(at, bbox.top + bbox.height); ctx.stroke();
      };
      for (const mark of marks) upright(mark.at, mark.kind === "moved" ? muted : css(mark.kind === "faster" ? "--pass-fg" : "--fail-fg"), mark.kind === "moved" ? [2, 4] : []);
      if (one) {
        const at = Math.round(u.valToPos(1, "y", true));
        ctx.strokeStyle = muted; ctx.setLineDash([5, 4]);
        ctx.beginPath(); ctx.moveTo(bbox.left, at); ctx.lineTo(bbox.left + bbox.width, at); ctx.stroke();
      }
      ctx.restore();
    };
    // Round numbers: steps of one size on a short axis, else powers of ten and, where they have room, 2 and 5 times these.
    const rounds = (_, __, from, to) => {
      const decades = Math.log10(to / from);
      const power = 10 ** Math.floor(Math.log10((to - from) / 4));
      const step = power * [2, 5, 10].find((n) => n * power * 4 >= to - from);
      const leads = decades > 2.5 ? [1] : [1, 2, 5];
      const first = Math.floor(decades < 0.7 ? from / step : Math.log10(from));
      const all = Array.from({ length: 12 }, (_, i) => (decades < 0.7 ? [(first + i) * step] : leads.map((n) => n * 10 ** (first + i))));
      return all.flat().filter((y) => y >= from && y <= to);
    };
    const ticks = (_, __, from, to) => (xs.length > 12 ? xs.filter((x, i) => x >= from && x <= to && i % Math.ceil(xs.length / 7) === 0) : xs.filter((x) => x >= from && x <= to));
    place.replaceChildren();
    const plot = new uPlot({
      padding: [null, 34, null, null], width: Math.max(260, place.clientWidth), height: place.clientWidth < 500 ? 190 : 230,
      scales: { x: { time: false, distr: xLog ? 3 : 1 }, y: { distr: 3, log: high / low > 30 ? 10 : 2, range: () => [low / pad, high * pad] } },
      series, bands,
      axes: [{ ...axis, splits: ticks, values: (_, shown) => shown.map(label), space: 60 }, { ...axis, size: 62, splits: rounds, filter: (_, all) => all, values: (_, shown) => shown.map((y) => (y === null ? "" : format(y))) }],
      hooks: { draw: [across] },
      cursor: { drag: { x: true, y: false } },
    }, data, place);
    place.onkeydown = (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") plot.setScale("x", { min: xs[0], max: xs.at(-1) });
      if (!step) return;
      event.preventDefault();
      const next = Math.min(xs.length - 1, Math.max(0, (plot.cursor.idx ?? (step > 0 ? -1 : xs.length)) + step));
      plot.setCursor({ left: plot.valToPos(xs[next], "x"), top: 10 });
    };
    return plot;
  };
  // Draws again when the window's width or the colours change.
  const again = (render) => {
    let width = innerWidth;
    window.addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; render(); } });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
  };
  return { draw, again };
})();
