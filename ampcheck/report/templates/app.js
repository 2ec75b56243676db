"use strict";
// The other half of ampcheck/report/conformance/data.py: decodes the columns, and holds what several pages share.
window.ampcheck = (() => {
  const data = window.AMPCHECK_DATA;
  const words = data.words;

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
      let place = 0;
      for (const [, letter, count] of data.runs[run].statuses.matchAll(/([a-z.])(\d*)/g)) {
        const end = place + Number(count || 1);
        if (letter !== ".") out.fill(numbers[letter], place, end);
        place = end;
      }
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

  // Every text reaches the page through here, as a text node: nothing in a run file can become markup.
  const el = (tag, attributes, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === true) node.setAttribute(name, "");
      else if (value !== false && value !== undefined) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== "" && child !== undefined));
    return node;
  };
  const number = (count) => String(count).replace(/\B(?=(\d{3})+$)/g, "\u00a0");
  const chip = (status, shown, href) =>
    el(
      href ? "a" : "span",
      { class: "chip s-" + status.name, title: status.label, href: href || undefined },
      el("span", { class: "mark", "aria-hidden": "true" }, status.mark),
      shown === undefined ? " " + status.label : shown === "" ? "" : " " + shown,
      shown === undefined ? "" : el("span", { class: "vh" }, " " + status.label),
    );
  const caseHref = (i) => "case.html#" + key(i).split("/").map(encodeURIComponent).join("/");
  const box = (label, table) => el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": label }, table);
  const table = (caption, headings, rows) =>
    el(
      "table",
      {},
      caption ? el("caption", {}, caption) : "",
      el("thead", {}, el("tr", {}, ...headings.map((heading) => el("th", { scope: "col" }, heading)))),
      el("tbody", {}, ...rows),
    );

  // The address holds what is shown, so the skip link must not put its own target there.
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  });
  const address = () => new URLSearchParams(location.hash.slice(1));
  const setAddress = (parameters) => {
    const hash = parameters.toString();
    history.replaceState(null, "", location.pathname + location.search + (hash ? "#" + hash : ""));
  };
  const runLabel = (run) =>
    `${run.started}, torch ${run.torch}, ${number(run.ran)} of ${number(run.expected)} cases` +
    (run.interrupted ? " (interrupted)" : "");
  const runNumber = (name) => data.runs.findIndex((run) => run.name === name);
  const isVirtual = (device) => data.virtual.includes(device);

  return {
    data, words, columns, statuses, text, id, key, el, number, chip, caseHref, box, table, address, setAddress,
    runLabel, runNumber, isVirtual,
  };
})();
