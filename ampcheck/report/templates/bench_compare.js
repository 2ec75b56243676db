"use strict";
(() => {
  const B = window.ampbench;
  const { data, el } = B;
  const form = document.getElementById("pick");
  const place = document.getElementById("comparison");
  const SHOWN = 100;
  const DECIDED = ["slower", "faster", "same"];
  const lowered = data.series.map((_, s) => B.name(s).toLowerCase());
  const label = (run) => `${run.started || run.name}, torch ${run.torch}, ${run.mode}` + (run.note ? " (incomplete)" : "");
  // As ampcheck/report/benchmarks/changes.py sorts and compares; the tests hold the two against each other.
  const range = (c, i, bound) => [
    Number.isNaN(c.low[i]) ? c.seconds[i] / (1 + bound) : c.low[i],
    Number.isNaN(c.high[i]) ? c.seconds[i] * (1 + bound) : c.high[i],
  ];
  const test = (s, c, a, b) => {
    if (data.pair.length === 2 && data.pair[0] === a && data.pair[1] === b && data.tested[s]) {
      const [words, ratio, low, high, p] = data.tested[s];
      return { words, ratio, low, high, p };
    }
    const bound = data.bounds[data.groups[data.series[s].g].kind] ?? data.bounds.op;
    const [[low, high], [laterLow, laterHigh]] = [range(c, a, bound), range(c, b, bound)];
    return { words: laterLow > high ? "slower" : laterHigh < low ? "faster" : "same", ratio: c.seconds[a] / c.seconds[b], p: null };
  };
  const compare = (a, b) => {
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
    return groups;
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
  const line = (a, b) => ({ s, c, test }) => {
    const group = data.groups[data.series[s].g];
    const link = el("a", { href: "bench_history.html#" + new URLSearchParams({ q: group.key }) }, group.key);
    const head = el("th", { scope: "row", class: "key" }, link, " ", B.variant(data.series[s].variant, data.series[s].color), group.estimate ? el("span", { class: "tag est" }, "estimate") : "");
    return el("tr", {}, head, side(c, a), side(c, b), el("td", { class: "text" }, said(test)));
  };
  const list = (kind, found, a, b) => {
    const title = kind === "rest" ? "unchanged" : kind;
    return [
      el("h2", { id: kind }, `${B.number(found.length)} ${title}`),
      el("p", { class: "note" }, data.kinds[kind] + "."),
      ...B.list(title, ["series", "earlier", "later", "times"], found, SHOWN, line(a, b)),
    ];
  };

  const render = (missing) => {
    performance.mark("compare-start");
    const [a, b] = ["a", "b"].map((name) => B.runNumber(form.elements[name].value));
    const [earlier, later] = [data.runs[a], data.runs[b]];
    const groups = compare(a, b);
    const words = form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
    const notes = missing.map((name) => `The linked run group ${name} is not here, so another one is shown.`);
    for (const [run, what] of [[earlier, "earlier"], [later, "later"]]) {
      if (run.note) notes.push(`The ${what} run group is incomplete (${run.note}): what it lacks may only not have run.`);
    }
    if (earlier.torch !== later.torch) notes.push(`torch went from ${earlier.torch} to ${later.torch}.`);
    if (earlier.mode !== later.mode) notes.push(`The earlier run group ran in ${earlier.mode} mode, the later in ${later.mode} mode.`);
    const other = Object.keys(later.machines).filter((device) => device in earlier.machines && earlier.machines[device] !== later.machines[device]);
    if (other.length) notes.push(`Another machine, or one described otherwise, measured ${other.join(", ")}.`);
    if (a === b) notes.push("Both sides are the same run group.");
    else if (data.pair[0] === a && data.pair[1] === b) notes.push("Times are compared with the two-run test (Mann and Whitney, and an interval), on the samples of both run groups.");
    else notes.push("Only medians and ranges of these run groups are kept here: times differ where the middle 90 % of their samples are apart. The newest two run groups are tested with their samples.");
    const counts = Object.entries(groups).map(([kind, found]) => `${B.number(found.length)} ${kind === "rest" ? "unchanged" : kind}`).join(", ");
    const shown = Object.entries(groups).map(([kind, found]) => [kind, found.filter(({ s }) => words.every((word) => lowered[s].includes(word)))]);
    place.replaceChildren(
      el("p", { id: "counts" }, counts + "."),
      ...notes.map((note) => el("p", { class: "note" }, note)),
      ...shown.filter(([, found]) => found.length).flatMap(([kind, found]) => list(kind, found, a, b)),
    );
    performance.measure("compare", "compare-start");
  };
  const last = data.runs.length - 1;
  const [a, b] = data.pair.length === 2 ? data.pair : [Math.max(0, last - 1), last];
  B.pick(form, [...data.runs].reverse(), label, { a: data.runs[a].name, b: data.runs[b].name }, render);
})();
