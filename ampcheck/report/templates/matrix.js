"use strict";
(() => {
  const A = window.ampcheck;
  const { data, words, columns, el } = A;
  const form = document.getElementById("filters");
  const matrix = document.getElementById("matrix");
  const more = document.getElementById("more");
  const FIELDS = ["suite", "rule", "area", "op", "device", "compiler", "amp", "deviation", "cause"];
  const FIRST_ROWS = 200;
  const scenarios = new Set(data.scenarios);
  const MOST_CASES = 1000;
  const order = data.statuses.map((_, s) => s).sort((a, b) => data.statuses[b].red - data.statuses[a].red || a - b);
  // A column is a device, and where one runs a program in several ways, a compiler on it.
  const columnOf = (i) => columns.device[i] * words.compiler.length + columns.compiler[i];
  const deviceOf = (column) => words.device[Math.floor(column / words.compiler.length)];
  const compilerOf = (column) => words.compiler[column % words.compiler.length];
  // Real devices come first, each kind as the run had them, then what only an earlier run had.
  const names = [...(data.runs.length ? data.runs[0].devices : []), ...words.device];
  const place = (column) => A.isVirtual(deviceOf(column)) * names.length + names.indexOf(deviceOf(column));
  let lowered = null;
  let open = new Set();
  let rowsShown = FIRST_ROWS;

  const option = (value, label) => el("option", { value }, label);
  const fill = (name, options) => form.elements[name].append(...options);
  for (const name of FIELDS) {
    const parts = name === "deviation" ? words[name].flatMap((text) => text.split(", ")) : words[name];
    const texts = [...new Set(parts)].filter(Boolean).sort();
    fill(name, [option("", "any"), ...texts.map((text) => option(text, text.length > 120 ? text.slice(0, 119) + "…" : text))]);
  }
  fill("status", [option("", "any"), option("red", "red, any"), ...data.statuses.map((s) => option(s.name, s.label))]);
  fill("run", data.runs.map((run, n) => option(n ? run.name : "", (n ? "" : "newest: ") + A.runLabel(run))));

  const matching = (run) => {
    const status = A.statuses(run);
    const wanted = FIELDS.map((name) => [columns[name], form.elements[name].value, words[name]])
      .filter(([, value]) => value)
      .map(([column, value, texts]) => [column, texts.map((text) => text.split(", ").includes(value))]);
    const name = form.elements.status.value;
    const allowed = data.statuses.map((s) => !name || s.name === name || (name === "red" && s.red));
    const parts = form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (parts.length && !lowered) {
      lowered = Array.from({ length: data.count }, (_, i) => (A.key(i) + " " + A.text("device", i)).toLowerCase());
    }
    const found = [];
    for (let i = 0; i < data.count; i++) {
      if (status[i] < 0 || !allowed[status[i]]) continue;
      if (wanted.every(([column, is]) => is[column[i]]) && parts.every((part) => lowered[i].includes(part))) {
        found.push(i);
      }
    }
    return found;
  };

  const cell = (cases, status) => {
    const counts = new Array(data.statuses.length).fill(0);
    for (const i of cases) counts[status[i]] += 1;
    const chips = order.filter((s) => counts[s]).map((s) => A.chip(data.statuses[s], A.number(counts[s])));
    return el("td", {}, ...(chips.length ? chips : [el("span", { class: "none", title: "no case" }, "–")]));
  };

  const casesOf = (row, devices, status) => {
    const lines = new Map();
    for (const i of row.cases) {
      const about = ["suite", "rule", "sample", "inputs", "amp"].map((name) => A.text(name, i));
      const name = about.join(" ");
      if (!lines.has(name)) lines.set(name, { about, at: new Map() });
      lines.get(name).at.set(columnOf(i), i);
    }
    const shown = [...lines.values()].slice(0, MOST_CASES).map(({ about, at }) =>
      el(
        "tr",
        {},
        el("th", { scope: "row", class: "key" }, about[3] || "–"),
        el("td", {}, about[4]),
        el("td", {}, about[2]),
        el("td", {}, about[0] + "/" + about[1]),
        ...devices.map((device) => {
          const i = at.get(device);
          return el("td", {}, i === undefined ? "" : A.chip(data.statuses[status[i]], "", A.caseHref(i)));
        }),
      ),
    );
    const left = lines.size - shown.length;
    const headings = ["inputs", "region", "sample", "suite/rule", ...devices.map((column) => [deviceOf(column), compilerOf(column)].filter(Boolean).join(" "))];
    return [A.table("", headings, shown), left ? el("p", {}, `${A.number(left)} more lines; narrow the filters.`) : ""];
  };

  const rowNodes = (row, devices, status) => {
    const op = words.op[row.op];
    const expanded = open.has(op);
    const rules = [...row.rules].map((rule) => words.rule[rule]).join(", ");
    const button = el("button", { type: "button", "aria-expanded": String(expanded), "data-op": op }, op);
    const cells = devices.map((device) => cell(row.at.get(device) || [], status));
    const line = el("tr", {}, el("th", { scope: "row", class: "op" }, button, el("span", { class: "rules" }, rules)), ...cells);
    if (!expanded) return [line];
    return [line, el("tr", {}, el("td", { class: "open", colspan: devices.length + 1 }, ...casesOf(row, devices.filter((device) => row.at.has(device)), status)))];
  };

  // A kind of rows has the columns in which one of them has a case.
  const tableOf = (title, those, first, status) => {
    const used = new Set(those.flatMap((row) => [...row.at.keys()]));
    const devices = [...used].sort((a, b) => place(a) - place(b) || (compilerOf(a) < compilerOf(b) ? -1 : 1));
    const headings = devices.map((device) => {
      const name = deviceOf(device);
      const compiler = compilerOf(device);
      return el("th", { scope: "col" }, name, ...(compiler ? [el("br"), compiler] : []), ...(A.isVirtual(name) ? [el("br"), "dtypes and casts only"] : []));
    });
    return el(
      "table",
      { class: "matrix" },
      el("caption", { class: "vh" }, "Cases on each device, counted by status; a row opens to its cases"),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, title.split(":")[0].replace(/s$/, "").toLowerCase()), ...headings)),
      el("tbody", {}, ...first.flatMap((row) => rowNodes(row, devices, status))),
    );
  };

  const render = () => {
    performance.mark("matrix-start");
    const run = Math.max(0, A.runNumber(form.elements.run.value));
    const status = A.statuses(run);
    const found = matching(run);
    const rows = new Map();
    let reds = 0;
    for (const i of found) {
      const op = columns.op[i];
      if (!rows.has(op)) rows.set(op, { op, cases: [], at: new Map(), rules: new Set(), red: 0 });
      const row = rows.get(op);
      const device = columnOf(i);
      row.cases.push(i);
      row.rules.add(columns.rule[i]);
      if (!row.at.has(device)) row.at.set(device, []);
      row.at.get(device).push(i);
      if (data.statuses[status[i]].red) reds += ++row.red ? 1 : 0;
    }
    // Private overloads are beside the public ones they serve.
    const plain = (row) => words.op[row.op].replace(/^_+/, "").toLowerCase();
    const byName = (a, b) => (plain(a) < plain(b) ? -1 : 1);
    const redFirst = !form.elements.sort.value;
    const all = [...rows.values()].sort((a, b) => (redFirst && b.red - a.red) || byName(a, b));
    const kinds = [
      ["Ops", all.filter((row) => !scenarios.has(row.op))],
      ["Scenarios: programs of several calls, by the name of their test", all.filter((row) => scenarios.has(row.op))],
    ].filter(([, those]) => those.length);
    let shown = 0;
    matrix.replaceChildren(...kinds.flatMap(([title, those]) => {
      const first = those.slice(0, rowsShown);
      shown += first.length;
      return [el("h2", {}, title), A.box(title, tableOf(title, those, first, status))];
    }));
    more.hidden = shown === all.length;
    more.textContent = `Show the other ${A.number(all.length - shown)} rows`;
    const cut = data.runs[run].unfinished ? ` Incomplete: ${data.runs[run].unfinished}.` : "";
    const unknown = form.elements.run.value && A.runNumber(form.elements.run.value) < 0 ? " The linked run is not here; this is the newest." : "";
    document.getElementById("summary").textContent =
      `${A.number(found.length)} cases in ${A.number(all.length)} rows, ${A.number(reds)} of them red.${cut}${unknown}`;
    performance.measure("matrix", "matrix-start");
  };

  matrix.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-op]");
    if (!button) return;
    const op = button.dataset.op;
    if (!open.delete(op)) open.add(op);
    write();
    render();
    [...matrix.querySelectorAll("button[data-op]")].find((other) => other.dataset.op === op)?.focus();
  });
  more.addEventListener("click", () => { rowsShown = Infinity; render(); });
  const write = A.filters(
    form,
    (byReader) => {
      if (!byReader) open = new Set(A.address().getAll("open"));
      rowsShown = FIRST_ROWS;
      render();
    },
    () => [...open].map((op) => ["open", op]),
  );
})();
