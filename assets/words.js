// What every component of the page shares: words, numbers and nodes. Gradio runs the parts of a
// component in order and as one function, which is given `element`, `props` and `watch`. Contract:
// model text reaches the page through textContent only; all sentences come from `words`, the
// dictionary of a language. The page has it once: the component that got it in its props hands it on.

let words = props.words ?? window.dlWords ?? {};

// Calls `draw` as soon as there are words, and whenever the language changes.
function onWords(draw) {
  window.addEventListener("dl-words", () => { words = window.dlWords; draw(); });
  const share = () => {
    window.dlWords = props.words;
    window.dispatchEvent(new Event("dl-words"));
  };
  if (props.words) { watch("words", share); share(); } else if (window.dlWords) draw();
}

function word(key) { return words[key] ?? key; }

function fill(template, facts) {
  return template.replace(/\{(\w+)\}/g, (_, name) => {
    const fact = facts[name];
    if (typeof fact?.significant === "number") return significant(fact.significant);
    return typeof fact === "number" ? number(fact, 2) : words["value." + fact] ?? fact ?? "";
  });
}

function say(said) {
  const template = words[said.code];
  const known = template && [...template.matchAll(/\{(\w+)\}/g)].every((m) => m[1] in said.facts);
  return known ? fill(template, said.facts).trim() : said.plain ?? said.code;
}

function number(value, digits) {
  const options = { maximumFractionDigits: digits };
  return new Intl.NumberFormat(words["language.tag"], options).format(rounded(value, digits));
}

// For a number that may be very small (blocks.significant): a gap of 0.00002 must not read 0.
function significant(value) {
  return new Intl.NumberFormat(words["language.tag"], { maximumSignificantDigits: 2 }).format(value);
}

// Without it a number just below nothing reads "-0".
function rounded(value, digits) { return Number(value.toFixed(digits)) + 0; }

function fixed(value, digits) {
  const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return new Intl.NumberFormat(words["language.tag"], options).format(rounded(value, digits));
}

function rate(value) { return fixed(value, value < 10 ? 1 : 0); }

function duration(seconds) {
  return seconds < 1 ? { value: fixed(1000 * seconds, 0), unit: "ms" }
    : { value: fixed(seconds, 1), unit: "s" };
}

function visible(label) {
  return label.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥");
}

// In the text a space is a gap; only a ghost that would be invisible spells it out.
function ghostText(label) {
  return label.trim() === "" ? visible(label) : label.replace(/\n/g, "⏎").replace(/\t/g, "⇥");
}

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}
