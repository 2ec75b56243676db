"use strict";
// What the scripts of both halves of the site share.
window.page = (() => {
  // Every text reaches a page through here, as a text node: nothing in a file of results can become markup.
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
  const box = (label, table) => el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": label }, table);
  const table = (caption, headings, rows) =>
    el(
      "table",
      {},
      caption ? el("caption", {}, caption) : "",
      el("thead", {}, el("tr", {}, ...headings.map((heading) => el("th", { scope: "col" }, heading)))),
      el("tbody", {}, ...rows),
    );
  // A table of the first rows, and a button for the others.
  const list = (label, headings, items, most, row) => {
    const shown = table("", headings, items.slice(0, most).map(row));
    if (items.length <= most) return [box(label, shown)];
    const button = el("button", { type: "button" }, `Show the other ${number(items.length - most)}`);
    button.addEventListener("click", () => { shown.tBodies[0].append(...items.slice(most).map(row)); button.remove(); });
    return [box(label, shown), button];
  };
  // "a3.b" is a letter for each of many, with its count where it is not 1; "." is for none.
  const eachRun = (text, fill) => {
    let place = 0;
    for (const [, letter, count] of text.matchAll(/([a-z.])(\d*)/g)) {
      const end = place + Number(count || 1);
      if (letter !== ".") fill(letter, place, end);
      place = end;
    }
  };

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

  // What a phone folds away is open where there is room, or where a filter in it is set.
  const unfold = () => {
    for (const details of document.querySelectorAll("details.further")) {
      details.open ||= innerWidth > 600 || [...details.querySelectorAll("select")].some((field) => field.value);
    }
  };
  // Keeps a form's fields in the address. `changed` is called with whether a reader changed a field; `extra` adds
  // parameters. Returns what writes the address.
  const filters = (form, changed, extra = () => []) => {
    const read = () => {
      const wanted = address();
      for (const field of form.elements) {
        if (!field.name) continue;
        const value = wanted.get(field.name) || "";
        if (field.tagName === "SELECT" && ![...field.options].some((option) => option.value === value)) {
          field.append(new Option(value, value)); // a link to what this site does not have must say so, not show all
        }
        field.value = value;
      }
      changed(false);
      unfold();
    };
    const write = () => {
      const parameters = new URLSearchParams();
      for (const field of form.elements) if (field.name && field.value) parameters.set(field.name, field.value);
      for (const [name, value] of extra()) parameters.append(name, value);
      setAddress(parameters);
    };
    form.addEventListener("input", () => { write(); changed(true); });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", (event) => { event.preventDefault(); setAddress(new URLSearchParams()); read(); });
    window.addEventListener("hashchange", () => { if (location.hash.includes("=") || !location.hash) read(); });
    read();
    return write;
  };

  // Fills the two lists of a comparison with the runs of the kind that is chosen and keeps all of it in the address.
  // `render` gets the linked runs that are not here.
  const pick = (form, kinds, render) => {
    const names = ["a", "b"];
    let filled = "";
    const fill = () => {
      const kind = kinds[form.elements.what.value];
      if (filled === form.elements.what.value) return;
      filled = form.elements.what.value;
      for (const name of names) {
        form.elements[name].replaceChildren(...kind.runs.map((run) => el("option", { value: run.name }, kind.label(run))));
        form.elements[name].value = kind.usual[name];
      }
    };
    const read = () => {
      const wanted = address();
      const known = (name) => Object.values(kinds).some((kind) => kind.runs.some((run) => run.name === name));
      const [first] = Object.keys(kinds);
      const ofRun = Object.keys(kinds).find((kind) => kinds[kind].runs.some((run) => run.name === wanted.get("b")));
      form.elements.what.value = wanted.get("what") in kinds ? wanted.get("what") : ofRun || first;
      filled = "";
      fill();
      for (const name of names) if (known(wanted.get(name))) form.elements[name].value = wanted.get(name);
      form.elements.q.value = wanted.get("q") || "";
      render(names.map((name) => wanted.get(name)).filter((name) => name && !known(name)));
    };
    const changed = () => {
      fill();
      const parameters = new URLSearchParams();
      for (const field of form.elements) if (field.name && field.value) parameters.set(field.name, field.value);
      setAddress(parameters);
      render([]);
    };
    form.addEventListener("input", changed);
    form.addEventListener("submit", (event) => event.preventDefault());
    document.getElementById("swap").addEventListener("click", () => {
      [form.elements.a.value, form.elements.b.value] = [form.elements.b.value, form.elements.a.value];
      changed();
    });
    window.addEventListener("hashchange", read);
    read();
  };

  return { el, number, box, table, list, eachRun, address, setAddress, filters, pick };
})();
