"use strict";
// The other half of ampcheck/report/conformance/data.py: decodes the columns, and holds what the pages of conformance share.
window.ampcheck = (() => {
  const data = window.AMPCHECK_DATA;
  const words = data.words;
  const { el, number } = window.page;

  const unpack = (packed) => {
    if (packed[0] === "v") return packed.slice(1);
    const out = new Array(data.count);
    let place = 0;
    for (let at = 1; at < packed.length; at += 2) out.fill(packed[at], place, (place += packed[at + 1]));
    return out;
  };
  const columns = Object.fromEntries(Object.entries(data.columns).map(([name, packed]) => [name, unpack(packed)]));

  const numbers = Object.fromEntries(data.statuses.map((status, number) => [status.letter, number]));
  const decoded = new Map();
  // The status of every case in a run, as a number; -1 where the run does not have it.
  const statuses = (run) => {
    if (!decoded.has(run)) {
      const out = new Int8Array(data.count).fill(-1);
      page.eachRun(data.runs[run].statuses, (letter, from, to) => out.fill(numbers[letter], from, to));
      decoded.set(run, out);
    }
    return decoded.get(run);
  };

  const text = (name, i) => words[name][columns[name][i]];
  const id = (i) => {
    if (data.ids[i] !== undefined) return data.ids[i];
    const op = text("op", i);
    const sample = text("sample", i);
    const head = (data.written[op] || op) + (sample ? "+" + sample : "");
    return [head, text("inputs", i), text("compiler", i), text("amp", i), text("token", i)].filter(Boolean).join("-");
  };
  const key = (i) => text("suite", i) + "/" + text("rule", i) + "/" + id(i);

  const chip = (status, shown, href) =>
    el(
      href ? "a" : "span",
      { class: "chip s-" + status.name, title: status.label, href: href || undefined },
      el("span", { class: "mark", "aria-hidden": "true" }, status.mark),
      shown === undefined ? " " + status.label : shown === "" ? "" : " " + shown,
      shown === undefined ? "" : el("span", { class: "vh" }, " " + status.label),
    );
  const caseHref = (i) => "case.html#" + key(i).split("/").map(encodeURIComponent).join("/");
  const runLabel = (run) =>
    `${run.started}, torch ${run.torch}, ${number(run.ran)} of ${number(run.expected)} cases` +
    (run.unfinished ? " (incomplete)" : "");
  const runNumber = (name) => data.runs.findIndex((run) => run.name === name);
  const isVirtual = (device) => data.virtual.includes(device);

  return {
    ...window.page, data, words, columns, statuses, text, id, key, chip, caseHref, runLabel, runNumber, isVirtual,
  };
})();
