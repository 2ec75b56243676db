"use strict";
// Hides the rows of a page that the form's filters do not match; the address holds what is chosen.
(() => {
  const form = document.getElementById("filters");
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  });
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
  const read = () => {
    const wanted = new URLSearchParams(location.hash.slice(1));
    for (const field of form.elements) {
      if (!field.name) continue;
      const value = wanted.get(field.name) || "";
      if (field.tagName === "SELECT" && ![...field.options].some((option) => option.value === value)) {
        field.append(new Option(value, value)); // a link to what this site does not have must say so, not show all
      }
      field.value = value;
    }
    apply();
  };
  const write = () => {
    const parameters = new URLSearchParams();
    for (const field of form.elements) if (field.name && field.value) parameters.set(field.name, field.value);
    const hash = parameters.toString();
    history.replaceState(null, "", location.pathname + location.search + (hash ? "#" + hash : ""));
  };
  form.addEventListener("input", () => { write(); apply(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    history.replaceState(null, "", location.pathname + location.search);
    read();
  });
  window.addEventListener("hashchange", () => { if (location.hash.includes("=") || !location.hash) read(); });
  read();
})();
