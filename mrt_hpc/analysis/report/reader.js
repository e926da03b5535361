"use strict";
// The reader of sample traces. Texts of models become text nodes, never markup.

const data = JSON.parse(document.getElementById("data").textContent);
const traces = data.runs.flatMap((run) => run.traces.map((trace) => ({ ...trace, run: run.name, problems: run.problems })));
const at = (id) => document.getElementById(id);
const filters = { run: at("run"), source: at("source"), problem: at("problem") };
let shown = [];
let current = null;

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function whole(text) {
  return Array.isArray(text) ? text[0] + " […] " + text[2] : text;
}

function nodes(text) {
  if (!Array.isArray(text)) return [text];
  const left = element("span", { className: "omitted" }, `[${text[1].toLocaleString("en")} characters left out]`);
  return [text[0], left, text[2]];
}

function problemName(trace) {
  return whole(trace.problems[trace.problem].name); // with its benchmark: two of them may have the same ids
}

function points(share) {
  if (share === null) return "not valued";
  const size = Math.round(Math.abs(100 * share));
  return (size === 0 ? "" : share < 0 ? "−" : "+") + size;
}

function colour(share) {
  if (share === null) return "unknown";
  const size = Math.abs(share) >= 0.5 ? 3 : Math.abs(share) >= 0.2 ? 2 : Math.abs(share) >= 0.005 ? 1 : 0;
  return size === 0 ? "zero" : (share > 0 ? "g" : "l") + size;
}

function known(trace) {
  return trace.progress.filter((share) => share !== null);
}

function extreme(trace, order) {
  const shares = known(trace);
  if (shares.length === 0) return Infinity;
  return order === "gain" ? -Math.max(...shares) : Math.min(...shares);
}

function words(trace) {
  const { text, gold } = trace.problems[trace.problem];
  const texts = [problemName(trace), text, gold, trace.before, ...trace.episodes, trace.rest, trace.answer];
  trace.words ??= texts.map((one) => whole(one ?? "")).join("\n").toLowerCase();
  return trace.words;
}

function chosen() {
  const { run, source, problem } = filters;
  const sought = at("text").value.trim().toLowerCase();
  const verdict = at("verdict").value;
  const order = at("order").value;
  const found = traces.filter((trace) =>
    (!run.value || trace.run === run.value) && (!source.value || trace.source === source.value) &&
    (!problem.value || trace.problem === problem.value) && (!verdict || trace.right === (verdict === "right")) &&
    (!sought || words(trace).includes(sought)));
  return order ? found.sort((a, b) => extreme(a, order) - extreme(b, order)) : found;
}

function verdictOf(trace) {
  return (trace.right ? "✓ " : trace.verdict === "wrong" ? "✗ " : "") + trace.verdict;
}

function summary(trace) {
  const shares = known(trace);
  const extremes = shares.length ? `best episode ${points(Math.max(...shares))}, worst ${points(Math.min(...shares))}` : "not valued";
  return `${verdictOf(trace)} · ${trace.tokens.toLocaleString("en")} tokens · ${extremes}`;
}

function strip(trace) {
  const cells = trace.progress.map((share) => element("span", { className: colour(share) }));
  const made = element("span", { className: "strip" }, ...cells);
  made.setAttribute("aria-hidden", "true"); // the numbers stand beside it
  return made;
}

function item(trace) {
  const where = (data.runs.length > 1 ? `${trace.run} · ` : "") + trace.source;
  const button = element("button", { type: "button" },
    element("strong", {}, problemName(trace)), ` sample ${trace.sample}`, element("br"), where, element("br"),
    summary(trace), strip(trace));
  button.addEventListener("click", () => { show(trace); at("trace").focus(); });
  button.setAttribute("aria-current", String(trace === current));
  return element("li", {}, button);
}

function list() {
  shown = chosen();
  at("count").textContent = `${shown.length} of ${traces.length} traces`;
  if (!shown.includes(current)) current = shown[0] || null;
  at("list").replaceChildren(...shown.map(item));
  show(current);
}

function answers(found) {
  const items = found.map(([answer, right, count, probability]) => {
    const often = probability === null ? (count > 1 ? ` × ${count}` : "") : `, probability ${(100 * probability).toFixed(1)} %`;
    return element("li", {}, `${right ? "✓ right" : "✗ wrong"}: ${answer === null ? "no answer" : answer}${often}`);
  });
  return element("ul", { className: "answers" }, ...items);
}

function boundary(trace, index, words) {
  const value = trace.values[index];
  if (value === undefined || value === null) return [];
  const valued = element("p", { className: "note" }, `${words}: value ${(100 * value).toFixed(0)} %; forced answers:`);
  const found = trace.answers[index];
  return found.length ? [valued, answers(found)] : [element("p", { className: "note" }, `${words}: value ${(100 * value).toFixed(0)} %`)];
}

function chip(share) {
  return element("div", { className: `chip ${colour(share)}` }, share === null ? "not valued" : `${points(share)} points`);
}

function episode(trace, index) {
  const parts = trace.marked ? [element("pre", {}, ...nodes(trace.episodes[index]))] : [];
  return element("section", { className: "episode" }, chip(trace.progress[index]),
    element("div", {}, element("h4", {}, `Episode ${index}`), ...parts, ...boundary(trace, index + 1, "At its end")));
}

function foldable(title, text, open) {
  return element("details", { open }, element("summary", {}, title), element("pre", {}, ...nodes(text)));
}

// A link to one trace names it by what stays when the report is written again.
function fragment(trace) {
  const run = data.runs.length > 1 ? { run: trace.run } : {};
  return "#" + new URLSearchParams({ ...run, source: trace.source, problem: trace.problem, sample: trace.sample });
}

function followed() {
  const found = traces.find((trace) => fragment(trace) === "#" + new URLSearchParams(location.hash.slice(1)));
  if (!found) return;
  at("filters").reset();
  current = found;
  list();
  at("trace").focus({ preventScroll: true });
  at("trace").scrollIntoView();
}

function example() {
  const [trace] = traces.filter((one) => one.source === traces[0].source).sort((a, b) => extreme(a, "gain") - extreme(b, "gain"));
  if (known(trace).length === 0) return;
  const episodes = trace.progress.map((share, index) =>
    element("li", { className: "episode" }, chip(share), element("p", {}, whole(trace.episodes[index]))));
  const question = trace.problems[trace.problem].text;
  const problem = question === undefined ? [] : [element("p", { className: "question" }, whole(question))];
  at("example").replaceChildren(element("h3", {}, "A trace: the thought by episodes, and the progress of each"), ...problem,
    element("ol", {}, ...episodes), element("p", {}, verdictOf(trace), ", ",
      element("a", { href: fragment(trace) }, "read it whole")),
    element("p", { className: "note" }, `Of the traces shown from ${trace.source}, the one with the greatest gain of an episode.`));
  at("example").hidden = false;
}

function step(words, by) {
  const next = shown[shown.indexOf(current) + by];
  const button = element("button", { type: "button", disabled: !next }, words);
  button.addEventListener("click", () => { show(next); at("trace").focus(); });
  return button;
}

function facts(trace) {
  const problem = trace.problems[trace.problem];
  const found = trace.answer === null ? "no answer found" : `answer ${trace.answer}`;
  const gold = problem.gold !== undefined ? `, right answer ${whole(problem.gold)}` : "";
  const end = trace.cut ? "; cut off by the token limit" : "";
  const verdict = element("p", {}, element("strong", {}, verdictOf(trace)), `: ${found}${gold}${end}`);
  const parts = [element("p", { className: "note" }, `${trace.run} · ${trace.source} · ${summary(trace)}`), verdict];
  if (problem.text !== undefined) parts.push(foldable("Problem", problem.text, true));
  if (trace.before) parts.push(foldable("Text that the model was given to go on from", trace.before, false));
  return parts;
}

function show(trace) {
  current = trace;
  [...at("list").querySelectorAll("button")].forEach((b, i) => b.setAttribute("aria-current", String(shown[i] === trace)));
  if (trace === null) {
    at("trace").replaceChildren(element("h3", { id: "trace-title" }, "No trace has all of these"));
    return;
  }
  const title = element("h3", { id: "trace-title" }, `${problemName(trace)}, sample ${trace.sample}`);
  const pages = element("div", { className: "pages" }, step("Previous trace", -1), step("Next trace", 1),
    element("a", { href: fragment(trace) }, "Link to this trace"));
  const episodes = trace.progress.map((_, index) => episode(trace, index));
  const heading = trace.marked ? "After the last episode" : "Text (its episodes could not be marked)";
  const rest = whole(trace.rest) ? [element("h4", {}, heading), element("pre", {}, ...nodes(trace.rest))] : [];
  at("trace").replaceChildren(title, pages, ...facts(trace), ...boundary(trace, 0, "Before the first episode"), ...episodes, ...rest);
}

function options(select, all, entries) {
  const made = entries.map(([value, words]) => element("option", { value }, words));
  select.replaceChildren(element("option", { value: "" }, all), ...made);
}

function distinct(values) {
  return [...new Set(values)].map((value) => [value, value]);
}

function problems() {
  const names = new Map(traces.map((trace) => [trace.problem, problemName(trace)]));
  const { compare } = new Intl.Collator("en", { numeric: true }); // 2 before 10
  return [...names].sort((a, b) => compare(a[1], b[1]));
}

options(filters.run, data.models ? "all models" : "all runs", distinct(data.runs.map((run) => run.name)));
options(filters.source, "all sources", distinct(traces.map((trace) => trace.source)));
options(filters.problem, "all problems", problems());
filters.run.parentElement.hidden = data.runs.length < 2;
at("filters").addEventListener("change", list);
at("text").addEventListener("input", list);
addEventListener("hashchange", followed);
at("filters").addEventListener("submit", (event) => event.preventDefault());
at("reader").hidden = false;
list();
example();
followed();
