// The token strip: coloured text, its card, legend and footer, and what each message changes. It
// also runs in a replay file without Gradio (assets/replay_start.js): what only the page has, it must
// not need.

const LONG_LINK = 2000;    // mail and chat programs begin to cut addresses
const CARD_CHOICES = 4;    // the card stays small; the microscope shows all

// --- the text ---

function tokenNode(cell) {
  const look = cell.step ? " step" : cell.ghost ? " ghost" : "";
  const node = make("span", "tok f-" + cell.fate + look);
  node.textContent = cell.ghost ? ghostText(cell.text) : cell.text;
  if (node.textContent === "") node.classList.add("part");
  node.tabIndex = -1;
  node.cell = cell;
  return node;
}

// Fills a row's node, also with cells of an earlier phase; the focus keeps its place.
function fillRow(node, cells, index) {
  const held = node.contains(document.activeElement);
  const at = held ? [...node.children].indexOf(document.activeElement) : -1;
  node.replaceChildren(...cells.map((cell) => {
    const token = tokenNode(cell);
    token.round = index;
    return token;
  }));
  if (held) (node.children[at] ?? node.firstChild)?.focus({ preventScroll: true });
}

function putRow(row) {
  const key = JSON.stringify(row.cells);
  const old = rows.get(row.i);
  if (old) old.row = row;
  if (old && old.key === key) return;
  if (!row.cells.length) {
    if (old) { old.node.remove(); rows.delete(row.i); }
    return;
  }
  if (old) {
    fillRow(old.node, row.cells, row.i);
    old.key = key;
    return;
  }
  const node = make("span", "dl-row");
  node.dataset.round = row.i;
  fillRow(node, row.cells, row.i);
  const after = [...rows.keys()].filter((i) => i > row.i).sort((a, b) => a - b)[0];
  strip.insertBefore(node, after === undefined ? null : rows.get(after).node);
  rows.set(row.i, { node, key, row });
}

// One token is in the tab order: where the arrow keys start.
function tabStop() {
  const old = strip.querySelector('.tok[tabindex="0"]');
  if (old && old.getClientRects().length) return;
  if (old) old.tabIndex = -1;
  const first = strip.querySelector(".dl-row:not([hidden]) .tok");
  if (first) first.tabIndex = 0;
}

function drawRows(message) {
  const follow = strip.scrollHeight - strip.scrollTop - strip.clientHeight < 40;
  if (!now || now.run !== message.run) {
    // On a phone the text lies below the controls; a run the visitor asked for comes into view.
    const below = root.getBoundingClientRect().top > 0.6 * window.innerHeight;
    if (below && message.stage !== "recording") root.scrollIntoView({ block: "start" });
    strip.replaceChildren();
    rows = new Map();
    hideCard(true);
  }
  if (message.full) {
    const kept = new Set(message.rows.map((row) => row.i));
    for (const [i, row] of rows) if (!kept.has(i)) { row.node.remove(); rows.delete(i); }
  }
  for (const row of message.rows) putRow(row);
  if (!strip.querySelector('.tok[tabindex="0"]')) tabStop();
  holdMicro();
  if (follow) strip.scrollTop = strip.scrollHeight;
}

// --- the card of one token ---

function line(list, name, value) {
  if (value === undefined || value === null || value === "") return;
  list.append(make("dt", "", word("card." + name)), make("dd", "", value));
}

function bars(name, choices) {
  const box = make("div", "dl-bars");
  box.append(make("div", "dl-bars-name", word("card." + name)));
  for (const [label, prob] of choices.slice(0, CARD_CHOICES)) {
    const bar = make("div", "dl-bar");
    const fillNode = make("i");
    fillNode.style.width = 100 * prob + "%";
    bar.append(make("span", "", visible(label)), fillNode, make("b", "", fixed(100 * prob, 1) + " %"));
    box.append(bar);
  }
  return box;
}

function showCard(token) {
  const cell = token.cell, list = make("dl");
  const digits = (x) => (x === undefined ? undefined : fixed(x, 3));
  line(list, "id", String(cell.id));
  line(list, "round", token.round < 0 ? word("card.prefill") : String(token.round + 1));
  line(list, "position", cell.position && String(cell.position));
  line(list, "at", cell.at && String(cell.at));
  line(list, "p", digits(cell.p));
  line(list, "q", digits(cell.q));
  line(list, "accept", digits(cell.accept));
  line(list, "u", digits(cell.u));
  line(list, "entropy", cell.entropy === undefined ? undefined : digits(cell.entropy) + " nat");
  line(list, "note", cell.note);
  const title = make("div", "dl-card-title");
  title.append(make("code", "", visible(cell.label)),
    make("span", "dl-card-fate f-" + cell.fate, word("fate." + cell.fate)));
  card.replaceChildren(title, make("p", "", word("fate." + cell.fate + ".why")), list);
  if (cell.top) card.append(bars("top", cell.top));
  if (cell.proposed) card.append(bars("proposed", cell.proposed));
  if (cell.residual) card.append(bars("residual", cell.residual));
  card.append(make("p", "dl-card-closer", word("card.closer")));
  card.hidden = false;
  shown = token;
  place(token);
}

function place(token) {
  const frame = root.getBoundingClientRect();
  const at = token.getClientRects()[0] ?? token.getBoundingClientRect();
  const left = Math.min(at.left - frame.left, frame.width - card.offsetWidth - 8);
  const fitsBelow = at.bottom + card.offsetHeight + 12 < window.innerHeight;
  const above = at.top - frame.top - card.offsetHeight - 6;
  const below = at.bottom - frame.top + 6;
  const top = fitsBelow || above < -frame.top ? below : above;
  card.style.left = Math.max(0, left) + "px";
  card.style.top = Math.min(top, window.innerHeight - frame.top - card.offsetHeight - 8) + "px";
}

function hideCard(unpin) {
  if (unpin && pinned) closeMicro();
  card.hidden = true;
  shown = null;
}

// A click opens the microscope at a token, a second one closes it.
function pin(token) {
  const again = pinned === token;
  hideCard(again);
  if (!again) openMicro(token);
}

function step(token, by) {
  const next = neighbour(token, by);
  if (next) next.focus();
}

// A finger cannot hover: its first tap opens the card, the next one the microscope. A press also
// focuses its token, which is not yet the click.
let press = null;
strip.addEventListener("pointerdown", (e) => {
  press = { seen: e.pointerType === "touch" && !pinned ? shown : undefined };
});
strip.addEventListener("mouseover", (e) => {
  const token = e.target.closest(".tok");
  if (token && token !== pinned) showCard(token);
});
strip.addEventListener("mouseleave", () => hideCard(false));
strip.addEventListener("focusin", (e) => {
  const token = e.target.closest(".tok");
  if (!token) return;
  const old = strip.querySelector('.tok[tabindex="0"]');
  if (old) old.tabIndex = -1;
  token.tabIndex = 0;
  token.setAttribute("role", "button");
  token.setAttribute("aria-describedby", card.id);
  if (!pinned) showCard(token);
  else if (!press) openMicro(token);
});
strip.addEventListener("focusout", () => hideCard(false));
strip.addEventListener("scroll", () => { if (shown && shown.isConnected) place(shown); });
strip.addEventListener("click", (e) => {
  const token = e.target.closest(".tok"), seen = press?.seen;
  press = null;
  if (!token) hideCard(true);
  else if (seen === undefined || seen === token) pin(token);
  else showCard(token);
});
strip.addEventListener("keydown", (e) => {
  const token = e.target.closest(".tok");
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: "home", End: "end" };
  press = null;
  if (!token) return;
  if (e.key in steps) step(token, steps[e.key]);
  else if (e.key === "Enter" || e.key === " ") pin(token);
  else if (e.key === "Escape") hideCard(true);
  else return;
  e.preventDefault();
});

// --- legend, buttons, footer ---

function buildLegend() {
  $("legend").replaceChildren(...props.fates.map((fate) => {
    const item = make("li");
    item.title = word("fate." + fate + ".why");
    const sample = make("span", "tok f-" + fate, word("fate." + fate));
    if (["rejected", "unjudged", "cut"].includes(fate)) sample.classList.add("ghost");
    item.append(sample);
    return item;
  }));
}

function drawTools() {
  const hidden = root.classList.contains("no-ghosts");
  $("ghosts").textContent = word("tool.ghosts");
  $("ghosts").setAttribute("aria-pressed", String(!hidden));
  $("copy").textContent = word("tool.copy");
}

$("ghosts").onclick = () => { root.classList.toggle("no-ghosts"); drawTools(); };
$("copy").onclick = async () => {
  const done = await copyText(now ? now.text : "");
  $("copy").textContent = word(done ? "tool.copied" : "tool.not_copied");
  setTimeout(drawTools, 1500);
};

// Plain-http pages of a local network have no navigator.clipboard.
async function copyText(text) {
  const held = document.activeElement;
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea");
    area.value = text;
    area.style.position = "fixed";
    area.style.opacity = "0";
    root.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    held?.focus();
    return done;
  }
}

// The address of the form as it is; where copying fails, it stands in the address bar.
async function copyLink(query) {
  const address = location.origin + location.pathname + "?" + query;
  const done = await copyText(address), long = address.length > LONG_LINK;
  if (!done) history.replaceState(null, "", "?" + query);
  const code = !done ? "link.not_copied" : long ? "link.copied.long" : "link.copied";
  status = { code, facts: { characters: address.length } };
  drawSaid();
}

function restedText(n) {
  const facts = { rested: now.rested, rounds: n.rounds };
  if (now.first_acceptance === null) return fill(word("foot.rested.undrafted"), facts);
  return fill(word("foot.rested"), { ...facts, percent: fixed(100 * now.first_acceptance, 0) });
}

function drawFoot() {
  const n = now && now.numbers;
  const parts = [];
  if (n && n.rounds) {
    parts.push(n.broken_books.length
      ? fill(word("foot.books_broken"), { names: n.broken_books.join("; ") })
      : word("foot.books"));
  }
  if (now && now.adaptive) parts.push(fill(word("foot.adaptive"), { gamma: now.adaptive }));
  if (n && now.rested) parts.push(restedText(n));
  const where = (now && now.where) || {};
  if (now && now.bit_identical) parts.push(word("foot.identical"));
  if (where.device) {
    const code = where.threads === "1" ? "foot.where.one" : "foot.where";
    parts.push(say({ code, facts: where, plain: where.device }));
  }
  if (where.mtp_wiring && now.method === "mtp") {
    const percent = fixed(100 * Number(where.mtp_agreement), 0);
    parts.push(fill(word("foot.wiring." + where.mtp_wiring), { percent }));
  }
  if (where.drafters) parts.push(fill(word("foot.drafters"), { dtype: where.drafters }));
  $("foot").replaceChildren(...parts.map((part) => make("span", "", part)));
  $("foot").title = Object.entries(where).map((pair) => pair.join(": ")).join("\n");
}

function drawSaid() {
  const recording = now && now.stage === "recording";
  const stamp = $("stamp");
  const baseline = now && now.stage === "baseline";
  stamp.hidden = !recording && !baseline;
  stamp.textContent = recording ? word("stamp.recording") : baseline ? word("stamp.baseline") : "";
  // The empty panel says by itself that nothing has run.
  const text = status && status.code !== "empty" ? say(status) : "";
  if ($("status").textContent !== text) $("status").textContent = text;
  $("status").classList.toggle("error", !!(status && status.error));
  const n = now && now.numbers;
  const over = now && (now.final || status && status.code === "recording.done");
  const slower = over && n && n.speed_up !== null && n.speed_up < 1;
  $("verdict").hidden = !slower;
  if (slower) {
    const facts = {
      method: now.method,
      speed_up: fixed(n.speed_up, 2),
      gave: fixed(n.decoded / n.rounds, 2),
      took: fixed(n.decode_seconds / n.rounds * n.plain_per_second, 2),
    };
    $("verdict").textContent = fill(word("verdict.slower"), facts);
  }
  const prompt = now && now.prompt;
  $("prompt").hidden = !prompt;
  $("prompt").textContent = prompt ? word("strip.prompt") + " " + prompt : "";
  root.classList.toggle("empty", !rows.size);
  drawFields();
}

function drawWords() {
  document.documentElement.lang = words["language.tag"];
  strip.setAttribute("aria-label", word("strip.label"));
  strip.dataset.empty = word("empty");
  buildNumbers();
  buildCharts();
  buildLegend();
  drawTools();
  drawNumbers();
  drawFoot();
  drawSaid();
  wordPlayer();
  if (shown) showCard(shown);
  drawMicro();
}

function take() {
  if (!props.value) return;
  const message = JSON.parse(props.value);
  if (message.n === lastN) return;
  lastN = message.n;
  // A run (or recording) that goes on must not talk over an error the visitor has yet to read.
  const goesOn = now && message.run === now.run;
  if (!(goesOn && status && status.error)) status = message.status;
  leavePlayer(message);
  if (message.run !== null) {
    const other = !now || now.run !== message.run;
    drawRows(message);
    now = message;
    takePoints(message, other);
    takePlayer(message);
  }
  drawNumbers();
  drawFoot();
  if (message.link === undefined) drawSaid(); else copyLink(message.link);
}

watch("value", take);
window.addEventListener("resize", () => { if (shown && shown.isConnected) place(shown); });
onWords(drawWords);
take();
