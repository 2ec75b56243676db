"use strict";
// Line charts as SVG: series in their variant's colour, bands, vertical marks. Axes are logarithmic where told so.
window.ampchart = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const svg = (tag, attributes, text) => {
    const node = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes || {})) if (value !== undefined) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  // Round numbers between two, about `count` of them, at equal distances on a linear axis or equal ratios on a log one.
  const ticks = (low, high, count, log) => {
    if (log && high / low > 3) {
      const out = [];
      const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
      const steps = last - first > 4 ? [1] : last - first > 1 ? [1, 3] : [1, 2, 5];
      for (let power = first; power <= last; power++) out.push(...steps.map((step) => step * 10 ** power));
      return out.filter((tick) => tick >= low && tick <= high);
    }
    const rough = (high - low) / count;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= rough);
    const out = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high * (1 + 1e-12); tick += step) out.push(Number(tick.toPrecision(12)));
    return out;
  };

  // place: the element to fill. series: { name, color, points: [[x, y, title]], dashed, hollow: [[x, y, title]] }.
  // bands: { color, points: [[x, low, high]] }. marks: { x, text, kind }. xTicks: [[x, text]].
  const draw = (place, { label, series, bands = [], marks = [], xTicks, xLog = false, format, one = false, range }) => {
    const width = Math.max(280, place.clientWidth || 600);
    const height = width < 500 ? 190 : 230;
    const [left, right, top, bottom] = [62, 10, 14, 24];
    const all = series.flatMap((s) => [...s.points, ...(s.hollow || [])]);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    if (!all.length) {
      root.append(svg("text", { x: left, y: height / 2 }, "No valid number."));
      place.replaceChildren(root);
      return;
    }
    const xs = range || [Math.min(...all.map((p) => p[0])), Math.max(...all.map((p) => p[0]))];
    let low = Infinity;
    let high = 0;
    for (const [, y] of all) { if (y < low) low = y; if (y > high) high = y; }
    for (const band of bands) for (const [, bottomY, topY] of band.points) { if (bottomY < low) low = bottomY; if (topY > high) high = topY; }
    if (one) { low = Math.min(low, 1); high = Math.max(high, 1); }
    if (high / low < 1.1) { low /= 1.05; high *= 1.05; }
    const pad = (high / low) ** 0.04;
    low /= pad; high *= pad;
    const along = (x) => (xLog ? Math.log(x) : x);
    const [x0, x1] = xs.map(along);
    const X = (x) => left + (x1 === x0 ? 0.5 : (along(x) - x0) / (x1 - x0)) * (width - left - right);
    const Y = (y) => height - bottom - (Math.log(y / low) / Math.log(high / low)) * (height - top - bottom);
    const at = (x, y) => X(x).toFixed(1) + " " + Y(y).toFixed(1);

    for (const tick of ticks(low, high, 4, true)) {
      root.append(svg("line", { class: "gridline", x1: left, x2: width - right, y1: Y(tick), y2: Y(tick) }));
      root.append(svg("text", { x: left - 5, y: Y(tick) + 4, "text-anchor": "end" }, format(tick)));
    }
    let free = -Infinity;
    for (const [x, text] of xTicks) {
      const half = text.length * 3.2;
      const middle = Math.min(Math.max(X(x), left + half - 8), width - right - half);
      if (middle - half < free) continue;
      free = middle + half + 8;
      root.append(svg("text", { x: middle, y: height - 7, "text-anchor": "middle" }, text));
      root.append(svg("line", { class: "gridline", x1: X(x), x2: X(x), y1: height - bottom, y2: height - bottom + 4 }));
    }
    root.append(svg("rect", { class: "frame", x: left, y: top, width: width - left - right, height: height - top - bottom }));
    if (one) root.append(svg("line", { class: "one", x1: left, x2: width - right, y1: Y(1), y2: Y(1) }));
    for (const band of bands) {
      const up = band.points.map(([x, , y]) => at(x, y));
      const down = band.points.map(([x, y]) => at(x, y)).reverse();
      if (up.length) root.append(svg("path", { d: "M" + [...up, ...down].join("L") + "Z", style: `fill: var(--a${band.color}); opacity: .16` }));
    }
    for (const mark of marks) {
      const line = svg("line", { class: mark.kind, x1: X(mark.x), x2: X(mark.x), y1: top, y2: height - bottom });
      line.append(svg("title", {}, mark.text));
      root.append(line);
    }
    for (const s of series) {
      const style = `stroke: var(--a${s.color}); fill: none; stroke-width: 1.6; stroke-linejoin: round` + (s.dashed ? "; stroke-dasharray: 2 3" : "");
      if (s.points.length > 1) root.append(svg("path", { d: "M" + s.points.map(([x, y]) => at(x, y)).join("L"), style }));
      const dots = s.points.length <= 40 ? s.points : s.points.slice(-1);
      for (const [points, fill] of [[dots, `var(--a${s.color})`], [s.hollow || [], "none"]]) {
        for (const [x, y, title] of points) {
          const dot = svg("circle", { cx: X(x).toFixed(1), cy: Y(y).toFixed(1), r: 2.8, style: `fill: ${fill}; stroke: var(--a${s.color})` });
          dot.append(svg("title", {}, title || s.name));
          root.append(dot);
        }
      }
    }
    place.replaceChildren(root);
  };
  // Draws again when the window's width changes.
  const onResize = (again) => {
    let width = innerWidth;
    let waiting = 0;
    window.addEventListener("resize", () => {
      if (innerWidth === width) return;
      width = innerWidth;
      clearTimeout(waiting);
      waiting = setTimeout(again, 100);
    });
  };
  return { draw, onResize };
})();
