"use strict";
// The matrix is in the HTML already. This adds filters, single cases, permalinks, and comparing with a file.
(async () => {
  const ABSENT = "-", LOST = ".";
  const FILTERS = ["area", "dtype", "mode", "on", "outcome", "text", "ask"];
  const LARGEST_FILE = 128 * 1024 * 1024, MOST_ROWS = 500;

  const byId = (id) => document.getElementById(id);
  const form = byId("filters"), table = byId("matrix"), dialog = byId("cell");
  const bodies = [...table.tBodies];
  const data = await unpack(byId("data").textContent).catch(() => null);
  if (!data) return bodies.forEach((body) => body.classList.add("open")); // an old browser: the whole table, as without scripts

  const areas = readAreas();
  const state = { area: "", dtype: "", mode: "", on: "", outcome: "", text: "", ask: "", cell: "", case: "" };
  const opened = new Set();
  let shownOn = "";

  async function unpack(text) {
    if (!("DecompressionStream" in window)) return null;
    const signs = atob(text), bytes = new Uint8Array(signs.length);
    for (let i = 0; i < signs.length; i++) bytes[i] = signs.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  /** Areas with their subjects, and which cases and table rows are theirs. */
  function readAreas() {
    const found = [];
    let first = 0;
    for (const [area, name, count] of data.rows) {
      if (!found.length || found[found.length - 1].name !== area) {
        const body = bodies[found.length], lines = [...body.rows];
        found.push({ name: area, body, lines, line: lines[0], subjects: [], first });
      }
      const mine = found[found.length - 1];
      mine.subjects.push({ area, name, first, end: first + count, line: mine.lines[mine.subjects.length + 1] });
      first += count;
      mine.end = first;
    }
    return found;
  }

  // --- what a cell says: the same rules as in the HTML ---------------------------------------------------------

  function sumUp(column, first, end, chosen) {
    let number = 0, passed = 0, failed = 0;
    const marks = new Set();
    for (let place = first; place < end; place++) {
      if (!chosen(column, place)) continue;
      number++;
      const ending = data.letters[column.verdicts[place]];
      if (!ending) continue;
      if (ending[0] === "pass") passed++;
      else if (ending[0] === "fail") failed++;
      else marks.add(data.reasons[ending[1]].mark);
    }
    if (failed) return { mark: "fail", text: `${data.marks.fail} ${failed}/${number}`, number };
    if (passed === number && number) return { mark: "full", text: `${data.marks.full} ${number}`, number };
    if (passed) return { mark: "part", text: `${data.marks.part} ${passed}/${number}`, number };
    const mark = ["refused", "undeclared"].find((name) => marks.has(name)) || "nodata";
    return { mark, text: data.marks[mark], number };
  }

  function outcomeOf(column, place) {
    const letter = column.verdicts[place];
    if (letter === LOST) return ["no verdict", "lost"];
    return data.letters[letter] || ["not planned", "–"];
  }

  /** The question whether a case counts under the present filters. */
  function chooser() {
    const text = state.text.toLowerCase();
    const axesFit = data.axes.map((axes) =>
      (!state.dtype || axes.dtype === state.dtype) && (!state.mode || axes.mode === state.mode));
    const training = 1 << data.profiles.indexOf("training");
    return (column, place) => {
      const letter = column.verdicts[place];
      if (letter === ABSENT || !axesFit[data.axis[place]]) return false;
      if (text && !data.ids[place].toLowerCase().includes(text)) return false;
      if (!state.outcome && !state.ask) return true;
      const [outcome, reason] = outcomeOf(column, place);
      if (state.outcome && outcome !== state.outcome && reason !== state.outcome) return false;
      if (state.ask === "training") return outcome !== "pass" && (parseInt(data.inside[place], 16) & training) !== 0;
      if (state.ask === "declaration") return Boolean(data.reasons[reason] && data.reasons[reason].contradicts);
      if (state.ask === "regressions") return isPass(column.before[place]) && !isPass(letter);
      return true;
    };
  }

  function isPass(letter) {
    return letter !== undefined && data.letters[letter] !== undefined && data.letters[letter][0] === "pass";
  }

  // --- the table -----------------------------------------------------------------------------------------------

  function show() {
    const chosen = chooser();
    const narrowed = state.text || state.outcome || state.ask;
    let number = 0;
    showColumns();
    for (const area of areas) {
      const cells = data.columns.map((column) => sumUp(column, area.first, area.end, chosen));
      const inside = !state.area || state.area === area.name;
      const here = inside ? cells.reduce((sum, cell, i) => sum + (isShown(i) ? cell.number : 0), 0) : 0;
      number += here;
      area.body.hidden = here === 0;
      if (!here) continue;
      fill(area.line, cells, false);
      const open = opened.has(area.name) || Boolean(narrowed) || state.area === area.name;
      area.line.querySelector("button").setAttribute("aria-expanded", String(open));
      // A style hides the rows of a closed area, and has hidden all of them before they were laid out.
      area.body.classList.toggle("open", open);
      if (open) for (const subject of area.subjects) showSubject(subject, chosen);
    }
    byId("found").textContent = `${number.toLocaleString("en")} results`;
  }

  function showSubject(subject, chosen) {
    const cells = data.columns.map((column) => sumUp(column, subject.first, subject.end, chosen));
    subject.line.hidden = !cells.some((cell, i) => cell.number && isShown(i));
    if (!subject.line.hidden) fill(subject.line, cells, true);
  }

  function isShown(index) {
    return !state.on || data.columns[index].title === state.on;
  }

  /** Nothing is done until a column was asked for: thousands of rows have nine cells each. */
  function showColumns() {
    if (state.on === shownOn) return;
    shownOn = state.on;
    for (const line of table.rows)
      for (let i = 0; i < data.columns.length; i++) line.cells[i + 1].hidden = !isShown(i);
  }

  function fill(line, cells, asButtons) {
    cells.forEach((cell, i) => {
      const place = line.cells[i + 1];
      place.className = cell.mark;
      if (!asButtons) { place.textContent = cell.text; return; }
      const button = place.querySelector("button") || place.appendChild(emptied(place, "button"));
      button.type = "button";
      button.textContent = cell.text;
    });
  }

  function emptied(place, name) {
    place.textContent = "";
    return document.createElement(name);
  }

  // --- one cell ------------------------------------------------------------------------------------------------

  function findSubject(name) {
    for (const area of areas)
      for (const subject of area.subjects) if (`${subject.area}.${subject.name}` === name) return subject;
    return null;
  }

  function openCell() {
    const [title, name] = split(state.cell);
    const column = data.columns.find((one) => one.title === title), subject = findSubject(name);
    if (!column || !subject) { state.cell = state.case = ""; return; }
    byId("cell-title").textContent = `${name} on ${title}`;
    const rows = dialog.querySelector("tbody");
    rows.replaceChildren();
    for (let place = subject.first; place < subject.end; place++) rows.append(caseLine(column, place));
    const asked = data.ids.indexOf(state.case);
    showCase(column, asked >= subject.first && asked < subject.end ? asked : worst(column, subject));
    if (!dialog.open) dialog.showModal();
  }

  function split(text) {
    const at = text.indexOf("|");
    return [text.slice(0, at), text.slice(at + 1)];
  }

  function worst(column, subject) {
    for (const wanted of ["fail", "no verdict", "skip"])
      for (let place = subject.first; place < subject.end; place++)
        if (outcomeOf(column, place)[0] === wanted) return place;
    return subject.first;
  }

  function caseLine(column, place) {
    const line = document.createElement("tr"), [outcome, reason] = outcomeOf(column, place);
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = data.ids[place];
    button.addEventListener("click", () => showCase(column, place));
    const name = line.appendChild(document.createElement("th"));
    name.scope = "row";
    name.append(button);
    line.dataset.place = String(place);
    const verdict = line.appendChild(document.createElement("td"));
    verdict.textContent = outcome;
    verdict.className = outcome === "pass" ? "full" : outcome === "fail" ? "fail" : "nodata";
    line.appendChild(document.createElement("td")).textContent = reason;
    return line;
  }

  function showCase(column, place) {
    const id = data.ids[place], one = dialog.querySelector(".one"), [outcome, reason] = outcomeOf(column, place);
    for (const line of dialog.querySelectorAll("tbody tr")) {
      line.classList.toggle("chosen", line.dataset.place === String(place));
      if (line.dataset.place === String(place)) line.scrollIntoView({ block: "nearest" });
    }
    one.replaceChildren();
    append(one, "h3", id);
    append(one, "p", `${outcome}: ${reason}${column.waived.includes(place) ? " (under a waiver)" : ""}`);
    const message = column.messages[column.message[place]];
    if (message) append(one, "pre", message.replaceAll("\u0001", id));
    appendFacts(one, "Numbers", { "share of the error budget": budget(column.shares[place]), ...(column.details[place] || {}) });
    appendRepro(one, column, place);
    appendFacts(one, "Environment", column.run);
    state.case = id;
    remember();
  }

  /** The command that repeats a case. `publish` has checked and quoted its parts; only the id is added here. */
  function appendRepro(parent, column, place) {
    if (!column.repro.length || data.unrepeatable.includes(place)) return;
    const [head, tail] = column.repro, words = head + shellQuoted(data.ids[place]) + tail;
    append(parent, "h4", "Repeat it");
    append(parent, "pre", words);
    const copy = append(parent, "button", "Copy");
    copy.type = "button";
    copy.addEventListener("click", () => copyText(words, copy));
  }

  /** One word for a POSIX shell, as Python's shlex.quote writes it. */
  function shellQuoted(word) {
    return `'${word.replaceAll("'", `'"'"'`)}'`;
  }

  function budget(letter) {
    if (!letter || letter === ABSENT) return "";
    if (letter === "0") return "none: exact";
    const power = letter.charCodeAt(0) - 97 - 10;
    return power <= 0 ? `at most 1/${2 ** -power}` : `more than ${2 ** (power - 1)} times the budget`;
  }

  function append(parent, name, text) {
    const made = parent.appendChild(document.createElement(name));
    made.textContent = text;
    return made;
  }

  function appendFacts(parent, title, facts) {
    const rows = Object.entries(facts).filter(([, value]) => value !== "");
    if (!rows.length) return;
    append(parent, "h4", title);
    const list = append(parent, "dl", "");
    for (const [name, value] of rows) {
      const pair = append(list, "div", "");
      append(pair, "dt", name);
      append(pair, "dd", typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value));
    }
  }

  async function copyText(text, button) {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select the line above and copy it";
    }
  }

  // --- comparing with a file -----------------------------------------------------------------------------------

  async function compare(file) {
    if (file.size > LARGEST_FILE) return say(`${file.name} is larger than 128 MiB; no report of this suite is.`, "");
    let report;
    try {
      report = JSON.parse(await file.text());
    } catch {
      return say(`${file.name} is not JSON. Drop the report.json of a run.`, "");
    }
    const other = endingsIn(report);
    if (!other) return say(`${file.name} is not a report of this suite. Drop the report.json of a run.`, "");
    const column = data.columns.find((one) => one.title === state.on)
      || data.columns.find((one) => one.name === report.accelerator.name) || data.columns[0];
    return showDifference(column, other, file.name);
  }

  function endingsIn(report) {
    if (!report || typeof report !== "object" || !Array.isArray(report.cases) || !report.accelerator) return null;
    const found = new Map();
    for (const one of report.cases)
      if (one && typeof one.id === "string") found.set(one.id, `${one.outcome || "pass"}: ${one.reason || "native"}`);
    const lost = (report.accounting && report.accounting.unaccounted) || [];
    for (const one of Array.isArray(lost) ? lost : []) found.set(String(one.id), "no verdict: lost");
    return found;
  }

  function showDifference(column, other, name) {
    const rows = [], sums = { better: 0, worse: 0, otherwise: 0, here: 0, there: 0 };
    const known = new Set();
    data.ids.forEach((id, place) => {
      if (column.verdicts[place] === ABSENT) return;
      known.add(id);
      const mine = outcomeOf(column, place).join(": "), theirs = other.get(id);
      if (theirs === mine) return;
      sums[kind(mine, theirs)]++;
      rows.push([id, mine, theirs || "not in the file"]);
    });
    for (const [id, theirs] of other) if (!known.has(id)) { sums.there++; rows.push([id, "not on this page", theirs]); }
    say(`${column.title} against ${name}: ${rows.length} cases differ`,
      `${sums.worse} pass here and not in the file, ${sums.better} pass in the file and not here, ` +
      `${sums.otherwise} differ in another way, ${sums.here} are only here, ${sums.there} only in the file.` +
      (rows.length > MOST_ROWS ? ` The first ${MOST_ROWS} are shown.` : ""), rows.slice(0, MOST_ROWS));
  }

  function kind(mine, theirs) {
    if (theirs === undefined) return "here";
    const passes = [mine, theirs].map((one) => one.startsWith("pass"));
    return passes[0] === passes[1] ? "otherwise" : passes[0] ? "worse" : "better";
  }

  function say(title, text, rows = []) {
    const section = byId("difference"), body = section.querySelector("tbody");
    byId("difference-title").textContent = title;
    section.querySelector("p").textContent = text;
    section.querySelector(".wide").hidden = rows.length === 0;
    body.replaceChildren(...rows.map((cells) => {
      const line = document.createElement("tr");
      cells.forEach((cell, i) => append(line, i ? "td" : "th", cell));
      line.cells[0].scope = "row";
      return line;
    }));
    section.hidden = false;
    section.focus();
  }

  // --- state, in the address -----------------------------------------------------------------------------------

  function remember() {
    const words = new URLSearchParams(Object.entries(state).filter(([, value]) => value));
    if (opened.size) words.set("open", [...opened].join(","));
    history.replaceState(null, "", `#${words}`);
  }

  function recall() {
    const words = new URLSearchParams(location.hash.slice(1));
    for (const name of Object.keys(state)) state[name] = words.get(name) || "";
    opened.clear();
    for (const name of (words.get("open") || "").split(",")) if (name) opened.add(name);
    for (const name of FILTERS) form.elements[name].value = state[name];
    for (const name of FILTERS) state[name] = form.elements[name].value; // a name that is not there is no filter
    show();
    if (state.cell) openCell();
    else if (dialog.open) dialog.close();
  }

  function offer(name, values) {
    for (const value of values) form.elements[name].append(new Option(value, value));
  }

  function prepare() {
    const axes = (name) => [...new Set(data.axes.map((one) => one[name]).filter(Boolean))].sort();
    offer("area", areas.map((area) => area.name));
    offer("dtype", axes("dtype"));
    offer("mode", axes("mode"));
    offer("on", data.columns.map((column) => column.title));
    const used = new Set(data.columns.flatMap((column) => [...new Set(column.verdicts)]));
    const endings = [...used].map((letter) => data.letters[letter]).filter(Boolean);
    offer("outcome", [...new Set([...endings.map((one) => one[0]), ...endings.map((one) => one[1])])].sort());
    for (const area of areas) {
      const head = area.line.cells[0], button = emptied(head, "button");
      button.type = "button";
      button.textContent = area.name;
      head.append(button);
    }
    for (const time of document.querySelectorAll("time.age")) {
      const days = Math.floor((Date.now() - Date.parse(time.dateTime)) / 86400000);
      if (days >= 0) time.textContent += `, ${days} ${days === 1 ? "day" : "days"} ago`;
    }
    form.hidden = false;
  }

  function listen() {
    form.addEventListener("input", (event) => {
      if (event.target.id === "other") return;
      for (const name of FILTERS) state[name] = form.elements[name].value;
      show();
      remember();
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(() => { for (const name of FILTERS) state[name] = ""; show(); remember(); }));
    table.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) press(button);
    });
    table.addEventListener("keydown", move);
    dialog.addEventListener("close", () => { state.cell = state.case = ""; remember(); });
    window.addEventListener("hashchange", recall);
    byId("difference").querySelector("button").addEventListener("click", () => { byId("difference").hidden = true; byId("other").value = ""; });
    byId("other").addEventListener("change", (event) => { if (event.target.files[0]) compare(event.target.files[0]); });
    document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
    document.addEventListener("dragleave", () => document.body.classList.remove("dropping"));
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      document.body.classList.remove("dropping");
      if (event.dataTransfer.files[0]) compare(event.dataTransfer.files[0]);
    });
  }

  function press(button) {
    const line = button.closest("tr"), cell = button.closest("th, td");
    const area = areas.find((one) => one.body === line.parentElement);
    if (cell.cellIndex === 0) {
      if (!opened.delete(area.name)) opened.add(area.name);
      show();
    } else {
      const subject = area.subjects.find((one) => one.line === line);
      state.cell = `${data.columns[cell.cellIndex - 1].title}|${subject.area}.${subject.name}`;
      openCell();
    }
    remember();
  }

  /** Arrow keys go from cell to cell. */
  function move(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const button = event.target.closest("button"), step = steps[event.key];
    if (!button || !step) return;
    const lines = [...table.querySelectorAll("tbody:not([hidden]) :is(tr.area, .open > tr:not([hidden]))")];
    const cell = button.closest("th, td");
    for (let at = lines.indexOf(cell.parentElement) + step[0], across = cell.cellIndex + step[1];
      lines[at] && lines[at].cells[across]; at += step[0], across += step[1]) {
      const next = lines[at].cells[across].querySelector("button");
      if (next) { event.preventDefault(); next.focus(); return; }
    }
  }

  prepare();
  listen();
  recall();
  document.documentElement.dataset.ready = "yes";
})();
