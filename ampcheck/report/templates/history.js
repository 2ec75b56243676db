"use strict";
(() => {
  const B = window.ampbench;
  const { data, el } = B;
  const form = document.getElementById("filters");
  const charts = document.getElementById("charts");
  const more = document.getElementById("more");
  const FIRST = 8;
  const hidden = new Set(); // variants, by name: a colour belongs to a variant, so hiding one changes no other's
  let shown = FIRST;

  const members = data.groups.map(() => []);
  data.series.forEach((one, s) => members[one.g].push(s));
  const lowered = data.groups.map((group, g) => [group.key, group.family, ...members[g].map((s) => data.series[s].variant)].join(" ").toLowerCase());
  const stepsOf = new Map();
  for (const [s, runGroup, text] of data.marks) stepsOf.set(s, [...(stepsOf.get(s) || []), [runGroup, text]]);
  const stepped = new Set([...stepsOf.keys()].map((s) => data.series[s].g));
  for (const name of ["device", "compiler", "family"]) {
    const values = [...new Set(data.groups.map((group) => group[name]).filter(Boolean))].sort();
    form.elements[name].append(el("option", { value: "" }, "any"), ...values.map((value) => el("option", { value }, value)));
  }
  const variants = new Map();
  for (const one of data.series) if (!variants.has(one.variant)) variants.set(one.variant, one.color);
  document.getElementById("variants").append(...[...variants].map(([variant, color]) => {
    const box = el("input", { type: "checkbox", value: variant, checked: true });
    return el("label", {}, box, B.variant(variant, color));
  }));

  // As ampcheck/bench/run/alerts.py sets its threshold for the median of the recent run groups; tests hold the two together.
  const median = (values) => {
    const sorted = Float64Array.from(values).sort();
    const half = sorted.length >> 1;
    return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  };
  const band = (values) => {
    const middle = median(values);
    const limit = 5 * 1.4826 * median(values.map((value) => Math.abs(value - middle)));
    const kept = values.filter((value) => Math.abs(value - middle) <= limit);
    const mean = kept.reduce((sum, value) => sum + value, 0) / kept.length;
    const spread = kept.length > 1 ? Math.sqrt(kept.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (kept.length - 1)) : 0;
    const width = Math.max(Math.log1p(data.alerts.smallest), (4 * spread) / Math.sqrt(data.alerts.recent));
    return [Math.exp(middle - width), Math.exp(middle + width)];
  };
  const bandOf = (s, first) => {
    const c = B.columns(s);
    const device = data.groups[data.series[s].g].device;
    const trailing = new Map(); // by machine
    const out = [];
    for (let i = 0; i < B.runGroups; i++) {
      if (!B.valid(c, i)) continue;
      const machine = data.runs[i].machines[device];
      if (!trailing.has(machine)) trailing.set(machine, []);
      const before = trailing.get(machine);
      if (i >= first && before.length >= data.alerts.enough) out.push([i, ...band(before)]);
      before.push(Math.log(c.seconds[i]));
      if (before.length > data.alerts.baseline) before.shift();
    }
    return out;
  };
  window.ampband = bandOf;

  const day = (i) => data.runs[i].started.slice(0, 10) || data.runs[i].name;
  const chartOf = (g, speeds, first) => {
    const group = data.groups[g];
    const visible = members[g].filter((s) => !hidden.has(data.series[s].variant));
    const places = Array.from({ length: B.runGroups - first }, (_, i) => first + i);
    const lines = visible.flatMap((s) => {
      const { variant, color } = data.series[s];
      const c = B.columns(s);
      const figure = (i) => (c.verdicts[i] === "" || (speeds && c.verdicts[i] === "first") ? NaN : speeds ? c.speed[i] : c.seconds[i]);
      const column = (keep) => places.map((i) => (keep(i) && !Number.isNaN(figure(i)) ? figure(i) : null));
      const [valid, invalid] = [column((i) => B.valid(c, i)), column((i) => !B.valid(c, i))];
      const band = speeds || group.estimate ? [] : bandOf(s, first);
      const around = new Map(band.map(([i, low, high]) => [i, [low, high]]));
      const edge = (k) => places.map((i) => around.get(i)?.[k] ?? null);
      const one = { name: variant, color, dashed: variant.endsWith("-aa"), y: valid };
      if (band.length) Object.assign(one, { low: edge(0), high: edge(1) });
      const hollow = { name: variant + ", not valid", color, hollow: true, y: invalid };
      return [valid, invalid].map((y, k) => (y.some((v) => v !== null) ? [one, hollow][k] : null)).filter(Boolean);
    });
    const events = [];
    const marks = [];
    for (const [i, text] of data.conditions[group.device] || []) {
      if (i < first) continue;
      marks.push({ at: i, kind: "moved" });
      events.push([i, `${day(i)}: ${text}`]);
    }
    for (const s of visible) {
      for (const [i, text] of stepsOf.get(s) || []) {
        if (i < first) continue;
        marks.push({ at: i, kind: text.startsWith("faster") ? "faster" : "slower" });
        events.push([i, `${day(i)}: step, ${data.series[s].variant} ${text}`]);
      }
    }
    events.sort((a, b) => b[0] - a[0]);
    const last = visible.map((s) => {
      const c = B.columns(s);
      const i = c.verdicts.findLastIndex((verdict) => verdict !== "");
      const { variant, color } = data.series[s];
      const time = Number.isNaN(c.seconds[i]) ? "" : B.valid(c, i) ? B.seconds(c.seconds[i]) : `(${B.seconds(c.seconds[i])})`;
      const speed = B.speed(c, i) === "–" ? " " : ` ${B.speed(c, i)} `;
      return el("span", { class: "last", title: c.reason(i) }, B.variant(variant, color), time, speed, B.chip(c.verdicts[i]), i < B.runGroups - 1 ? ` last ${day(i)}` : "");
    });
    const label = `${speeds ? "Speed beside the baseline" : "Time"} of ${group.key} over ${B.runGroups - first} run groups; the last numbers and the steps are below`;
    const place = el("div", { class: "chart", role: "img", tabindex: "0", "aria-label": label });
    const section = el(
      "section",
      { class: "card" },
      el("h2", {}, group.workload, group.estimate ? el("span", { class: "tag est" }, "estimate") : "", el("span", { class: "on" }, ` ${group.device} · ${group.compiler} · ${group.family}`)),
      place,
      el("div", { class: "charts-head" }, ...last),
      events.length ? el("ul", { class: "events" }, ...events.slice(0, 6).map(([, text]) => el("li", {}, text)), ...(events.length > 6 ? [el("li", {}, `and ${events.length - 6} earlier`)] : [])) : "",
    );
    const format = speeds ? (y) => Number(y.toPrecision(3)) + "×" : B.seconds;
    return [section, () => chart.draw(place, { xs: places, of: "run group", lines, marks, label: day, format, one: speeds })];
  };

  const render = () => {
    performance.mark("history-start");
    const words = form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    data.groups.forEach((group, g) => {
      const fits = ["device", "compiler", "family"].every((name) => !form.elements[name].value || group[name] === form.elements[name].value);
      if (fits && words.every((word) => lowered[g].includes(word)) && (!form.elements.only.value || stepped.has(g))) found.push(g);
    });
    const first = form.elements.run_groups.value ? Math.max(0, B.runGroups - Number(form.elements.run_groups.value)) : 0;
    const drawn = found.slice(0, shown).map((g) => chartOf(g, form.elements.show.value === "speed", first));
    charts.replaceChildren(...drawn.map(([section]) => section));
    for (const [, draw] of drawn) draw(); // once they are on the page and have a width
    more.hidden = drawn.length === found.length;
    more.textContent = `Show ${B.number(Math.min(24, found.length - drawn.length))} more of ${B.number(found.length)}`;
    const runGroups = B.runGroups - first;
    document.getElementById("summary").textContent = `${B.number(found.length)} of ${B.number(data.groups.length)} workloads, ${B.number(runGroups)} ${runGroups === 1 ? "run group" : "run groups"}.`;
    performance.measure("history", "history-start");
  };
  const write = B.filters(
    form,
    (byReader) => {
      if (!byReader) {
        hidden.clear();
        for (const variant of B.address().getAll("hide")) hidden.add(variant);
        for (const box of document.querySelectorAll("#variants input")) box.checked = !hidden.has(box.value);
      }
      shown = FIRST;
      render();
    },
    () => [...hidden].map((variant) => ["hide", variant]),
  );
  document.getElementById("variants").addEventListener("input", (event) => {
    if (event.target.checked) hidden.delete(event.target.value);
    else hidden.add(event.target.value);
    write();
    render();
  });
  more.addEventListener("click", () => { shown += 24; render(); });
  chart.again(render);
})();
