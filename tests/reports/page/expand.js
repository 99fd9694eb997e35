// Reads data blocks as the page does: node expand.js FOLDER-OF-SCRIPTS < {"blocks": […], "compact": …}
const fs = require("fs"), vm = require("vm");

const given = JSON.parse(fs.readFileSync(0, "utf-8"));
const script = fs.readFileSync(`${process.argv[2]}/cases.js`, "utf-8");
const reading = `process.stdout.write(JSON.stringify({
  bytes: given.blocks.map((block) => [...bytesOf(block)]), expanded: expanded(given.compact) }));`;
vm.runInNewContext([script, reading].join("\n"), { given, process, window: {}, document: {}, console });
