"use strict";
// Cases of the page: the data block, what a cell says, and what happened to a case before.

const ABSENT = "-", LOST = ".";
const FILLS = [0.01, 0.05];
let data = null;

async function unpacked(bytes, format) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream(format));
  return new Response(stream).text();
}

async function readData(text) {
  if (!("DecompressionStream" in window)) return null;
  const signs = atob(text), bytes = new Uint8Array(signs.length);
  for (let i = 0; i < signs.length; i++) bytes[i] = signs.charCodeAt(i);
  return JSON.parse(await unpacked(bytes, "deflate"));
}

/** Outcome and reason of a case in a column. */
function endingOf(column, place) {
  return endingOfLetter(column.verdicts[place]);
}

function endingOfLetter(letter) {
  return letter === LOST ? ["no verdict", "lost"] : data.letters[letter] || ["not planned", "–"];
}

function isCore(place) {
  return (parseInt(data.inside[place], 16) & 1) === 1;
}

/** Letters of a case in the earlier runs that the page knows, the newest of them first. */
function lettersBefore(column, place) {
  let letter = column.verdicts[place];
  return column.history.map((run) => (letter = run.changed[place] ?? letter));
}

function hasChanged(column, place) {
  return column.history.length > 0 && column.history[0].changed[place] !== undefined;
}

/** Used share of the error budget, rounded up; null where there is none. */
function shareOf(column, place) {
  const letter = column.shares[place];
  if (!letter || letter === ABSENT) return null;
  return letter === "0" ? 0 : 2 ** ((data.shares.indexOf(letter) - data.exactly_the_budget) / data.steps);
}

function shareWords(share) {
  return share === null ? "" : share === 0 ? "exact" : `≤ ${Number(share.toPrecision(2))} ×`;
}

/** The mark of one case: the name of its symbol. */
function markOf(column, place) {
  const [outcome, reason] = endingOf(column, place);
  if (outcome === "pass") return "full";
  if (outcome === "fail") return data.reasons[reason].severe ? "crash" : "fail";
  return data.reasons[reason] ? data.reasons[reason].mark : "nodata";
}

/** Sum up cases as the HTML does. `chosen` says which cases of a column count. */
function sumUp(column, places, chosen) {
  let number = 0, passed = 0, failed = 0, core = false, planned = 0;
  const marks = new Set();
  for (const place of places) {
    if (column.verdicts[place] === ABSENT) continue;
    planned++;
    if (!chosen(place)) continue;
    number++;
    const mark = markOf(column, place);
    marks.add(mark);
    if (mark === "full") passed++;
    if (mark === "fail" || mark === "crash") { failed++; core ||= isCore(place); }
  }
  const mark = failed ? (marks.has("crash") ? "crash" : "fail") : passed ? (passed === number ? "full" : "part")
    : ["waived", "undeclared", "nodata", "refused"].find((name) => marks.has(name)) || "nodata";
  const [sign, style, words] = data.marks[mark];
  const fill = core ? 3 : 1 + FILLS.filter((limit) => failed / number >= limit).length;
  return { mark, sign, words, number, passed, failed, filtered: planned > 0 && number === 0,
    style: failed ? style + fill : style, count: failed || passed || null };
}

function* between(first, end) {
  for (let place = first; place < end; place++) yield place;
}

// --- elements: texts are always text, never markup ---------------------------------------------------------------

const byId = (id) => document.getElementById(id);

function element(name, properties = {}, ...children) {
  const made = document.createElement(name), { data: set = {}, ...rest } = properties;
  for (const [key, value] of Object.entries(rest)) {
    if (key === "class") made.className = value;
    else if (key.includes("-")) made.setAttribute(key, value);
    else made[key] = value;
  }
  Object.assign(made.dataset, set);
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

/** A name that may break after a dot or an underscore. */
function breakable(name) {
  return name.split(/(?<=[._])/).flatMap((part, i) => (i ? [element("wbr"), part] : [part]));
}

function button(words, act, properties = {}) {
  const made = element("button", { type: "button", ...properties }, words);
  made.addEventListener("click", () => act(made));
  return made;
}

function facts(pairs, style = "") {
  return element("dl", { class: style }, ...pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
}

async function copyText(text, pressed) {
  const before = pressed.textContent;
  try {
    await navigator.clipboard.writeText(text);
    pressed.textContent = "Copied";
  } catch {
    pressed.textContent = "Cannot copy here";
  }
  setTimeout(() => { pressed.textContent = before; }, 2000);
}

const counted = (number) => number.toLocaleString("en");
const plural = (number, noun) => `${counted(number)} ${noun}${number === 1 ? "" : "s"}`;
