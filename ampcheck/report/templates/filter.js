"use strict";
// Hides the rows of a page that the form's filters do not match; the address holds what is chosen.
(() => {
  const form = document.getElementById("filters");
  if (!form) return;
  const rows = [...document.querySelectorAll(".row")].map((node) => ({ node, data: node.dataset }));
  const summary = document.getElementById("summary");
  const plain = new Set(JSON.parse(document.getElementById("plain-ops")?.textContent || "[]"));
  const FEW = 3;

  const apply = () => {
    performance.mark("filter-start");
    const typed = form.elements.q.value.toLowerCase().trim();
    const words = typed.split(/\s+/).filter(Boolean);
    const wanted = [...form.elements].filter((field) => field.tagName === "SELECT" && field.value);
    const found = rows.filter(({ data }) =>
      words.every((word) => data.text.includes(word)) && wanted.every((field) => (data[field.name.toLowerCase()] || "").split(" ").includes(field.value)));
    const shown = new Set(found);
    for (const row of rows) row.node.hidden = !shown.has(row);
    // What was asked for by its name, or is one of few, needs no further click.
    const asked = (row) => row.node.id === typed || row.data.text.split(" ").includes(typed) || found.length <= FEW;
    if (typed) for (const row of found) if (row.node.tagName === "DETAILS") row.node.open = asked(row) && found.filter(asked).length <= FEW;
    for (const section of document.querySelectorAll("section")) {
      if (section.querySelector(".row")) section.hidden = !section.querySelector(".row:not([hidden])");
    }
    summary.textContent = `${found.length} of ${rows.length} ${summary.dataset.what}.`;
    const place = document.getElementById("plain");
    if (place) {
      const op = typed.split(".").at(-1);
      place.hidden = !plain.has(op);
      place.firstElementChild.textContent = op;
    }
    performance.measure("filter", "filter-start");
  };
  window.page.filters(form, apply);
  const target = () => {
    const node = !location.hash.includes("=") && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (node && node.tagName === "DETAILS") { node.open = true; node.scrollIntoView(); }
  };
  window.addEventListener("hashchange", target);
  target();
})();
