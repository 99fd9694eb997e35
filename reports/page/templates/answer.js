// The question: its words, the subjects that it means, and the sentence that answers it.

const DTYPES = {
  fp32: "float32", f32: "float32", float: "float32", single: "float32", fp16: "float16", f16: "float16", half: "float16",
  bf16: "bfloat16", bfloat: "bfloat16", fp64: "float64", f64: "float64", double: "float64", c64: "complex64",
  c128: "complex128", i8: "int8", i16: "int16", i32: "int32", i64: "int64", long: "int64", u8: "uint8", boolean: "bool",
  e4m3: "float8_e4m3fn", e5m2: "float8_e5m2", fp8: "float8_e4m3fn",
};
const KNOWN_DTYPES = ["float32", "float16", "bfloat16", "float64", "complex64", "complex128", "int8", "int16", "int32",
  "int64", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"];
const MODES = {
  training: "training", train: "training", backward: "training", grad: "training", gradient: "training", gradients: "training",
  inference: "inference", infer: "inference", forward: "inference",
};
const FILLERS = new Set(("a an the on of in for with and or does do is are can which who what how support supports "
  + "supported run runs running work works accelerator accelerators operator device to by it").split(" "));
const MOST_NAMES = 6;

/** The words of a question: dtype, mode, columns, and the rest, which names subjects and keeps its capital letters. */
function understood(text) {
  const found = { dtype: "", mode: "", columns: null, words: [], accelerators: [] };
  for (const raw of text.split(/[\s,;?!()[\]]+/)) for (const typed of pieces(raw)) {
    const word = typed.toLowerCase();
    if (!word || FILLERS.has(word)) continue;
    const dtype = DTYPES[word] || (KNOWN_DTYPES.includes(word) ? word : ""), mode = MODES[word], columns = columnsNamed(word);
    if (dtype) found.dtype = dtype;
    else if (mode) found.mode = mode;
    else if (columns.length) {
      const both = (found.columns || []).filter((column) => columns.includes(column));
      found.columns = both.length ? both : [...new Set([...(found.columns || []), ...columns])];
      found.accelerators.push(word);
    } else found.words.push(typed);
  }
  return found;
}

/** Parts of a word such as `bfloat16-training`; a word of other parts stays whole. */
function pieces(raw) {
  const word = raw.replace(/^[."'`:]+|[."'`:]+$/g, ""), parts = word.split("-");
  const known = (part) => DTYPES[part] || KNOWN_DTYPES.includes(part) || MODES[part];
  return parts.length > 1 && parts.some((part) => known(part.toLowerCase())) ? parts : [word];
}

const titleWords = (title) => title.toLowerCase().split(/[\s()]+/).filter(Boolean);

function columnsNamed(word) {
  return data.columns.filter((column) => titleWords(column.title).includes(word));
}

/** Subjects that match every word, only the best kind of match. */
function subjectsNamed(words, subjects) {
  let best = NO_MATCH, found = [];
  for (const subject of subjects) {
    const kind = matchOfAll(subject, words);
    if (kind < best) { best = kind; found = []; }
    if (kind === best && kind < NO_MATCH) found.push(subject);
  }
  return found;
}

/** Subjects of the same name with other capital letters: Conv2d is a layer, conv2d a function. */
function namesakes(words, subjects, named) {
  return words.length ? subjects.filter((subject) => matchOfAll(subject, words) <= 1 && !named.includes(subject)) : [];
}

const NO_MATCH = 5;
const matchOfAll = (subject, words) => Math.max(...words.map((word) => match(subject, word)));

/** Kind of match: 0 the whole name, 1 with other capital letters, 2 its last part, 3 another part, 4 some letters. */
function match(subject, typed) {
  const { full, name, parts, area, shown } = subject.search, word = typed.toLowerCase();
  if ([`${area}.${shown}`, shown].includes(typed) || shown === `nn.functional.${typed}`) return 0;
  if (full === word || name === word || name === `nn.functional.${word}`) return 1;
  return parts[parts.length - 1] === word ? 2 : parts.includes(word) ? 3 : full.includes(word) ? 4 : NO_MATCH;
}

function searchable(area, name) {
  const full = `${area}.${name}`.toLowerCase();
  return { full, area, shown: name, name: name.toLowerCase(), parts: full.split(/[. ]/), short: name.split(/[. ]/).pop() };
}

/** Nearest known names: by the number of changed, missing or swapped letters. */
function nearest(word, subjects) {
  const names = new Map();
  for (const subject of subjects) names.set(subject.search.parts[subject.search.parts.length - 1], subject);
  const all = [...names.keys(), ...data.columns.flatMap((column) => titleWords(column.title)), ...KNOWN_DTYPES, ...Object.keys(DTYPES)];
  const lower = word.toLowerCase(), most = Math.max(1, Math.floor(word.length / 3));
  return [...new Set(all)].map((name) => [distance(lower, name), name]).filter(([far]) => far <= most)
    .sort((a, b) => a[0] - b[0] || (a[1] < b[1] ? -1 : 1)).slice(0, MOST_NAMES).map(([, name]) => name);
}

function distance(a, b) {
  if (Math.abs(a.length - b.length) > 3) return 99;
  let two = [], one = [...Array(b.length + 1).keys()];
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1] ? 0 : 1;
      row[j] = Math.min(one[j] + 1, row[j - 1] + 1, one[j - 1] + same);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) row[j] = Math.min(row[j], two[j - 2] + 1);
    }
    two = one;
    one = row;
  }
  return one[b.length];
}

/** Places of the subjects' cases that have the dtype and the mode of the question. */
function placesAsked(subjects, asked) {
  const fits = data.axes.map((axes) => (!asked.dtype || axes.dtype === asked.dtype) && (!asked.mode || axes.mode === asked.mode));
  return subjects.flatMap((subject) => [...between(subject.first, subject.end)]).filter((place) => fits[data.axis[place]]);
}

/** What a column says about some cases: the kind of answer, counts, the worst error, and a case that shows why. */
function judged(column, places) {
  const counts = { pass: 0, fail: 0, waived: 0, refused: 0, undeclared: 0, nodata: 0, emulated: 0, planned: 0, crash: 0, works: 0 };
  let worst = null, bad = -1, other = -1;
  for (const place of places) {
    if (column.verdicts[place] === ABSENT) continue;
    const mark = markOf(column, place), reason = endingOf(column, place)[1], share = shareOf(column, place);
    counts.planned++;
    if (mark === "full") { counts.pass++; counts.emulated += reason === "emulated" ? 1 : 0; if (share !== null && (worst === null || share > worst)) worst = share; }
    else if (mark === "fail" || mark === "crash") { counts.fail++; counts.crash += mark === "crash" ? 1 : 0; if (bad < 0) bad = place; }
    else { counts[mark]++; counts.works += reason === "under-declared" ? 1 : 0; if (other < 0) other = place; }
  }
  return { column, counts, worst, place: bad >= 0 ? bad : other >= 0 ? other : places[0], why: reasonWords(column, bad >= 0 ? bad : other), kind: kindOf(counts) };
}

function kindOf(counts) {
  if (!counts.planned) return "unknown";
  if (counts.fail) return counts.pass ? "partly" : "fails";
  if (counts.pass) return counts.pass === counts.planned ? "yes" : "partly";
  if (counts.waived) return "waived";
  return counts.undeclared || counts.nodata ? "unknown" : "no";
}

function reasonWords(column, place) {
  if (place < 0) return "";
  const message = (column.messages[column.message[place]] || "").replaceAll("\u0001", data.ids[place]);
  const line = message.split("\n").find((text) => text.trim()) || endingOf(column, place)[1];
  return line.length > 160 ? `${line.slice(0, 159)}…` : line;
}

const WORDS = { yes: "Yes.", partly: "Partly.", no: "No.", fails: "No, it fails.", waived: "Not yet.", unknown: "Unknown.", apply: "Does not apply." };

/** The sentence after the word: what is so, with its numbers. */
function sentence(answer, what) {
  const { counts, column, why } = answer, all = counts.planned;
  const rest = [[counts.refused, "declared unsupported"], [counts.undeclared, "undeclared"], [counts.nodata, "not run"], [counts.waived, "waived"]]
    .filter(([number]) => number).map(([number, words]) => `${counted(number)} ${words}`).join(", ");
  const cases = all === 1 ? "the case" : all === 2 ? "both cases" : `all ${counted(all)} cases`;
  const fail = all === 1 ? "fails" : "fail";
  const how = counts.emulated === counts.pass ? "emulated, as declared" : counts.emulated ? `${counted(counts.emulated)} of them emulated, as declared` : "natively";
  switch (answer.kind) {
    case "yes": return `${column.title} runs ${what}, ${how}, within the error budget.`;
    case "partly": return counts.fail
      ? `${plural(counts.fail, "case")} of ${counted(all)} of ${what} ${counts.fail === 1 ? "fails" : "fail"} on ${column.title}: ${why}`
      : `${counted(counts.pass)} of ${plural(all, "case")} of ${what} pass on ${column.title}; ${rest}.`;
    case "fails": return `${what} on ${column.title}: ${counts.fail === all ? `${cases} ${fail}` : `${counted(counts.fail)} of ${plural(all, "case")} fail, none passes`}: ${why}`;
    case "waived": return `${what} fails on ${column.title}, and is waived: ${why}`;
    case "no": return counts.works ? `${column.title} declares that it does not run ${what}; yet ${plural(counts.works, "case")} worked.`
      : `${column.title} declares that it does not run ${what}, and refuses it cleanly.`;
    default: return !all ? `The run of ${column.title} did not plan ${what}.`
      : counts.nodata && !counts.undeclared ? `${what} did not run on ${column.title}: ${why}`
        : `${column.title} declares nothing about ${what}${counts.nodata || counts.refused ? ` (${rest})` : ""}.`;
  }
}

/** The words for what was asked about. */
function subjectWords(asked, subjects) {
  const short = subjects.length === 1 ? subjects[0].search.short : "";
  const name = !asked.words.length ? "everything" : subjects.length === 1 ? (asked.words.length === 1 ? short : asked.words.join(" ")) : `“${asked.words.join(" ")}” (${plural(subjects.length, "subject")})`;
  return [name, asked.dtype && `in ${asked.dtype}`, asked.mode && `for ${asked.mode}`].filter(Boolean).join(" ");
}
