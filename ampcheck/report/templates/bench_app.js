"use strict";
// The other half of ampcheck/report/benchmarks/data.py: decodes the columns, and holds what the pages of benchmarks share.
window.ampbench = (() => {
  const data = window.AMPCHECK_BENCH;
  const { el } = window.page;
  const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const value = new Int8Array(128).fill(-1);
  for (let i = 0; i < 64; i++) value[DIGITS.charCodeAt(i)] = i;
  const runGroups = data.runs.length;

  // A column as integers, NaN where a run group has none.
  const unpack = (text) => {
    const out = new Float64Array(runGroups).fill(NaN);
    if (!text) return out;
    let place = 0;
    let last = 0;
    let at = 0;
    const next = () => {
      let sum = 0;
      for (let shift = 0; ; shift += 5) {
        const digit = value[text.charCodeAt(at++)];
        sum += (digit & 31) * 2 ** shift;
        if (digit < 32) return sum;
      }
    };
    while (at < text.length) {
      if (text[at] === ".") {
        at += 1;
        place += next();
      } else {
        const step = next();
        last += step % 2 ? -(step + 1) / 2 : step / 2;
        out[place++] = last;
      }
    }
    return out;
  };
  const numbers = (integers) => integers.map((integer) => Math.exp(integer / data.scale));
  const beside = (middle, name, s) => numbers(unpack(data.series[s][name]).map((distance, i) => middle[i] + distance));
  const decoded = new Map();
  // A series' columns as numbers: seconds, low, high, speed, speedLow, speedHigh, error; verdicts and reasons as texts.
  const columns = (s) => {
    if (!decoded.has(s)) {
      const packed = data.series[s];
      const [seconds, speed] = [unpack(packed.seconds), unpack(packed.speed)];
      const verdicts = new Array(runGroups).fill("");
      page.eachRun(packed.verdict, (letter, from, to) => verdicts.fill(data.verdicts[letter], from, to));
      const reasons = unpack(packed.reason);
      decoded.set(s, {
        seconds: numbers(seconds),
        low: beside(seconds, "low", s),
        high: beside(seconds, "high", s),
        speed: numbers(speed),
        speedLow: beside(speed, "speedLow", s),
        speedHigh: beside(speed, "speedHigh", s),
        error: numbers(unpack(packed.error)),
        verdicts,
        reason: (i) => (Number.isNaN(reasons[i]) ? "" : data.reasons[reasons[i]]),
      });
    }
    return decoded.get(s);
  };
  const valid = (c, i) => c.verdicts[i] !== "" && c.verdicts[i] !== "invalid" && c.verdicts[i] !== "not measured" && !Number.isNaN(c.seconds[i]);
  const name = (s) => data.groups[data.series[s].g].key + "/" + data.series[s].variant;

  const three = (number) => {
    if (!Number.isFinite(number) || number === 0) return String(number);
    const rounded = Number(number.toPrecision(3));
    return rounded.toFixed(Math.min(9, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(rounded))))));
  };
  const seconds = (number) => {
    if (Number.isNaN(number)) return "–";
    const [size, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [0, "ns"]].find(([least]) => number >= 0.9995 * least);
    return three(number / (size || 1e-9)) + " " + unit;
  };
  const speed = (c, i) => {
    if (Number.isNaN(c.speed[i]) || !valid(c, i) || c.verdicts[i] === "first") return "–";
    const interval = Number.isNaN(c.speedLow[i]) || Number.isNaN(c.speedHigh[i]) ? "" : ` [${three(c.speedLow[i])}, ${three(c.speedHigh[i])}]`;
    return three(c.speed[i]) + "×" + interval;
  };
  const chip = (verdict) => {
    const shown = data.shown[verdict];
    return el("span", { class: "chip v-" + shown.style }, el("span", { class: "mark", "aria-hidden": "true" }, shown.mark), " " + shown.label);
  };
  const variant = (text, color) =>
    el("span", { class: "variant" }, el("span", { class: "key" + (text.endsWith("-aa") ? " aa" : ""), style: `--c: var(--a${color})`, "aria-hidden": "true" }), text);

  const runNumber = (wanted) => data.runs.findIndex((run) => run.name === wanted);

  return { ...window.page, data, runGroups, columns, valid, name, three, seconds, speed, chip, variant, runNumber };
})();
