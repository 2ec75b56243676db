"use strict";
(() => {
  const ratio = (y) => Number(y.toPrecision(3)) + "×";
  const show = () => {
    for (const place of document.querySelectorAll(".chart[data-plot]")) {
      const curves = JSON.parse(place.dataset.plot);
      const sizes = [...new Set(curves.flatMap((curve) => curve.points.map(([size]) => size)))].sort((a, b) => a - b);
      ampchart.draw(place, {
        label: place.dataset.label,
        series: curves.map((curve) => ({
          name: curve.name,
          color: curve.color,
          dashed: curve.name.endsWith("-aa"),
          points: curve.points.map(([size, speed]) => [size, speed, `${curve.name} at ${size}: ${ratio(speed)}`]),
        })),
        bands: curves.map((curve) => ({ color: curve.color, points: curve.points.filter((point) => point[2] && point[3]).map(([size, , low, high]) => [size, low, high]) })),
        xTicks: sizes.map((size) => [size, String(size)]),
        xLog: true,
        one: true,
        format: ratio,
      });
    }
  };
  ampchart.onResize(show);
  show();
})();
