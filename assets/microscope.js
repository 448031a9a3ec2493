// The coin microscope: a panel that shows one token's decision large (coin.js) and moves from token to
// token. Contract: it is at `pinned` and open exactly while there is one; it never covers its token.

const micro = $("micro");

// --- the panel ---

function microHead(token) {
  const cell = token.cell, head = make("div", "dl-micro-head");
  const place = token.round < 0 ? word("micro.where.prefill")
    : fill(word(cell.position ? "micro.where.proposed" : "micro.where.own"),
      { round: token.round + 1, position: cell.position });
  const tools = make("div", "dl-micro-tools");
  const button = (className, text, key, act) => {
    const node = make("button", className, text);
    node.type = "button";
    node.title = word(key);
    node.setAttribute("aria-label", word(key));
    node.onclick = act;
    tools.append(node);
  };
  button("dl-micro-back", "◂", "micro.back", () => moveMicro(-1));
  button("dl-micro-on", "▸", "micro.on", () => moveMicro(1));
  button("dl-micro-close", "×", "micro.close", () => hideCard(true));
  head.append(make("code", "", visible(cell.label)),
    make("span", "dl-card-fate f-" + cell.fate, word("fate." + cell.fate)),
    make("span", "dl-micro-where", place), tools);
  return head;
}

function drawMicro() {
  if (!pinned) return;
  const cell = pinned.cell, row = rowOf(pinned), body = make("div", "dl-micro-body");
  const held = micro.contains(document.activeElement) ? document.activeElement.className : null;
  const parts = [saidNode(cell, row, pinned.round), lawsNode(cell), decisionNode(cell)];
  body.append(...parts.filter(Boolean));
  micro.replaceChildren(microHead(pinned), body);
  micro.setAttribute("aria-label", word("micro.label"));
  micro.dataset.token = String(cell.id);
  if (held) micro.querySelector("." + held)?.focus();
}

function openMicro(token) {
  if (pinned) pinned.classList.remove("pin");
  pinned = token;
  token.classList.add("pin");
  root.classList.add("inspecting");
  micro.hidden = false;
  drawMicro();
  keepInSight(token);
}

function closeMicro() {
  const held = micro.contains(document.activeElement), token = pinned;
  pinned?.classList.remove("pin");
  pinned = null;
  micro.hidden = true;
  root.classList.remove("inspecting");
  if (held && token?.isConnected) token.focus({ preventScroll: true });
}

// The panel takes room from the text, and on a phone lies over the page: the token stays above it.
function keepInSight(token) {
  const within = strip.getBoundingClientRect();
  let at = token.getBoundingClientRect();
  if (at.bottom > within.bottom - 6) strip.scrollTop += at.bottom - within.bottom + 24;
  if (at.top < within.top) strip.scrollTop -= within.top - at.top + 12;
  at = token.getBoundingClientRect();
  const panel = micro.getBoundingClientRect();
  if (at.bottom > panel.top - 8 && at.top < panel.bottom) {
    window.scrollBy(0, at.bottom - panel.top + 16);
  }
}

function neighbour(token, by) {
  const all = [...strip.querySelectorAll(".tok")].filter((t) => t.getClientRects().length);
  return by === "home" ? all[0] : by === "end" ? all[all.length - 1] : all[all.indexOf(token) + by];
}

function moveMicro(by) {
  const next = pinned && neighbour(pinned, by);
  if (next) openMicro(next);
}

// A row that was drawn again has new nodes; the microscope goes to the one in the same place.
function holdMicro() {
  if (!pinned || pinned.isConnected) return;
  const node = rows.get(pinned.round)?.node;
  const same = [...(node?.children ?? [])].find((t) => t.cell.id === pinned.cell.id
    && t.cell.position === pinned.cell.position);
  if (same) openMicro(same); else hideCard(true);
}

micro.addEventListener("keydown", (e) => {
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: "home", End: "end" };
  if (e.key in steps) moveMicro(steps[e.key]);
  else if (e.key === "Escape") hideCard(true);
  else return;
  e.preventDefault();
});
