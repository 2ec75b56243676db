"use strict";
// Hides the rows of a page that the form's filters do not match; the address holds what is chosen.
(() => {
  const form = document.getElementById("filters");
  if (!form) return;
  const rows = [...document.querySelectorAll(".row")].map((node) => ({ node, ...node.dataset }));
  const summary = document.getElementById("summary");

  const apply = () => {
    performance.mark("filter-start");
    const words = form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = [...form.elements].filter((field) => field.tagName === "SELECT" && field.value);
    let shown = 0;
    for (const row of rows) {
      const fits =
        words.every((word) => row.text.includes(word)) &&
        wanted.every((field) => (field.name === "verdict" ? row.verdict.split(" ").includes(field.value) : row[field.name] === field.value));
      if (row.node.hidden === fits) row.node.hidden = !fits;
      shown += fits;
    }
    summary.textContent = `${shown} of ${rows.length} ${summary.dataset.what}.`;
    performance.measure("filter", "filter-start");
  };
  window.page.filters(form, apply);
})();
