"use strict";
(() => {
  const B = window.ampbench;
  const { data, el } = B;
  const form = document.getElementById("filters");
  const charts = document.getElementById("charts");
  const more = document.getElementById("more");
  const FIRST = 8;
  const hidden = new Set(); // arms, by name: a colour belongs to an arm, so hiding one changes no other's
  let shown = FIRST;

  const members = data.groups.map(() => []);
  data.series.forEach((one, s) => members[one.g].push(s));
  const lowered = data.groups.map((group, g) => [group.key, group.family, ...members[g].map((s) => data.series[s].arm)].join(" ").toLowerCase());
  const stepsOf = new Map();
  for (const [s, night, text] of data.marks) stepsOf.set(s, [...(stepsOf.get(s) || []), [night, text]]);
  const stepped = new Set([...stepsOf.keys()].map((s) => data.series[s].g));
  for (const name of ["device", "executor", "family"]) {
    const values = [...new Set(data.groups.map((group) => group[name]).filter(Boolean))].sort();
    form.elements[name].append(el("option", { value: "" }, "any"), ...values.map((value) => el("option", { value }, value)));
  }
  const arms = new Map();
  for (const one of data.series) if (!arms.has(one.arm)) arms.set(one.arm, one.color);
  document.getElementById("arms").append(...[...arms].map(([arm, color]) => {
    const box = el("input", { type: "checkbox", value: arm, checked: true });
    return el("label", {}, box, B.arm(arm, color));
  }));

  // As ampcheck/bench/run/alerts.py sets its threshold for the median of the recent nights; tests hold the two together.
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
    for (let i = 0; i < B.nights; i++) {
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
  const dated = (first) => {
    const count = Math.max(2, Math.min(8, Math.floor(innerWidth / 160)));
    const span = B.nights - 1 - first;
    const places = span ? Array.from({ length: count }, (_, k) => first + Math.round((k * span) / (count - 1))) : [first];
    return [...new Set(places)].map((i) => [i, day(i)]);
  };

  const chartOf = (g, speeds, first) => {
    const group = data.groups[g];
    const visible = members[g].filter((s) => !hidden.has(data.series[s].arm));
    const series = visible.map((s) => {
      const { arm, color } = data.series[s];
      const c = B.columns(s);
      const points = [];
      const hollow = [];
      for (let i = first; i < B.nights; i++) {
        const y = speeds ? c.speed[i] : c.seconds[i];
        if (Number.isNaN(y) || c.verdicts[i] === "" || (speeds && c.verdicts[i] === "first")) continue;
        const title = `${arm}, ${day(i)}: ${B.seconds(c.seconds[i])}, speed ${B.speed(c, i)}, ${c.verdicts[i] === "first" ? "baseline" : c.verdicts[i]}`;
        if (B.valid(c, i)) points.push([i, y, title]);
        else hollow.push([i, y, title]);
      }
      return { name: arm, color, dashed: arm.endsWith("-again"), points, hollow };
    });
    const events = [];
    const marks = [];
    for (const [i, text] of data.conditions[group.device] || []) {
      if (i < first) continue;
      marks.push({ x: i, text: `${day(i)}: ${text}`, kind: "moved" });
      events.push([i, `${day(i)}: ${text}`]);
    }
    for (const s of visible) {
      for (const [i, text] of stepsOf.get(s) || []) {
        if (i < first) continue;
        marks.push({ x: i, text: `${day(i)}, ${data.series[s].arm} ${text}`, kind: "step" + (text.startsWith("faster") ? " faster" : "") });
        events.push([i, `${day(i)}: step, ${data.series[s].arm} ${text}`]);
      }
    }
    events.sort((a, b) => b[0] - a[0]);
    const last = visible.map((s) => {
      const c = B.columns(s);
      const i = c.verdicts.findLastIndex((verdict) => verdict !== "");
      const { arm, color } = data.series[s];
      const time = Number.isNaN(c.seconds[i]) ? "" : B.valid(c, i) ? B.seconds(c.seconds[i]) : `(${B.seconds(c.seconds[i])})`;
      const speed = B.speed(c, i) === "–" ? " " : ` ${B.speed(c, i)} `;
      return el("span", { class: "last", title: c.reason(i) }, B.arm(arm, color), time, speed, B.chip(c.verdicts[i]), i < B.nights - 1 ? ` last ${day(i)}` : "");
    });
    const place = el("div", { class: "chart" });
    const section = el(
      "section",
      { class: "card" },
      el("h2", {}, group.workload, group.estimate ? el("span", { class: "tag est" }, "estimate") : "", el("span", { class: "on" }, ` ${group.device} · ${group.executor} · ${group.family}`)),
      place,
      el("div", { class: "charts-head" }, ...last),
      events.length ? el("ul", { class: "events" }, ...events.slice(0, 6).map(([, text]) => el("li", {}, text)), ...(events.length > 6 ? [el("li", {}, `and ${events.length - 6} earlier`)] : [])) : "",
    );
    const bands = speeds || group.estimate ? [] : visible.map((s) => ({ color: data.series[s].color, points: bandOf(s, first) }));
    const name = `${speeds ? "Speed beside the baseline" : "Time"} of ${group.key} over ${B.nights - first} nights; the last numbers and the steps are below`;
    const format = speeds ? (y) => Number(y.toPrecision(3)) + "×" : B.seconds;
    return [section, () => ampchart.draw(place, { label: name, series, bands, marks, xTicks: dated(first), format, one: speeds, range: [first, Math.max(B.nights - 1, first + 1)] })];
  };

  const render = () => {
    performance.mark("history-start");
    const words = form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    data.groups.forEach((group, g) => {
      const fits = ["device", "executor", "family"].every((name) => !form.elements[name].value || group[name] === form.elements[name].value);
      if (fits && words.every((word) => lowered[g].includes(word)) && (!form.elements.only.value || stepped.has(g))) found.push(g);
    });
    const first = form.elements.nights.value ? Math.max(0, B.nights - Number(form.elements.nights.value)) : 0;
    const drawn = found.slice(0, shown).map((g) => chartOf(g, form.elements.show.value === "speed", first));
    charts.replaceChildren(...drawn.map(([section]) => section));
    for (const [, draw] of drawn) draw(); // once they are on the page and have a width
    more.hidden = drawn.length === found.length;
    more.textContent = `Show ${B.number(Math.min(24, found.length - drawn.length))} more of ${B.number(found.length)}`;
    const nights = B.nights - first;
    document.getElementById("summary").textContent = `${B.number(found.length)} of ${B.number(data.groups.length)} workloads, ${B.number(nights)} ${nights === 1 ? "night" : "nights"}.`;
    performance.measure("history", "history-start");
  };
  const read = () => {
    const wanted = B.address();
    for (const field of form.elements) {
      if (!field.name) continue;
      const value = wanted.get(field.name) || "";
      if (field.tagName === "SELECT" && ![...field.options].some((option) => option.value === value)) field.append(el("option", { value }, value));
      field.value = value;
    }
    hidden.clear();
    for (const arm of wanted.getAll("hide")) hidden.add(arm);
    for (const box of document.querySelectorAll("#arms input")) box.checked = !hidden.has(box.value);
    shown = FIRST;
    render();
  };
  const write = () => {
    const parameters = new URLSearchParams();
    for (const field of form.elements) if (field.name && field.value) parameters.set(field.name, field.value);
    for (const arm of hidden) parameters.append("hide", arm);
    B.setAddress(parameters);
  };
  form.addEventListener("input", () => { shown = FIRST; write(); render(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => { event.preventDefault(); B.setAddress(new URLSearchParams()); read(); });
  document.getElementById("arms").addEventListener("input", (event) => {
    if (event.target.checked) hidden.delete(event.target.value);
    else hidden.add(event.target.value);
    write();
    render();
  });
  more.addEventListener("click", () => { shown += 24; render(); });
  window.addEventListener("hashchange", read);
  ampchart.onResize(render);
  read();
})();
