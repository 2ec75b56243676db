"use strict";
(() => {
  const A = window.ampcheck;
  const { data, words, columns, el } = A;
  const texts = window.AMPCHECK_DETAILS;
  const place = document.getElementById("case");
  const keys = new Map();
  for (let i = 0; i < data.count; i++) keys.set(A.key(i), i);

  const whole = (numbers) => numbers.map((number) => texts.paragraphs[number].map((line) => texts.lines[line]).join("\n")).join("\n\n");
  const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\"'\"'") + "'");
  const pytestLine = (i) => {
    if (texts.pytest[i] !== undefined) return texts.lines[texts.pytest[i]].replace("\0", A.id(i));
    const op = A.text("op", i);
    const rule = A.text("rule", i);
    const scenario = data.scenarios.includes(columns.op[i]) && A.id(i).startsWith(op + "-");
    const call = scenario ? `test_${op}[${A.id(i).slice(op.length + 1)}]` : `test_${rule}[${A.id(i)}]`;
    const device = quoted("--device=" + A.text("device", i));
    return ["pytest", quoted("suites/" + A.text("suite", i)), quoted("--rule=" + rule), "-k", quoted(call), device, texts.options].filter(Boolean).join(" ");
  };

  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // a browser that keeps the clipboard from pages on disk
      const area = el("textarea", { class: "vh" }, text);
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    document.getElementById("said").textContent = "Copied.";
  };
  const repro = (heading, text) => {
    const button = el("button", { type: "button", "aria-label": "Copy: " + heading }, "Copy");
    button.addEventListener("click", async () => {
      await copy(text);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    return [el("h3", {}, heading), el("div", { class: "repro" }, el("pre", {}, text), button)];
  };
  const facts = (pairs) =>
    el("dl", { class: "facts" }, ...pairs.filter(([, value]) => value.length !== 0).flatMap(([name, value]) =>
      [el("dt", {}, name), el("dd", {}, ...(Array.isArray(value) ? value : [value]))]));

  const others = (i) => {
    const same = ["suite", "rule", "op", "sample", "inputs", "amp"];
    const status = A.statuses(0);
    const rows = [];
    for (let j = 0; j < data.count; j++) {
      if (j !== i && status[j] >= 0 && same.every((name) => columns[name][j] === columns[name][i])) {
        const link = el("a", { href: A.caseHref(j) }, A.text("device", j));
        rows.push(el("tr", {}, el("th", { scope: "row" }, link), el("td", {}, A.chip(data.statuses[status[j]]))));
      }
    }
    return rows.length ? [el("h2", {}, "The same case elsewhere"), A.box("The same case on other devices", A.table("", ["device", "status"], rows))] : [];
  };

  const past = (i) =>
    A.box("History", A.table("", ["run", "torch", "status"], data.runs.map((run, n) => {
      const status = A.statuses(n)[i];
      const shown = status >= 0 ? A.chip(data.statuses[status]) : el("span", { class: "none" }, run.unfinished ? "not reached" : "not in this run");
      const cut = run.unfinished ? [" ", el("span", { class: "tag bad" }, "incomplete")] : [];
      return el("tr", {}, el("th", { scope: "row" }, run.started), el("td", {}, run.torch), el("td", {}, shown, ...cut));
    })));

  const found = (message, status) => {
    if (message) return el("ul", {}, ...whole(message).split("\n").map((line) => el("li", {}, line)));
    const plain = { pass: "As promised: no difference was found.", missing: "The manifest lists it, but it did not run." };
    if (status < 0) return el("p", {}, "The newest run does not have this case.");
    return el("p", {}, plain[data.statuses[status].name] || "The run file holds no message.");
  };

  const show = () => {
    let key;
    try {
      key = decodeURIComponent(location.hash.slice(1));
    } catch {
      key = location.hash.slice(1); // a stray percent sign: no case has one
    }
    if (!key) return;
    const i = keys.get(key);
    document.title = key + " · ampcheck";
    if (i === undefined) {
      place.replaceChildren(el("h1", {}, "No such case"), el("p", {}, `None of the runs here has a case ${key}.`));
      return;
    }
    const status = A.statuses(0)[i];
    const rule = data.rules[A.text("rule", i)];
    const device = A.text("device", i);
    const deviations = A.text("deviation", i).split(", ").filter(Boolean);
    const cause = A.text("cause", i);
    const op = A.text("op", i);
    const matrix = "matrix.html#" + new URLSearchParams({ op, open: op });
    place.replaceChildren(
      el("h1", { class: "key-title" }, A.id(i)),
      el("p", {}, status >= 0 ? A.chip(data.statuses[status]) : el("span", { class: "tag" }, "not in the newest run")),
      facts([
        ["rule", rule ? [el("strong", {}, A.text("rule", i)), ": " + rule.sentence + ". ", el("a", { href: rule.href }, "Source: " + rule.source)] : A.text("rule", i)],
        ["op", el("a", { href: matrix }, op)],
        ["sample", A.text("sample", i)],
        ["inputs", A.text("inputs", i)],
        ["region dtype", A.text("amp", i)],
        ["device", A.isVirtual(device) ? [device + " ", el("span", { class: "tag" }, "virtual: dtypes and casts only")] : device],
        ["suite", A.text("suite", i)],
        ["deviation", deviations.flatMap((id, n) => [n ? ", " : "", el("a", { href: "deviations.html#" + encodeURIComponent(id) }, id)])],
        ["cause", cause ? el("a", { href: "matrix.html#" + new URLSearchParams({ cause }) }, cause) : ""],
        ["time", status >= 0 && texts.seconds[i] ? (texts.seconds[i] / 100).toFixed(2) + " ms" : ""],
      ]),
      el("h2", {}, "Got and expected"),
      found(texts.message[i], status),
      ...(texts.traceback[i] ? repro("Traceback", whole(texts.traceback[i])) : []),
      el("h2", {}, "Reproduce it"),
      ...repro("With pytest", pytestLine(i)),
      ...(texts.torch[i] ? repro("In plain torch" + (texts.reproduced[i] === undefined ? "" : ": it " + texts.lines[texts.reproduced[i]]), whole(texts.torch[i])) : [el("p", { class: "note" }, "Run files hold the plain torch lines of cases that are not as promised.")]),
      el("h2", {}, "History"),
      past(i),
      ...others(i),
    );
  };
  window.addEventListener("hashchange", show);
  show();
})();
