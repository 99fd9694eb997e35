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
  return expanded(JSON.parse(await unpacked(bytesOf(text), "deflate")));
}

/** The bytes of the data block: two of 91 characters are 13 or 14 bits. */
function bytesOf(text) {
  const values = new Map(), bytes = new Uint8Array(text.length);
  for (let code = 33; code < 127; code++) if (!"<&\\".includes(String.fromCharCode(code))) values.set(code, values.size);
  let low = -1, bits = 0, number = 0, end = 0;
  for (let i = 0; i < text.length; i++) {
    const value = values.get(text.charCodeAt(i));
    if (low < 0) { low = value; continue; }
    const pair = low + value * 91, width = (pair & 8191) > 88 ? 13 : 14;
    bits |= pair << number;
    low = -1;
    for (number += width; number > 7; number -= 8) { bytes[end++] = bits & 255; bits >>>= 8; }
  }
  if (low >= 0) bytes[end++] = bits | low << number;
  return bytes.subarray(0, end);
}

/** The data with all that its compact form leaves out (compact.py): ids that follow from rows and axes, and numbers. */
function expanded(found) {
  const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-";
  const numbers = ([width, text]) => {
    const made = [];
    for (let at = 0; at < text.length; at += width) {
      let number = 0;
      for (let i = at; i < at + width; i++) number = number * digits.length + digits.indexOf(text[i]);
      made.push(number - 1);
    }
    return made;
  };
  const odd = found.ids;
  found.axis = numbers(found.axis);
  found.ids = [];
  for (const [area, name, count] of found.rows) {
    for (let i = 0; i < count; i++) {
      const place = found.ids.length, [, values] = found.axes[found.axis[place]];
      found.ids.push(odd[place] ?? `${area}.${name}${values.length ? `[${values.join("-")}]` : ""}`);
    }
  }
  found.axes = found.axes.map(([names, values]) => Object.fromEntries(names.map((name, i) => [name, values[i]])));
  for (const column of found.columns) {
    column.messages = found.messages;
    column.message = numbers(column.message);
    for (const run of column.history) {
      const [gaps, letters] = run.changed;
      let place = 0;
      run.changed = {};
      gaps.forEach((gap, i) => { run.changed[place += gap] = letters[i]; });
    }
  }
  return found;
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
