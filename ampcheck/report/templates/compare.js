"use strict";
(() => {
  const A = window.ampcheck;
  const { data, el } = A;
  const form = document.getElementById("pick");
  const place = document.getElementById("comparison");
  const SHOWN = 200;
  const GROUPS = [
    ["regressed", "not red before, red now"],
    ["fixed", "red before, not red now"],
    ["changed", "another status, as red as before"],
    ["removed", "only in the earlier run"],
    ["added", "only in the later run"],
  ];

  // As ampcheck/runner/compare.py sorts them; the tests hold the two against each other.
  const sorted = (a, b) => {
    const before = A.statuses(a);
    const after = A.statuses(b);
    const groups = Object.fromEntries(GROUPS.map(([name]) => [name, []]));
    let common = 0;
    let unchanged = 0;
    for (let i = 0; i < data.count; i++) {
      const [was, is] = [before[i], after[i]];
      if (was < 0 && is < 0) continue;
      if (was < 0) groups.added.push(i);
      else if (is < 0) groups.removed.push(i);
      else {
        common += 1;
        const [wasRed, isRed] = [data.statuses[was].red, data.statuses[is].red];
        if (wasRed !== isRed) groups[isRed ? "regressed" : "fixed"].push(i);
        else if (was !== is) groups.changed.push(i);
        else unchanged += 1;
      }
    }
    return { groups, common, unchanged };
  };

  const list = (name, meaning, cases, a, b) => {
    const shownAs = (status) => (status < 0 ? el("span", { class: "none" }, "absent") : A.chip(data.statuses[status]));
    const line = (i) =>
      el(
        "tr",
        {},
        el("th", { scope: "row", class: "key" }, el("a", { href: A.caseHref(i) }, A.key(i))),
        el("td", {}, shownAs(A.statuses(a)[i])),
        el("td", {}, shownAs(A.statuses(b)[i])),
      );
    return [
      el("h2", { id: name }, `${A.number(cases.length)} ${name}`),
      el("p", { class: "note" }, meaning + "."),
      ...A.list(name, ["case", "earlier", "later"], cases, SHOWN, line),
    ];
  };

  const render = (missing) => {
    const [a, b] = ["a", "b"].map((name) => A.runNumber(form.elements[name].value));
    const [earlier, later] = [data.runs[a], data.runs[b]];
    const { groups, common, unchanged } = sorted(a, b);
    const notes = missing.map((name) => `The linked run ${name} is not here, so another one is shown.`);
    for (const [run, what] of [[earlier, "earlier"], [later, "later"]]) {
      if (run.interrupted) notes.push(`The ${what} run was interrupted (${run.note}): cases it lacks may only not have run.`);
    }
    for (const [run, other, what] of [[earlier, later, "earlier"], [later, earlier, "later"]]) {
      const only = run.devices.filter((device) => !other.devices.includes(device));
      if (only.length) notes.push(`Only the ${what} run has ${only.join(", ")}.`);
    }
    if (earlier.torch !== later.torch) notes.push(`torch went from ${earlier.torch} to ${later.torch}.`);
    if (a === b) notes.push("Both sides are the same run.");
    const parts = notes.map((note) => el("p", { class: "note" }, note));
    if (!common) {
      place.replaceChildren(...parts, el("p", { class: "state grey" }, "These runs have no case in common, so they cannot be compared."));
      return;
    }
    const flips = GROUPS.filter(([name]) => groups[name].length);
    const counts = GROUPS.map(([name]) => `${A.number(groups[name].length)} ${name}`).join(", ");
    place.replaceChildren(
      el("p", { id: "counts" }, `${A.number(common)} common cases, ${A.number(unchanged)} unchanged: ${counts}.`),
      ...parts,
      ...flips.flatMap(([name, meaning]) => list(name, meaning, groups[name], a, b)),
    );
  };
  const usual = { a: data.runs[Math.min(1, data.runs.length - 1)].name, b: data.runs[0].name };
  A.pick(form, data.runs, A.runLabel, usual, render);
})();
