// Answers questions as the page does, without a browser: node answers.js FOLDER-OF-SCRIPTS < {"data": …, "questions": […]}
const fs = require("fs"), vm = require("vm");

const folder = process.argv[2], given = JSON.parse(fs.readFileSync(0, "utf-8"));
const scripts = ["cases.js", "answer.js"].map((name) => fs.readFileSync(`${folder}/${name}`, "utf-8").replace('"use strict";', ""));
const asking = `
data = given.data;
data.subjects = [];
for (const [area, name, count] of data.rows) {
  const first = data.subjects.length ? data.subjects[data.subjects.length - 1].end : 0;
  data.subjects.push({ area, name, first, end: first + count, search: searchable(area, name) });
}
function asked(text) {
  const found = understood(text), named = found.words.length ? subjectsNamed(found.words, data.subjects) : data.subjects;
  const shown = (subjects) => subjects.map((subject) => subject.area + "." + subject.name);
  if (found.device) return { kind: "suggested", names: data.columns.map(({ title }) => title), device: found.device };
  if (found.lacking) return { kind: "suggested", names: found.lacking.nearest, lacking: found.lacking };
  if (found.topic && found.topic.length) return { kind: "suggested", names: found.topic.flatMap((name) => shown(subjectsNamed([name], data.subjects))) };
  if (!named.length) {
    const { near, known } = suggestions(found, data.subjects), names = near.length ? near : known;
    return { kind: names.length ? "suggested" : "dead", names };
  }
  const places = placesAsked(named, found);
  if (!places.length) return { kind: "suggested", names: shown(named), dtype: found.dtype };
  const columns = (found.columns || data.columns).map((column) => judged(column, places));
  return { kind: "answered", names: [...shown(named), ...shown(namesakes(found.words, data.subjects, named))], dtype: found.dtype,
    columns: columns.map(({ column, kind, worst, counts }) => ({ title: column.title, kind, worst, counts })) };
}
process.stdout.write(JSON.stringify(given.questions.map(asked)));
`;
vm.runInNewContext([...scripts, asking].join("\n"), { given, process, window: {}, document: {}, structuredClone, console });
