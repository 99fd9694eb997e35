// One subject on one accelerator: the grid of its cases, and one case with its evidence.

/** The grid's rows and columns: dtypes, and the other axes of a case. The longer of both goes down. */
function gridOf(subject) {
  const cells = [...between(subject.first, subject.end)].map((place) => {
    const { dtype, ...rest } = data.axes[data.axis[place]];
    return { place, dtype: dtype || "", rest: Object.values(rest).join(" ") };
  });
  if (!cells.some((cell) => cell.dtype)) return { cells };
  const without = cells.filter((cell) => !cell.dtype), cased = cells.filter((cell) => cell.dtype);
  const order = (name) => (KNOWN_DTYPES.includes(name) ? KNOWN_DTYPES.indexOf(name) : KNOWN_DTYPES.length);
  const dtypes = [...new Set(cased.map((cell) => cell.dtype))].sort((a, b) => order(a) - order(b) || (a < b ? -1 : 1));
  const others = [...new Set(cased.map((cell) => cell.rest))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const turned = others.length > Math.max(dtypes.length, 4);
  const keys = new Map(cased.map((cell) => [turned ? `${cell.rest}\n${cell.dtype}` : `${cell.dtype}\n${cell.rest}`, cell.place]));
  return { cells: without, keys, down: turned ? others : dtypes, across: turned ? dtypes : others };
}

function caseButton(column, place, chosen, marked, words = "") {
  const mark = markOf(column, place), [outcome, reason] = endingOf(column, place), absent = column.verdicts[place] === ABSENT;
  const share = shareWords(shareOf(column, place));
  const said = absent ? "not planned" : mark === "full" ? share || "pass" : outcome === "fail" ? reason : data.marks[mark][2];
  const style = outcome === "fail" ? `${data.marks[mark][1]}3` : data.marks[mark][1];
  return element("button", {
    type: "button", class: marked(place) ? style : `${style} dim`, "aria-pressed": String(place === chosen), data: { place: String(place) },
    "aria-label": `${data.ids[place]}: ${outcome}, ${reason}${share ? `, ${share} of the budget` : ""}`,
  }, `${data.marks[mark][0]} ${words || said}`);
}

function caseGrid(column, subject, chosen, marked) {
  const grid = gridOf(subject);
  const list = element("div", { class: "list" }, ...grid.cells.map((cell) =>
    caseButton(column, cell.place, chosen, marked, grid.keys || grid.cells.length > 1 ? cell.rest || data.ids[cell.place] : "")));
  if (!grid.keys) return list;
  const head = element("tr", {}, element("td", {}), ...grid.across.map((name) => element("th", { scope: "col" }, name || "–")));
  const lines = grid.down.map((name) => element("tr", {}, element("th", { scope: "row" }, name || "–"), ...grid.across.map((other) => {
    const place = grid.keys.get(`${name}\n${other}`);
    return element("td", {}, place === undefined ? "does not apply" : caseButton(column, place, chosen, marked));
  })));
  const table = element("table", { class: "grid" }, element("thead", {}, head), element("tbody", {}, ...lines));
  return element("div", {}, element("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Cases by dtype and mode" }, table), list);
}

/** The evidence of one case. */
function caseSection(column, place) {
  const id = data.ids[place], [outcome, reason] = endingOf(column, place), known = data.reasons[reason] || {};
  const message = column.messages[column.message[place]], share = shareOf(column, place), mark = data.marks[markOf(column, place)];
  const section = element("section", { class: "one", "aria-live": "polite" }, element("h3", {}, ...breakable(id)),
    element("p", { class: mark[1] }, element("b", {}, `${mark[0]} ${outcome}: ${reason}`), column.waived.includes(place) ? " (under a waiver)" : ""),
    known.when ? element("p", { class: "quiet" }, `${known.when} ${outcome === "fail" ? known.fix : ""}`) : "");
  if (message) section.append(element("pre", {}, message.replaceAll("\u0001", id)));
  if (share !== null) {
    section.append(element("h4", {}, "Error"), element("p", {}, share === 0 ? "exact: no error at all" : `${shareWords(share)} its budget`),
      element("meter", { min: 0, low: 1, high: 1, optimum: 0, max: 4, value: Math.min(share, 4), "aria-label": "share of the error budget; 1 is all of it" }));
  }
  const repro = reproOf(column, place);
  if (repro) section.append(element("h4", {}, "Repeat it"), element("pre", {}, repro), button("Copy the command", (pressed) => copyText(repro, pressed)));
  const runs = runsOf(column, place);
  if (runs.length > 1) section.append(element("h4", {}, `The last ${runs.length} runs`), element("ol", { class: "runs" }, ...runs));
  const numbers = Object.entries(column.details[place] || {});
  if (numbers.length) section.append(element("h4", {}, "Numbers"), facts(numbers.map(([name, value]) => [name, shortNumber(value)])));
  section.append(element("details", {}, element("summary", {}, "Environment"), facts(Object.entries(column.run))));
  return section;
}

function shortNumber(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value);
}

function runsOf(column, place) {
  const runs = [{ day: column.day, driver: column.run.driver || "" }, ...column.history];
  return [column.verdicts[place], ...lettersBefore(column, place)].map((letter, i) => {
    const [outcome, reason] = endingOfLetter(letter);
    return element("li", { class: outcome === "fail" ? "x2" : "" }, element("span", {}, outcome === "pass" ? "✓ pass" : reason), runs[i].day,
      runs[i].driver ? ` · ${runs[i].driver}` : "");
  }).reverse();
}

/** The command that repeats a case. `publish` has checked and quoted its parts; only the id is added here. */
function reproOf(column, place) {
  if (!column.repro.length || column.verdicts[place] === ABSENT || data.unrepeatable.includes(place)) return "";
  return column.repro[0] + shellQuoted(data.ids[place]) + column.repro[1];
}

/** One word for a POSIX shell, as Python's shlex.quote writes it. */
function shellQuoted(word) {
  return `'${word.replaceAll("'", `'"'"'`)}'`;
}
