// The question: its words, the subjects that it means, and the sentence that answers it.

const DTYPES = {
  fp32: "float32", f32: "float32", float: "float32", single: "float32", fp16: "float16", f16: "float16", half: "float16",
  bf16: "bfloat16", bfloat: "bfloat16", fp64: "float64", f64: "float64", double: "float64", c64: "complex64",
  c128: "complex128", i8: "int8", i16: "int16", i32: "int32", i64: "int64", long: "int64", u8: "uint8", boolean: "bool",
  e4m3: "float8_e4m3fn", e5m2: "float8_e5m2", fp8: "float8_e4m3fn|float8_e5m2", float8: "float8_e4m3fn|float8_e5m2", e4m3fn: "float8_e4m3fn", hf8: "float8_e4m3fn",
  fp8e4m3: "float8_e4m3fn", fp8e5m2: "float8_e5m2", fp8_e4m3: "float8_e4m3fn", fp8_e5m2: "float8_e5m2", bfp16: "bfloat16",
  complex: "complex64", complex_float: "complex64", int: "int32", short: "int16", char: "int8", byte: "uint8", tf32: "float32",
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
/** An entry of a table; words such as "constructor" are none, though every object has them. */
const entry = (table, name) => (Object.hasOwn(table, name) ? table[name] : undefined);
const dtypeOf = (word) => entry(DTYPES, word) || (KNOWN_DTYPES.includes(word) ? word : "");

/** The words of a question: dtype, mode, columns, and the rest, which names subjects and keeps its capital letters. */
function understood(text) {
  const found = { dtype: "", mode: "", columns: null, words: [], accelerators: [], topic: null, other: "", device: null, lacking: null };
  for (const typed of translated(text, found)) {
    const word = typed.toLowerCase().replace(/^(?:torch|np|numpy|jnp|tf|dtype)\.(?=\w+$)/, (before) => (dtypeOf(typed.slice(before.length)) ? "" : before));
    if (!word || FILLERS.has(word)) continue;
    const dtype = dtypeOf(word), mode = entry(MODES, word), columns = columnsNamed(word);
    if (dtype) found.dtype = dtype;
    else if (mode) found.mode = mode;
    else if (columns.length && !isSubject(typed)) {
      const both = (found.columns || []).filter((column) => columns.includes(column));
      found.columns = both.length ? both : [...new Set([...(found.columns || []), ...columns])];
      found.accelerators.push(word);
    } else found.words.push(typed);
  }
  // A topic beside the name of a subject, as in "sampling of multinomial", only narrows it down.
  if (found.words.some(isSubject)) found.topic = null;
  return found;
}

const LONGEST_ALIAS = 4;
// Prefixes of other people's names for PyTorch's functions, and overloads behind them.
const PREFIX = /^(?:torch\.ops\.(?:aten|prims|npu|torch_\w+)\.|torch\.nn\.functional\.|torch\.nn\.modules\.\w+\.|torch\.nn\.|torch\.distributed\.|torch\.optim\.(?:lr_scheduler\.)?|torch\.amp\.|torch\.utils\.|torch_\w+\.(?:npu_)?|npu_|torch\.special\.|torch\.tensor\.|torch\.cuda\.|torch\.|dist\.|aten::|at::|prims::|prim::|onnx::|ai\.onnx\.|c10d::|nn\.functional\.|nn\.|f\.|tf\.nn\.|tf\.math\.|tf\.|jax\.nn\.|jax\.lax\.|jnp\.|np\.|numpy\.|cudnn|cublas|cnnl|aclnn|miopen|mkldnn_|onednn_|mps_|(?:one|[a-z]{1,2})cc?l_?(?=[a-z_]{4}))/i;
const OVERLOAD = /(?:\.(?:default|out|tensor|scalar|self|int|dim|tensor_\w+|scalar_\w+)|_out|_)$/i;

/** Words of a question, with other names replaced by the names on this page. `found` gets a topic, a product whose
 *  backend has no column, and a dtype that no case has. */
function translated(text, found) {
  let rest = text;
  const { patterns, ...tables } = data.aliases;
  const foreign = Object.keys(Object.assign({}, ...Object.values(tables)))
    .filter((name) => /[^\u0000-\u052f]/.test(name)).sort((a, b) => b.length - a.length);
  // Languages without blanks: their words stand inside the text.
  if (foreign.length) rest = rest.replace(new RegExp(foreign.join("|"), "g"), (name) => ` ${name} `);
  const typed = rest.split(/[\s,;?!¿¡()[\]，。？！、（）]+/).flatMap(pieces).filter(Boolean), done = [];
  for (let at = 0; at < typed.length;) {
    let step = 0;
    for (let length = Math.min(LONGEST_ALIAS, typed.length - at); length > 0 && !step; length--) {
      const group = typed.slice(at, at + length), said = alias(group);
      if (!said) continue;
      step = length;
      if (said.topic) { found.topic ||= said.topic.filter((known) => isSubject(known)); found.other = group.join(" "); }
      else if (said.device) found.device ||= { typed: group.join(" "), backend: said.device };
      else if (said.nearest) found.lacking ||= { typed: group.join(" "), nearest: said.nearest };
      else if (said.word) done.push(said.word);
    }
    if (!step) done.push(typed[at]);
    at += step || 1;
  }
  return done;
}

/** What some words are called here: a subject, a topic, or null where they are no other name of anything. */
function alias(group) {
  const { same, topics, words, devices, dtypes, patterns } = data.aliases, name = group.join(" ").toLowerCase();
  const layer = group.length === 1 && group[0].replace(PREFIX, "");
  // torch.nn.GroupNorm is the layer, and not the function of the same name.
  if (layer && layer !== group[0] && layer !== layer.toLowerCase() && data.subjects.some(({ area, name: shown }) => area === "modules" && shown === layer)) return { word: `modules.${layer}` };
  const typed = [name, ...(group.length === 1 ? bare(group[0]) : [])];
  const forms = [...new Set(typed.flatMap((form) => [form, form.replace(/[-_]/g, " "), unaccented(form)]))];
  const family = group.length === 1 && Object.keys(patterns || {}).find((pattern) => new RegExp(`^(?:${pattern})$`).test(name));
  if (family) forms.push(patterns[family]);
  // The whole name of a subject is no alias. A table's word comes before the last part of a subject's name.
  if (group.length === 1 && (isOperator(group[0]) || columnsNamed(name).length)) return null;
  for (const form of forms) if (entry(words, form) !== undefined) return { word: words[form] };
  for (const form of forms) {
    if (entry(devices, form)) return columnsNamed(devices[form]).length ? { word: devices[form] } : { device: devices[form] };
    if (entry(dtypes, form)) return { nearest: dtypes[form] };
    // Operators first: "gather" is a collective, too.
    const other = entry(same, form), operator = other && data.subjects.find((subject) => subject.search.full === `operators.${other}`.toLowerCase());
    if (operator) return { word: `operators.${operator.name}` };
    if (other && isSubject(other)) return { word: other };
    if (entry(topics, form) && topics[form].some((known) => isSubject(known))) return { topic: topics[form] };
  }
  if (group.length === 1 && isSubject(group[0])) return null;
  for (const form of forms) {
    // Also in the middle of a name, as in scatter_reduce.amax.
    if (group.length === 1 && form !== name && data.subjects.some((subject) => match(subject, form) <= 3)) return { word: form };
  }
  return null;
}

// Names of aten's kernels: parts of a gradient or of a forward pass, and functions of a module of torch.
const PARTS = /(?:_dense)?_(?:backward|forward)(?:_(?:data|reduce|input|weight))?$/, MODULES = /^(linalg|fft|special|foreach)_/;

/** Forms of one name without prefixes, overloads, the underscore of calls in place, and capitals inside; then those of
 *  the operator behind a kernel: `native_layer_norm`, `gelu_backward`, `linalg_inv`, `_foreach_add`. */
function bare(typed) {
  const plain = typed.replace(PREFIX, ""), aten = /^(?:aten::|at::|torch\.ops\.aten\.)/.test(typed);
  const short = aten ? plain.replace(/\.\w+$/, "").replace(/_$/, "") : plain.replace(OVERLOAD, ""), snake = (name) => name.replace(/([a-z0-9])([A-Z])/g, "$1_$2");
  const kernel = snake(short).toLowerCase().replace(/^_+/, "").replace(PARTS, ""), inner = kernel.replace(/^native_/, "");
  return [...new Set([plain, short, snake(plain), snake(short), plain.replace(/^_+/, ""), plain.replace(/^torch_/, ""), kernel, inner, kernel.replace(MODULES, "$1.")])]
    .filter(Boolean).map((name) => name.toLowerCase());
}

/** A word without its accents: "atención" is typed as "atencion", too. */
const unaccented = (name) => name.normalize("NFD").replace(/[\u0300-\u036f]/g, "").normalize("NFC");

/** Whether a name is that of a subject, or of the last part of one. */
const isSubject = (typed) => data.subjects.some((subject) => match(subject, typed) <= 2);

/** Whether an operator, a layer or a kernel has this very name, or some subject with its area in front. */
const NAMED = ["operators", "modules", "ops"];
const isOperator = (typed) => data.subjects.some((subject) => match(subject, typed) <= 1 && (NAMED.includes(subject.area) || subject.search.full === typed.toLowerCase()));

/** Parts of a word such as `bfloat16-training`; a word of other parts stays whole. */
function pieces(raw) {
  const word = raw.replace(/^[."'`:]+|[."'`:]+$/g, ""), parts = word.split("-");
  const known = (part) => dtypeOf(part) || entry(MODES, part);
  return parts.length > 1 && parts.some((part) => known(part.toLowerCase())) ? parts : [word];
}

/** Words of a title, and the parts of a name such as `delta-test`. */
const titleWords = (title) => [...new Set([...title.toLowerCase().split(/[\s(),]+/), ...title.toLowerCase().split(/[\s(),._+-]+/).slice(0, 1)])].filter(Boolean);

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
  // A call of a model is a kernel behind an operator, and its name alone asks for the operator.
  if (area === "calls") return full === word ? 1 : word === area ? 3 : full.includes(word) ? 4 : NO_MATCH;
  if ([`${area}.${shown}`, shown].includes(typed) || shown === `nn.functional.${typed}`) return 0;
  if (full === word || name === word || name === `nn.functional.${word}`) return 1;
  return parts[parts.length - 1] === word ? 2 : parts.includes(word) ? 3 : full.includes(word) ? 4 : NO_MATCH;
}

function searchable(area, name) {
  const full = `${area}.${name}`.toLowerCase();
  return { full, area, shown: name, name: name.toLowerCase(), parts: full.split(/[. ]/), short: name.split(/[. ]/).pop() };
}

/** What to ask instead, where no subject has all words of a question: `lost` are words that nothing has, `near` are
 *  names to put in the place of `instead`, and `known` are the other words. */
function suggestions(asked, subjects) {
  const lost = asked.words.filter((word) => !subjectsNamed([word], subjects).length);
  // A number or a letter is part of many names by chance.
  const known = asked.words.filter((word) => !lost.includes(word) && /[^\d]{3}/.test(word));
  if (!lost.length) return { lost, near: asked.words.filter((word) => known.includes(word)), known, instead: "" };
  const at = asked.words.indexOf(lost[0]), pairs = [asked.words.slice(Math.max(at - 1, 0), at + 1), asked.words.slice(at, at + 2)];
  // "batch nrom" is one name in two words.
  for (const pair of pairs.filter(({ length }) => length === 2)) {
    const near = nearest(pair.join(""), subjects);
    if (near.length) return { lost, near, known, instead: pair.join(" ") };
  }
  return { lost, near: nearest(lost[0], subjects), known, instead: lost[0] };
}

/** Nearest known names: by the number of changed, missing or swapped letters. */
function nearest(word, subjects) {
  // Every name of one or two letters is near such a word.
  if (word.length < 3) return [];
  const names = new Map();
  for (const subject of subjects) names.set(subject.search.parts[subject.search.parts.length - 1], subject);
  const { same, topics } = data.aliases, squeezed = (name) => name.replace(/[_ -]/g, "");
  const all = [...names.keys(), ...Object.keys(same).filter((name) => isSubject(same[name])), ...Object.keys(topics), ...data.columns.flatMap((column) => titleWords(column.title)), ...KNOWN_DTYPES, ...Object.keys(DTYPES)];
  const lower = (bare(word)[1] || word).toLowerCase(), most = Math.min(3, Math.max(1, Math.floor(word.length / 3)));
  return [...new Set(all)].map((name) => [Math.min(distance(lower, name), distance(lower, squeezed(name))), name]).filter(([far]) => far <= most)
    .sort((a, b) => a[0] - b[0] || a[1].startsWith("_") - b[1].startsWith("_") || (a[1] < b[1] ? -1 : 1)).slice(0, MOST_NAMES).map(([, name]) => name);
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
  const all = subjects.flatMap((subject) => [...between(subject.first, subject.end)]);
  const fitting = (fits) => { const known = data.axes.map(fits); return all.filter((place) => known[data.axis[place]]); };
  const exact = fitting((axes) => hasDtype(asked, axes) && (!asked.mode || axes.mode === asked.mode));
  // A case of a workload says its mode in its name, and a whole model may have none.
  return exact.length ? exact : fitting((axes) => hasDtype(asked, axes) && (!asked.mode || !axes.mode));
}

/** Whether a case has the dtype of a question, which may be one of several, as fp8 is. */
function hasDtype(asked, axes) {
  return !asked.dtype || asked.dtype.split("|").includes(axes.dtype);
}

/** What a column says about some cases: the kind of answer, counts, the worst error, and a case that shows why. */
function judged(column, places) {
  const counts = { pass: 0, fail: 0, waived: 0, refused: 0, undeclared: 0, nodata: 0, emulated: 0, planned: 0, crash: 0, works: 0 };
  let worst = null, bad = -1, other = -1;
  for (const place of places) {
    if (column.verdicts[place] === ABSENT) continue;
    const mark = markOf(column, place), reason = endingOf(column, place)[1], share = shareOf(column, place);
    counts.planned++;
    // Of failures too: a worst error of passes alone would be smaller than what a failure says.
    if ((mark === "full" || mark === "fail") && share !== null && (worst === null || share > worst)) worst = share;
    if (mark === "full") { counts.pass++; counts.emulated += reason === "emulated" ? 1 : 0; }
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
  return [name, asked.dtype && `in ${asked.dtype.replace("|", " and ")}`, asked.mode && `for ${asked.mode}`].filter(Boolean).join(" ");
}
