// The matrix is in the HTML already. This adds the question, filters, single cases, and addresses of all of them.
(async () => {
  const FILTERS = ["show", "dtype", "mode", "text"];
  const MANY_SUBJECTS = 60, SHOWN_SUBJECTS = 40;
  const form = byId("filters"), table = byId("table"), dialog = byId("cell");
  const bodies = [...table.tBodies];
  data = await readData(byId("data").textContent).catch(() => null);
  if (!data) return bodies.forEach((body) => body.classList.add("open")); // an old browser: the whole table, as without scripts

  const areas = readAreas();
  const subjects = data.subjects = areas.flatMap((area) => area.subjects);
  const state = { q: "", show: "", dtype: "", mode: "", text: "", cell: "", case: "" };
  const opened = new Set(), whole = new Set();
  let marked = () => true, drawn = false, returnTo = null;

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
      mine.subjects.push({ area, name, first, end: first + count, line: mine.lines[mine.subjects.length + 1], search: searchable(area, name) });
      first += count;
      mine.end = first;
    }
    return found;
  }

  // --- the question ------------------------------------------------------------------------------------------------

  function answer() {
    const box = byId("answer"), asked = understood(state.q);
    if (!state.q.trim()) return box.replaceChildren();
    if (asked.device) return box.replaceChildren(noColumn(asked));
    if (asked.lacking) return box.replaceChildren(noDtype(asked));
    if (asked.topic && asked.topic.length) return box.replaceChildren(topic(asked));
    const named = asked.words.length ? subjectsNamed(asked.words, subjects) : subjects;
    if (!named.length) return box.replaceChildren(notFound(asked));
    const places = placesAsked(named, asked), what = subjectWords(asked, named);
    if (!places.length) return box.replaceChildren(reply("apply", `There is no case of ${what}.`, null, otherAxes(named)));
    const answers = (asked.columns || data.columns).map((column) => judged(column, places));
    box.replaceChildren(answers.length === 1 ? one(answers[0], what, asked) : several(answers, what, asked));
    box.querySelector(".acts").append(...also(asked, named));
  }

  /** Buttons for subjects of the same name in other areas. */
  function also(asked, named) {
    return namesakes(asked.words, subjects, named).slice(0, 3).map(({ area, name }) =>
      button(`See also ${area}.${name}`, () => ask(state.q.replace(asked.words[0], `${area}.${name}`))));
  }

  function reply(kind, words, list, acts) {
    return element("div", { class: `reply ${kind}` }, element("h2", {}, element("b", {}, WORDS[kind] || ""), " ", words), list || "", element("div", { class: "acts" }, ...acts));
  }

  /** Suggestions for words that several subjects have to do with. */
  function topic(asked) {
    const rest = [asked.dtype && asked.dtype.split("|")[0], asked.mode, ...asked.accelerators].filter(Boolean);
    return reply("unknown", `“${asked.other}” is no single subject here. These have to do with it:`, null,
      asked.topic.map((name) => button(name, () => ask([name, ...rest].join(" ")))));
  }

  /** The answer about a product whose backend has no column: another column's answer would mislead. */
  function noColumn({ device }) {
    return reply("unknown", `No report of “${device.typed}” is on this page${device.backend === device.typed.toLowerCase() ? "" : `; its backend is ${device.backend}`}. These accelerators are:`, null,
      data.columns.map(({ title }) => button(title, () => ask(replaced(device.typed, title)))));
  }

  /** The answer about a dtype that no case has. */
  function noDtype({ lacking }) {
    return reply("apply", `No case has the dtype “${lacking.typed}”. The nearest ones are:`, null,
      lacking.nearest.map((name) => button(name, () => ask(replaced(lacking.typed, name)))));
  }

  /** The question with other words in the place of some. */
  function replaced(words, others) {
    const at = state.q.toLowerCase().indexOf(words.toLowerCase());
    return at < 0 ? others : state.q.slice(0, at) + others + state.q.slice(at + words.length);
  }

  function notFound(asked) {
    const { lost, near, known, instead } = suggestions(asked, subjects), word = instead || asked.words.join(" ");
    const words = lost.length ? `Nothing here is called “${word}”.` : `No subject has all of the words “${word}”.`;
    if (!lost.length && near.length) return reply("unknown", `${words} Ask about one of them:`, null, near.map((name) => button(name, () => ask(name))));
    if (!near.length && known.length) return reply("unknown", `${words} Ask without it:`, null, [known.join(" "), ...known].map((name) => button(name, () => ask(name))).slice(0, known.length > 1 ? 99 : 1));
    const typed = state.q.toLowerCase().includes(instead.toLowerCase()) ? instead : state.q.split(/[\s,;?!()[\]]+/).find((part) => part.includes(lost[0])) || lost[0];
    if (near.length) return reply("unknown", `${words} Did you mean:`, null, near.map((name) => button(name, () => ask(replaced(typed, name)))));
    // A dead end has a way out too: the areas are all there is.
    return reply("unknown", `${words} The areas of this page:`, null, areas.map((area) => button(area.name, () => { opened.add(area.name); show(); goTo(area, area.name); })));
  }

  /** Buttons for the dtypes and modes that the subjects do have. */
  function otherAxes(named) {
    const found = new Set(named.flatMap((subject) => [...between(subject.first, subject.end)]).map((place) => data.axes[data.axis[place]]));
    const names = [...new Set([...found].map((axes) => [axes.dtype, axes.mode].filter(Boolean).join(" ")))].filter(Boolean).slice(0, 12);
    const { words, accelerators } = understood(state.q);
    return names.map((name) => button(name, () => ask([...words, name, ...accelerators].join(" "))));
  }

  function one(found, what, asked) {
    const { column, counts } = found;
    const list = facts([["cases", `${counted(counts.pass)} of ${counted(counts.planned)} pass`],
      ["worst error", found.worst === null ? "" : found.worst === 0 ? "exact" : `${shareWords(found.worst)} the budget`],
      ["run", column.day], ["driver", column.run.driver], ["answers for it", column.answers]], "facts");
    const repro = found.kind === "unknown" && counts.planned ? reproOf(column, found.place) : "";
    return reply(found.kind, sentence(found, what), list, [
      counts.planned ? button("Open the cases", () => openFrom(found, asked)) : "",
      data.columns.length > 1 ? button("On every accelerator", () => ask(without(asked.accelerators))) : "",
      repro ? button("Copy the command that finds out", (pressed) => copyText(repro, pressed)) : "",
      button("Copy the link", (pressed) => copyText(location.href, pressed))]);
  }

  function several(answers, what, asked) {
    const good = answers.filter((found) => found.kind === "yes").map((found) => found.column.title);
    const some = answers.filter((found) => found.kind === "partly").length;
    const lines = answers.map((found) => element("li", found.kind === "yes" ? {} : { class: "long" }, element("span", { class: signStyle(found) }, sign(found)), element("b", {}, found.column.title),
      element("span", {}, found.kind === "yes" ? `${counted(found.counts.pass)} of ${counted(found.counts.planned)} pass${found.worst === null ? "" : found.worst === 0 ? ", exact" : `, worst ${shareWords(found.worst)} budget`}`
        : `${WORDS[found.kind]} ${sentence(found, what)}`),
      found.counts.planned ? button("cases", () => openFrom(found, asked), { "aria-label": `cases of ${found.column.title}` }) : ""));
    const kind = good.length === answers.length ? "yes" : good.length ? "partly" : "no", box = reply("", "", element("ul", { class: "each" }, ...lines),
      [button("Copy the link", (pressed) => copyText(location.href, pressed))]);
    box.classList.add(kind);
    box.querySelector("h2").replaceChildren(element("b", {}, `${good.length} of ${answers.length}`), ` run ${what}${good.length ? `: ${good.join(", ")}` : ""}${some ? `; ${some} in part` : ""}.`);
    return box;
  }

  const SIGNS = { yes: "full", partly: "part", no: "refused", fails: "fail", waived: "waived", unknown: "undeclared" };
  const markShown = (found) => data.marks[found.counts.fail ? (found.counts.crash ? "crash" : "fail") : SIGNS[found.kind]];
  const sign = (found) => markShown(found)[0];
  const signStyle = (found) => (found.counts.fail ? "worse" : markShown(found)[1]);

  function without(words) {
    return state.q.split(/\s+/).filter((word) => !words.includes(word.toLowerCase().replace(/[?!.,()]/g, ""))).join(" ");
  }

  function ask(text) {
    state.q = byId("question").value = text;
    answer();
    remember();
    byId("question").focus();
  }

  function openFrom(found, asked) {
    state.cell = "";
    state.case = `${found.column.title}|${data.ids[found.place]}`;
    marked = markedBy(asked);
    openDialog();
    remember();
  }

  // --- the table ---------------------------------------------------------------------------------------------------

  const markedBy = (wanted) => (place) => {
    const axes = data.axes[data.axis[place]];
    return hasDtype(wanted, axes) && (!wanted.mode || axes.mode === wanted.mode);
  };

  /** The question whether a case counts under the present filters. */
  function chooser() {
    const text = state.text.trim().toLowerCase(), fits = markedBy(state);
    return (place) => fits(place) && (!text || data.ids[place].toLowerCase().includes(text));
  }

  /** Whether a row is one of those that are asked for. */
  function isAsked(cells, first, end, chosen) {
    if (state.show === "fail") return cells.some((cell) => cell.failed);
    if (state.show === "differ") return new Set(cells.map((cell) => (cell.mark === "part" ? "full" : cell.mark))).size > 1;
    const asked = { changed: hasChanged, lies: (column, place) => Boolean((data.reasons[endingOf(column, place)[1]] || {}).contradicts) }[state.show];
    if (!asked) return true;
    return data.columns.some((column) => [...between(first, end)].some((place) => chosen(place) && asked(column, place)));
  }

  function sums(part, chosen) {
    return data.columns.map((column) => sumUp(column, between(part.first, part.end), chosen));
  }

  function show() {
    const chosen = chooser(), filtered = Boolean(state.text || state.dtype || state.mode || state.show);
    // The HTML has the cells of an unfiltered table.
    const fresh = filtered || drawn;
    let shown = 0;
    for (const area of areas) {
      const cells = sums(area, chosen), asked = isAsked(cells, area.first, area.end, chosen);
      area.body.hidden = !asked || cells.every((cell) => !cell.number);
      if (area.body.hidden) continue;
      shown++;
      fill(area.line, cells, area);
      const open = opened.has(area.name) || Boolean(state.text);
      area.line.querySelector("button").setAttribute("aria-expanded", String(open));
      // A style hides the rows of a closed area, and has hidden all of them before they were laid out.
      area.body.classList.toggle("open", open);
      if (open) showSubjects(area, chosen, filtered, fresh);
    }
    drawn = filtered;
    byId("found").textContent = shown === areas.length ? plural(shown, "area") : `${shown} of ${plural(areas.length, "area")}`;
    rove();
  }

  /** Show the subjects of an area. Of very many, those that fail or differ come first, and a button shows the others. */
  function showSubjects(area, chosen, filtered, fresh) {
    const rows = area.subjects.map((subject) => ({ subject, cells: sums(subject, chosen) }))
      .map((row) => ({ ...row, asked: row.cells.some((cell) => cell.number) && isAsked(row.cells, row.subject.first, row.subject.end, chosen) }));
    let asked = rows.filter((row) => row.asked);
    const all = asked.length;
    if (all > MANY_SUBJECTS && !whole.has(area.name) && !state.text) {
      const telling = asked.filter(({ cells }) => cells.some((cell) => cell.failed) || new Set(cells.map((cell) => cell.mark)).size > 1);
      telling.sort((a, b) => b.cells.some((cell) => cell.failed) - a.cells.some((cell) => cell.failed)); // a stable sort
      asked = (telling.length ? telling : asked).slice(0, SHOWN_SUBJECTS);
    }
    const kept = new Set(asked);
    for (const row of rows) {
      row.subject.line.hidden = !kept.has(row);
      if (kept.has(row)) fill(row.subject.line, row.cells, row.subject, fresh);
    }
    showRest(area, all - asked.length);
  }

  function showRest(area, number) {
    area.rest?.remove();
    area.rest = null;
    if (!number) return;
    area.rest = element("tr", { class: "rest" }, element("th", { scope: "row", colSpan: data.columns.length + 1 },
      button(`Show the other ${plural(number, "subject")}`, () => { whole.add(area.name); show(); })));
    area.body.append(area.rest);
  }

  /** Fill a row: buttons in its cells, the number of cases and the address behind its name. */
  function fill(line, cells, part) {
    const head = line.cells[0], number = Math.max(...cells.map((cell) => cell.number));
    if (!head.querySelector("button, a")) {
      const text = head.firstChild;
      text.replaceWith(part.subjects ? element("button", { type: "button", class: "fold" }, ...breakable(part.name))
        : element("a", { href: `#${new URLSearchParams({ at: `${part.area}.${part.name}` })}` }, ...breakable(part.name)), " ");
    }
    head.querySelector("i").textContent = counted(number);
    cells.forEach((cell, i) => {
      const place = line.cells[i + 1];
      if (cell.filtered) {
        place.className = "fo";
        place.replaceChildren(element("span", { class: "unseen" }, "filtered out"));
        return;
      }
      place.className = cell.style;
      const inside = place.querySelector("button") || element("button", { type: "button" });
      if (!inside.parentElement) place.replaceChildren(inside);
      inside.replaceChildren(...(cell.count === null ? [cell.sign, element("i", {}, ` ${cell.words}`)] : [`${cell.sign} ${counted(cell.count)}`]));
    });
  }

  /** One stop of the Tab key for the whole table: arrow keys move inside it. */
  function rove(chosen) {
    const stops = [...table.querySelectorAll("tbody button, tbody a")];
    const now = chosen || stops.find((stop) => stop.tabIndex === 0 && stop.offsetParent) || stops[0];
    for (const stop of stops) stop.tabIndex = stop === now ? 0 : -1;
  }

  function press(pressed) {
    const line = pressed.closest("tr"), cell = pressed.closest("th, td"), area = areas.find((found) => found.body === line.parentElement);
    if (!area || line === area.rest) return; // the button of the rest has done its work already
    if (line === area.line) {
      if (!opened.delete(area.name)) opened.add(area.name);
      show();
    } else if (cell.cellIndex > 0) {
      const subject = area.subjects.find((found) => found.line === line);
      state.case = "";
      state.cell = `${data.columns[cell.cellIndex - 1].title}|${subject.area}.${subject.name}`;
      marked = markedBy(state);
      openDialog();
    }
    remember();
  }

  function move(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -999], End: [0, 999] };
    const from = event.target.closest("button, a"), step = steps[event.key];
    if (!from || !step) return;
    event.preventDefault();
    const lines = [...table.querySelectorAll("tbody:not([hidden]) > tr:not([hidden])")].filter((line) => line.offsetParent);
    const cell = from.closest("th, td"), stop = (line, across) => line?.cells[across]?.querySelector("button, a");
    const at = lines.indexOf(cell.parentElement);
    let next = null;
    if (Math.abs(step[1]) === 999) next = step[1] < 0 ? stop(lines[at], 0) : [...lines[at].querySelectorAll("button, a")].pop();
    else for (let y = at + step[0], x = cell.cellIndex + step[1]; lines[y] && x >= 0 && x <= data.columns.length && !next; y += step[0], x += step[1]) next = stop(lines[y], x) || (step[0] && stop(lines[y], 0));
    if (!next) return;
    rove(next);
    next.focus();
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  // --- one subject on one accelerator ------------------------------------------------------------------------------

  function split(text) {
    // An id has no bar before its first dot, and titles may have one.
    const at = text.lastIndexOf("|", text.indexOf("[") < 0 ? undefined : text.indexOf("["));
    return [text.slice(0, at), text.slice(at + 1)];
  }

  function openDialog() {
    const [title, name] = split(state.case || state.cell), column = data.columns.find((found) => found.title === title);
    const place = state.case ? data.ids.indexOf(name) : -1;
    const subject = subjects.find((found) => (place >= 0 ? found.first <= place && place < found.end : `${found.area}.${found.name}` === name));
    if (!column || !subject || (state.case && place < 0)) { state.cell = state.case = ""; return; }
    draw(column, subject, place >= 0 ? place : worst(column, subject));
    if (dialog.open) return;
    returnTo = document.activeElement;
    dialog.showModal();
    dialog.querySelector('[aria-pressed="true"][data-place]')?.focus();
  }

  function worst(column, subject) {
    const places = [...between(subject.first, subject.end)], inside = places.filter(marked);
    for (const wanted of ["fail", "no verdict", "skip"])
      for (const place of [...inside, ...places]) if (endingOf(column, place)[0] === wanted) return place;
    return (inside.length ? inside : places)[0];
  }

  function draw(column, subject, place) {
    const others = data.columns.map((other) => {
      const cell = sumUp(other, between(subject.first, subject.end), () => true);
      return button(`${cell.sign} ${other.title}`, () => choose(other, subject, place), { class: "chip", "aria-pressed": String(other === column) });
    });
    const inner = element("div", { class: "inner" }, element("div", { class: "others", role: "group", "aria-label": "accelerator" }, ...(others.length > 1 ? others : [])));
    const outside = [...between(subject.first, subject.end)].some((other) => !marked(other));
    if (outside) inner.append(element("p", { class: "quiet" }, "Cases outside the question or the filter are dashed."));
    inner.append(caseGrid(column, subject, place, marked), caseSection(column, place));
    const head = element("div", { class: "head" }, element("h2", { id: "cell-title" }, ...breakable(`${subject.area}.${subject.name}`), ` on ${column.title}`, element("small", {}, plural(subject.end - subject.first, "case"))),
      button("Copy the link", (pressed) => copyText(location.href, pressed)), button("✕", () => dialog.close(), { "aria-label": "Close" }));
    dialog.replaceChildren(head, inner);
    for (const one of dialog.querySelectorAll("[data-place]")) one.addEventListener("click", () => choose(column, subject, Number(one.dataset.place)));
  }

  function choose(column, subject, place) {
    const at = dialog.scrollTop;
    state.cell = "";
    state.case = `${column.title}|${data.ids[place]}`;
    draw(column, subject, place);
    remember();
    dialog.scrollTop = at;
    dialog.querySelector('[aria-pressed="true"][data-place]')?.focus({ preventScroll: true });
  }

  // --- state, in the address ---------------------------------------------------------------------------------------

  function remember(at = "") {
    const words = new URLSearchParams(Object.entries(state).filter(([, value]) => value));
    if (opened.size) words.set("open", [...opened].join(","));
    if (at) words.set("at", at);
    history.replaceState(null, "", `#${words}`);
  }

  function recall() {
    // A plain anchor is the browser's own business.
    if (location.hash && !location.hash.includes("=")) return drawn ? undefined : show();
    const words = new URLSearchParams(location.hash.slice(1)), at = words.get("at") || "";
    for (const name of Object.keys(state)) state[name] = words.get(name) || "";
    opened.clear();
    for (const name of (words.get("open") || "").split(",")) if (name) opened.add(name);
    for (const name of FILTERS) { form.elements[name].value = state[name]; state[name] = form.elements[name].value; } // a name that is not there is no filter
    byId("question").value = state.q;
    const area = areas.find((found) => at === found.name || found.subjects.some((subject) => `${subject.area}.${subject.name}` === at));
    if (area) { opened.add(area.name); whole.add(area.name); }
    answer();
    show();
    marked = markedBy(state.dtype || state.mode ? state : understood(state.q));
    if (state.case || state.cell) openDialog();
    else if (dialog.open) dialog.close();
    if (area) goTo(area, at);
  }

  function goTo(area, at) {
    const line = at === area.name ? area.line : area.subjects.find((subject) => `${subject.area}.${subject.name}` === at).line;
    for (const other of table.querySelectorAll(".hit")) other.classList.remove("hit");
    line.classList.add("hit");
    const stop = line.querySelector("button, a");
    rove(stop);
    line.scrollIntoView({ block: "center" });
    stop.focus({ preventScroll: true });
  }

  function prepare() {
    const axes = (name) => [...new Set(data.axes.map((found) => found[name]).filter(Boolean))].sort();
    for (const name of ["dtype", "mode"]) for (const value of axes(name)) form.elements[name].append(new Option(value, value));
    const names = examples();
    byId("examples").querySelector("span").replaceChildren(...names.map((text) => button(text, () => ask(text))));
    byId("examples").hidden = !names.length;
    for (const line of document.querySelectorAll(".state tbody")) {
      const head = line.rows[0].cells[0], why = line.rows[1], fold = element("button", { type: "button", "aria-expanded": "false" }, head.textContent);
      fold.addEventListener("click", () => fold.setAttribute("aria-expanded", String(why.classList.toggle("open"))));
      head.replaceChildren(fold);
    }
    for (const list of document.querySelectorAll("details[data-title] li")) {
      const title = list.closest("details").dataset.title, id = list.textContent;
      if (data.ids.includes(id)) list.replaceChildren(element("a", { href: `#${new URLSearchParams({ case: `${title}|${id}` })}` }, id));
    }
    byId("ask").hidden = form.hidden = false;
  }

  /** Questions to try: about a case that fails, if there is one, and about a well-known operator. */
  function examples() {
    const known = ["conv2d", "softmax", "layer_norm", "matmul", "linear", "add"], last = (subject) => subject.search.parts[subject.search.parts.length - 1];
    const rank = (subject) => (known.indexOf(last(subject)) + 1 || (last(subject).startsWith("_") ? 99 : 50));
    const order = (at) => (KNOWN_DTYPES.indexOf(data.axes[data.axis[at]].dtype) + 99) % 99;
    const byDtype = (subject) => [...between(subject.first, subject.end)].sort((a, b) => order(a) - order(b));
    const ranked = [...subjects].sort((a, b) => rank(a) - rank(b)), found = [];
    for (const wanted of ["fail", "full"]) {
      for (const subject of ranked) {
        const place = byDtype(subject).find((at) => data.axes[data.axis[at]].mode === "training"
          && data.columns.some((column) => markOf(column, at) === wanted));
        if (place === undefined) continue;
        const { dtype, mode } = data.axes[data.axis[place]], column = data.columns.find((other) => markOf(other, place) === wanted);
        const words = [last(subject), Object.keys(DTYPES).find((short) => DTYPES[short] === dtype && /^[bf]+p?\d/.test(short)) || dtype, mode];
        for (const text of [[...words, column.title].join(" "), words.join(" ")]) if (text && !found.includes(text)) found.push(text);
        break;
      }
    }
    return found.slice(0, 4);
  }

  function listen() {
    let wait = 0;
    byId("question").addEventListener("input", (event) => {
      clearTimeout(wait);
      wait = setTimeout(() => { state.q = event.target.value; answer(); remember(); }, 100);
    });
    byId("ask").addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(wait); state.q = byId("question").value; answer(); remember(); });
    const read = () => { for (const name of FILTERS) state[name] = form.elements[name].value; show(); remember(); };
    form.addEventListener("input", read);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(read));
    table.addEventListener("click", (event) => { const pressed = event.target.closest("button"); if (pressed) { rove(pressed); press(pressed); } });
    table.addEventListener("keydown", move);
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("close", () => { state.cell = state.case = ""; remember(); if (returnTo?.isConnected) returnTo.focus(); });
    document.addEventListener("keydown", (event) => {
      if (event.key === "/" && !event.target.closest("input, select, dialog")) { event.preventDefault(); byId("question").focus(); }
    });
    window.addEventListener("hashchange", recall);
    window.addEventListener("beforeprint", () => { for (const picture of document.querySelectorAll(".picture")) picture.open = true; });
    listenForFiles();
    listenForDays();
  }

  prepare();
  listen();
  recall();
  document.documentElement.dataset.ready = "yes";
})();
