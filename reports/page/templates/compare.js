// Comparison of a column with a report.json of this machine, compressed or not.

const LARGEST_FILE = 128 * 1024 * 1024, MOST_ROWS = 500;

async function textOf(file) {
  const start = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  return start[0] === 0x1f && start[1] === 0x8b ? boundedText(file) : file.text();
}

/** Text of a compressed file. A few bytes may hold gigabytes, so what comes out is counted. */
async function boundedText(file) {
  const reader = file.stream().pipeThrough(new DecompressionStream("gzip")).getReader(), parts = [];
  for (let size = 0; ;) {
    const { done, value } = await reader.read();
    if (done) return new Blob(parts).text();
    size += value.length;
    if (size > LARGEST_FILE) { await reader.cancel(); throw new RangeError(); }
    parts.push(value);
  }
}

async function compare(file) {
  const large = `${file.name} is larger than 128 MiB; no report of this suite is.`;
  if (file.size > LARGEST_FILE) return say(large, "");
  let report;
  try {
    report = JSON.parse(await textOf(file));
  } catch (error) {
    return say(error instanceof RangeError ? large : `${file.name} is no JSON. Choose the report.json of a run.`, "");
  }
  const other = endingsIn(report);
  if (!other) return say(`${file.name} is not a report of this suite. Choose the report.json of a run.`, "");
  const name = report.accelerator && report.accelerator.name;
  return showDifference(data.columns.find((column) => column.name === name) || data.columns[0], other, file.name);
}

/** Verdicts in a report by case, also in a packed one; null if it is no report. */
function endingsIn(report) {
  if (!report || typeof report !== "object" || !report.accelerator) return null;
  const rows = Array.isArray(report.cases) ? report.cases : packedCases(report);
  if (!rows) return null;
  const found = new Map();
  // Cells that PyTorch itself lacks count nowhere, as on the page.
  const counts = (row) => row.in_reference !== false || row.outcome !== "skip" || row.reason !== "undeclared";
  for (const row of rows) if (row && typeof row.id === "string" && counts(row)) found.set(row.id, `${row.outcome || "pass"}: ${row.reason || "native"}`);
  const lost = (report.accounting && report.accounting.unaccounted) || [];
  for (const row of Array.isArray(lost) ? lost : []) if (row) found.set(String(row.id), "no verdict: lost");
  return found;
}

function packedCases(report) {
  if (!Array.isArray(report.rows) || !Array.isArray(report.shapes)) return null;
  return report.rows.map((row) => {
    const shape = Array.isArray(row) && Array.isArray(report.shapes[row[1]]) ? report.shapes[row[1]][0] : null;
    return shape && { id: row[0], outcome: shape.outcome, reason: shape.reason, in_reference: shape.in_reference };
  });
}

function showDifference(column, other, name) {
  const rows = [], known = new Set(), sums = { better: 0, worse: 0, otherwise: 0, here: 0, there: 0 };
  data.ids.forEach((id, place) => {
    if (column.verdicts[place] === ABSENT) return;
    known.add(id);
    const mine = endingOf(column, place).join(": "), theirs = other.get(id);
    if (theirs === mine) return;
    sums[direction(mine, theirs)]++;
    rows.push([id, mine, theirs || "not in the file"]);
  });
  for (const [id, theirs] of other) if (!known.has(id)) { sums.there++; rows.push([id, "not on this page", theirs]); }
  say(`${column.title} against ${name}: ${rows.length === 1 ? "1 case differs" : `${counted(rows.length)} cases differ`}`,
    `${sums.worse} pass here and not in the file, ${sums.better} pass in the file and not here, ` +
    `${sums.otherwise} differ in another way, ${sums.here} are only here, ${sums.there} only in the file.` +
    (rows.length > MOST_ROWS ? ` The first ${MOST_ROWS} are shown.` : ""), rows.slice(0, MOST_ROWS));
}

function direction(mine, theirs) {
  if (theirs === undefined) return "here";
  const passes = [mine, theirs].map((words) => words.startsWith("pass"));
  return passes[0] === passes[1] ? "otherwise" : passes[0] ? "worse" : "better";
}

function say(title, text, rows = []) {
  const section = byId("difference");
  byId("difference-title").textContent = title;
  section.querySelector("p").textContent = text;
  section.querySelector(".scroll").hidden = rows.length === 0;
  section.querySelector("tbody").replaceChildren(...rows.map(([id, mine, theirs]) =>
    element("tr", {}, element("th", { scope: "row" }, id), element("td", {}, mine), element("td", {}, theirs))));
  section.hidden = false;
  section.scrollIntoView({ block: "start" });
  section.focus({ preventScroll: true });
}

function listenForFiles() {
  byId("other").addEventListener("change", (event) => { if (event.target.files[0]) compare(event.target.files[0]); });
  byId("difference").querySelector("button").addEventListener("click", () => { byId("difference").hidden = true; byId("other").value = ""; });
  document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
  document.addEventListener("dragleave", () => document.body.classList.remove("dropping"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    if (event.dataTransfer.files[0]) compare(event.dataTransfer.files[0]);
  });
}


// --- since a day --------------------------------------------------------------------------------------------------

const RANKS = { fail: 0, skip: 1, pass: 2 };
const SHOWN_CHANGES = 20;

/** Days of the earlier runs, the newest first. */
function daysBefore() {
  return [...new Set(data.columns.flatMap((column) => column.history.map((run) => run.day)))].filter(Boolean).sort().reverse();
}

/** Verdicts of a column in its newest run of a day or before; null if it has none. */
function lettersOn(column, day) {
  const number = column.history.findIndex((run) => run.day <= day);
  if (number < 0) return null;
  const letters = [...column.verdicts];
  for (const run of column.history.slice(0, number + 1)) for (const [place, letter] of Object.entries(run.changed)) letters[place] = letter;
  return { letters, run: column.history[number] };
}

/** What broke and what was mended in a column since a day. */
function changedSince(column, day) {
  const before = lettersOn(column, day), broke = [], mended = [];
  if (!before) return null;
  before.letters.forEach((letter, place) => {
    const rank = (one) => RANKS[endingOfLetter(one)[0]] ?? 1;
    if (letter === ABSENT || column.verdicts[place] === ABSENT || letter === column.verdicts[place]) return;
    const step = rank(column.verdicts[place]) - rank(letter);
    if (step) (step < 0 ? broke : mended).push(place);
  });
  return { day: before.run.day, broke, mended };
}

function listenForDays() {
  const days = daysBefore(), select = byId("since");
  if (!days.length) return;
  for (const day of days) select.append(new Option(day, day));
  select.addEventListener("change", () => showSince(select.value));
  byId("since-line").hidden = false;
}

function showSince(day) {
  const item = (column) => (place) => element("li", {}, element("a", { href: `#${new URLSearchParams({ case: `${column.title}|${data.ids[place]}` })}` }, data.ids[place]));
  const part = (column, words, places, style) => (places.length ? element("details", {}, element("summary", { class: style }, `${words} ${plural(places.length, "case")}`),
    element("ul", {}, ...places.slice(0, SHOWN_CHANGES).map(item(column)), places.length > SHOWN_CHANGES ? element("li", {}, `… and ${counted(places.length - SHOWN_CHANGES)} more`) : "")) : "");
  byId("since-list").replaceChildren(...(day ? data.columns.map((column) => {
    const found = changedSince(column, day);
    const words = !found ? "no run of that day or before" : found.broke.length + found.mended.length ? `since ${found.day}` : `since ${found.day}: no case changed`;
    return element("li", {}, element("b", {}, column.title), ` ${words}`, ...(found ? [part(column, "▼ broke:", found.broke, "worse"), part(column, "▲ mended:", found.mended, "better")] : []));
  }) : []));
}
