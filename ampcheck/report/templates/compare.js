"use strict";
// Any two runs beside each other: of cases, or of benchmarks. Each kind has runs, a label, usual ends, and what it finds.
(() => {
  const { el, number, list, pick } = window.page;
  const form = document.getElementById("pick");
  const place = document.getElementById("comparison");
  const SHOWN = 200;

  const cases = () => {
    const A = window.ampcheck;
    const { data } = A;
    const meanings = {
      regressed: "not red before, red now",
      fixed: "red before, not red now",
      changed: "another status, as red as before",
      removed: "only in the earlier run",
      added: "only in the later run",
      unchanged: "",
    };
    // As ampcheck/runner/summarize.py sorts them; the tests hold the two against each other.
    const kindOf = (was, is) => {
      if (was < 0 || is < 0) return was < 0 ? "added" : "removed";
      const [wasRed, isRed] = [data.statuses[was].red, data.statuses[is].red];
      return wasRed !== isRed ? (isRed ? "regressed" : "fixed") : was !== is ? "changed" : "unchanged";
    };
    const find = (a, b) => {
      const [before, after] = [A.statuses(a), A.statuses(b)];
      const groups = Object.fromEntries(Object.keys(meanings).map((name) => [name, []]));
      let common = 0;
      for (let i = 0; i < data.count; i++) {
        if (before[i] < 0 && after[i] < 0) continue;
        if (before[i] >= 0 && after[i] >= 0) common += 1;
        groups[kindOf(before[i], after[i])].push(i);
      }
      const unchanged = groups.unchanged.length;
      delete groups.unchanged;
      const counts = Object.entries(groups).map(([name, found]) => `${number(found.length)} ${name}`).join(", ");
      const said = common ? `${number(common)} common cases, ${number(unchanged)} unchanged: ${counts}.` : "These runs have no case in common, so they cannot be compared.";
      return { groups: common ? groups : {}, said };
    };
    const notes = (earlier, later) => {
      const out = [];
      for (const [run, other, what] of [[earlier, later, "earlier"], [later, earlier, "later"]]) {
        if (run.unfinished) out.push(`The ${what} run is incomplete (${run.note}): cases it lacks may only not have run.`);
        const only = run.devices.filter((device) => !other.devices.includes(device));
        if (only.length) out.push(`Only the ${what} run has ${only.join(", ")}.`);
      }
      return out;
    };
    const side = (status) => el("td", {}, status < 0 ? el("span", { class: "none" }, "absent") : A.chip(data.statuses[status]));
    const line = (a, b) => (i) => el("tr", {}, el("th", { scope: "row", class: "key" }, el("a", { href: A.caseHref(i) }, A.key(i))), side(A.statuses(a)[i]), side(A.statuses(b)[i]));
    const usual = { a: data.runs[Math.min(1, data.runs.length - 1)].name, b: data.runs[0].name };
    const has = (i, words) => words.every((word) => A.key(i).toLowerCase().includes(word));
    return { runs: data.runs, usual, label: A.runLabel, find, notes, line, has, headings: ["case", "earlier", "later"], meanings, title: (name) => name };
  };

  const speeds = () => {
    const B = window.ampbench;
    const { data } = B;
    const DECIDED = ["slower", "faster", "same"];
    const lowered = data.series.map((_, s) => B.name(s).toLowerCase());
    const at = (run) => data.runs.indexOf(run);
    // As ampcheck/report/benchmarks/history.py sorts and compares; the tests hold the two against each other.
    const range = (c, i, bound) => [
      Number.isNaN(c.low[i]) ? c.seconds[i] / (1 + bound) : c.low[i],
      Number.isNaN(c.high[i]) ? c.seconds[i] * (1 + bound) : c.high[i],
    ];
    const isTested = (a, b) => data.pair[0] === a && data.pair[1] === b;
    const test = (s, c, a, b) => {
      if (isTested(a, b) && data.tested[s]) {
        const [words, ratio, low, high, p] = data.tested[s];
        return { words, ratio, low, high, p };
      }
      const bound = data.bounds[data.groups[data.series[s].g].kind] ?? data.bounds.op;
      const [[low, high], [laterLow, laterHigh]] = [range(c, a, bound), range(c, b, bound)];
      return { words: laterLow > high ? "slower" : laterHigh < low ? "faster" : "same", ratio: c.seconds[a] / c.seconds[b], p: null };
    };
    const find = (a, b) => {
      const groups = Object.fromEntries(Object.keys(data.kinds).map((kind) => [kind, []]));
      data.series.forEach((_, s) => {
        const c = B.columns(s);
        const [was, is] = [c.verdicts[a], c.verdicts[b]];
        if (!was && !is) return;
        const found = { s, c };
        if (!was || !is) return groups[was ? "gone" : "new"].push(found);
        const [had, has] = [B.valid(c, a), B.valid(c, b)];
        if (!had || !has) return groups[had ? "lost" : has ? "regained" : "rest"].push(found);
        found.test = test(s, c, a, b);
        const flipped = was !== is && DECIDED.includes(was) && DECIDED.includes(is);
        groups[flipped ? "flipped" : ["slower", "faster"].includes(found.test.words) ? found.test.words : "rest"].push(found);
      });
      for (const kind of ["slower", "faster"]) groups[kind].sort((one, two) => Math.abs(Math.log(two.test.ratio)) - Math.abs(Math.log(one.test.ratio)));
      return { groups, said: Object.entries(groups).map(([kind, found]) => `${number(found.length)} ${title(kind)}`).join(", ") + "." };
    };
    const title = (kind) => (kind === "rest" ? "unchanged" : kind);
    const notes = (earlier, later) => {
      const out = [];
      for (const [run, what] of [[earlier, "earlier"], [later, "later"]]) {
        if (run.note) out.push(`The ${what} run group is incomplete (${run.note}): what it lacks may only not have run.`);
      }
      if (earlier.mode !== later.mode) out.push(`The earlier run group ran in ${earlier.mode} mode, the later in ${later.mode} mode.`);
      const other = Object.keys(later.machines).filter((device) => device in earlier.machines && earlier.machines[device] !== later.machines[device]);
      if (other.length) out.push(`Another machine, or one described otherwise, measured ${other.join(", ")}.`);
      if (earlier === later) return out;
      if (isTested(at(earlier), at(later))) out.push("Times are compared with the two-run test (Mann and Whitney, and an interval), on the samples of both run groups.");
      else out.push("Only medians and ranges of these run groups are kept here: times differ where the middle 90 % of their samples are apart. The newest two run groups are tested with their samples.");
      return out;
    };
    const side = (c, i) => {
      if (!c.verdicts[i]) return el("td", {}, el("span", { class: "none" }, "absent"));
      const time = Number.isNaN(c.seconds[i]) ? "–" : B.valid(c, i) ? B.seconds(c.seconds[i]) : `(${B.seconds(c.seconds[i])})`;
      const speed = B.speed(c, i);
      const reason = ["invalid", "not measured"].includes(c.verdicts[i]) && c.reason(i) ? [el("br"), el("span", { class: "note" }, c.reason(i))] : [];
      const ratio = speed === "–" ? [] : [el("br"), el("span", { class: "note nowrap" }, speed)];
      return el("td", {}, B.chip(c.verdicts[i]), el("br"), el("span", { class: "nowrap" }, time), ...ratio, ...reason);
    };
    const said = (test) => {
      if (!test) return "";
      const interval = test.low ? ` [${B.three(test.low)}, ${B.three(test.high)}]` : "";
      const p = test.p === null ? " (intervals compared)" : `, p = ${Number(test.p.toPrecision(2))}`;
      return `${test.words}: ${B.three(test.ratio)}×${interval} of the speed before${p}`;
    };
    const line = (a, b) => ({ s, c, test: found }) => {
      const group = data.groups[data.series[s].g];
      const link = el("a", { href: "history.html#" + new URLSearchParams({ q: group.key }) }, group.key);
      const head = el("th", { scope: "row", class: "key" }, link, " ", B.variant(data.series[s].variant, data.series[s].color), group.estimate ? el("span", { class: "tag est" }, "estimate") : "");
      return el("tr", {}, head, side(c, a), side(c, b), el("td", { class: "text" }, said(found)));
    };
    const label = (run) => `${run.started || run.name}, torch ${run.torch}, ${run.mode}` + (run.note ? " (incomplete)" : "");
    const last = data.runs.length - 1;
    const [a, b] = data.pair.length === 2 ? data.pair : [Math.max(0, last - 1), last];
    const has = ({ s }, words) => words.every((word) => lowered[s].includes(word));
    const usual = { a: data.runs[a].name, b: data.runs[b].name };
    return { runs: data.runs, usual, label, find, notes, line, has, headings: ["series", "earlier", "later", "times"], meanings: data.kinds, title };
  };

  const kinds = Object.fromEntries([...form.elements.what.options].map(({ value }) => [value, { cases, speeds }[value]()]));
  const render = (missing) => {
    performance.mark("compare-start");
    const kind = kinds[form.elements.what.value];
    const [a, b] = ["a", "b"].map((name) => kind.runs.findIndex((run) => run.name === form.elements[name].value));
    const [earlier, later] = [kind.runs[a], kind.runs[b]];
    const { groups, said } = kind.find(a, b);
    const words = form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
    const notes = missing.map((name) => `The linked run ${name} is not here, so another one is shown.`);
    if (earlier.torch !== later.torch) notes.push(`torch went from ${earlier.torch} to ${later.torch}.`);
    if (a === b) notes.push("Both sides are the same run.");
    const parts = [];
    for (const [name, all] of Object.entries(groups)) {
      const found = words.length ? all.filter((one) => kind.has(one, words)) : all;
      if (!found.length) continue;
      const title = kind.title(name);
      parts.push(el("h2", { id: name }, `${number(found.length)} ${title}`), el("p", { class: "note" }, kind.meanings[name] + "."), ...list(title, kind.headings, found, SHOWN, kind.line(a, b)));
    }
    place.replaceChildren(
      el("p", { id: "counts" }, said),
      ...[...notes, ...kind.notes(earlier, later)].map((note) => el("p", { class: "note" }, note)),
      ...parts,
    );
    performance.measure("compare", "compare-start");
  };
  pick(form, kinds, render);
})();
