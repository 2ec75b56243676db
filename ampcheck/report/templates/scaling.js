"use strict";
// Speed over size, drawn when its details are opened.
(() => {
  const ratio = (y) => Number(y.toPrecision(3)) + "×";
  const draw = (place) => {
    const curves = JSON.parse(place.dataset.plot);
    const xs = [...new Set(curves.flatMap((curve) => curve.points.map(([size]) => size)))].sort((a, b) => a - b);
    const lines = curves.filter((curve) => curve.points.length).map((curve) => {
      const at = new Map(curve.points.map((point) => [point[0], point]));
      const column = (k) => xs.map((x) => at.get(x)?.[k] ?? null);
      return { name: curve.name, color: curve.color, y: column(1), low: column(2), high: column(3) };
    });
    chart.draw(place, { xs, of: "size", lines, label: String, format: ratio, xLog: true, one: true });
  };
  const show = () => { for (const place of document.querySelectorAll("details[open] > .chart[data-plot]")) draw(place); };
  for (const details of document.querySelectorAll("details.card")) details.addEventListener("toggle", show);
  chart.again(show);
  show();
})();
