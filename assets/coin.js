// How one token was decided: its sentences, the bars of p and q, and the coin. Contract: shows what
// the cell holds and nothing else; a value beyond the known choices is "—", never 0. Bars are DOM,
// labels go in as text. It also runs in a replay file.

const MANY_DIGITS = 5;

// --- what happened to the token ---

function quoted(label) { return "“" + visible(label) + "”"; }

function rowOf(token) { return rows.get(token.round)?.row ?? { cells: [] }; }

// A cut token was judged like any other; the text just ended before it.
function judgedFate(cell) { return cell.was ?? cell.fate; }

function ownCell(row) {
  const last = row.cells[row.cells.length - 1];
  return last && !last.position ? last : null;
}

function refusedCell(row) {
  return row.cells.find((cell) => cell.fate === "rejected") ?? null;
}

function shareText(share) {
  if (share === undefined || share === null) return "—";
  const percent = 100 * share;
  return share > 0 && percent < 0.1 ? "< " + fixed(0.1, 1) + " %" : fixed(percent, 1) + " %";
}

// As many digits as tell the two apart.
function toldApart(a, b) {
  const digits = a !== b && fixed(a, 3) === fixed(b, 3) ? MANY_DIGITS : 3;
  return [fixed(a, digits), fixed(b, digits)];
}

// The sentences of a proposed token, plain first.
function saidOfProposed(cell, row) {
  const fate = judgedFate(cell), own = ownCell(row), lines = [];
  if (fate === "pending") return [word("micro.pending")];
  const known = cell.p !== undefined && cell.q !== undefined;
  if (fate === "unjudged") lines.push(word("micro.unjudged"));
  else if (now.greedy) lines.push(word("micro.greedy." + fate), word("micro.greedy"));
  else if (known) {
    const facts = { p: shareText(cell.p), q: shareText(cell.q) };
    lines.push(fill(word(cell.p >= cell.q ? "micro.likes_more" : "micro.likes_less"), facts));
  } else lines.push(word("micro.not_recorded"));
  if (fate === "rejected" && own) {
    lines.push(fill(word("micro.replaced"), { token: quoted(own.label) }));
  }
  return lines;
}

// The sentences of the target's own token.
function saidOfOwn(cell, row, round) {
  const fate = judgedFate(cell), refused = refusedCell(row);
  const facts = { token: refused ? quoted(refused.label) : "" };
  if (fate === "recovered") {
    return [fill(word(now.greedy ? "micro.recovered.greedy" : "micro.recovered"), facts)];
  }
  const kind = fate === "bonus" ? "bonus" : round < 0 ? "prefill" : "target";
  return [word("micro." + kind), word(now.greedy ? "micro.own.greedy" : "micro.own")];
}

function saidNode(cell, row, round) {
  const box = make("div", "dl-micro-said");
  const lines = cell.position ? saidOfProposed(cell, row) : saidOfOwn(cell, row, round);
  if (now.greedy && cell.top) lines.push(word("micro.greedy.bars"));
  if (cell.fate === "cut") lines.push(word("micro.cut"));
  box.append(...lines.map((text) => make("p", "", text)));
  const list = make("dl");
  line(list, "id", String(cell.id));
  line(list, "at", cell.at && String(cell.at));
  line(list, "entropy", cell.entropy === undefined ? undefined : fixed(cell.entropy, 3) + " nat");
  line(list, "note", cell.note);
  box.append(list);
  return box;
}

// --- bars of p and q ---

// The union of both tops by token, best first. The token itself is there even when neither list has
// it; its own p and q are known exactly unless greedy choices made them 1 or 0.
function lawsOf(cell) {
  const laws = new Map();
  const entry = (id, label) => {
    if (!laws.has(id)) laws.set(id, { id, label, p: null, q: null });
    return laws.get(id);
  };
  for (const [label, share, id] of cell.top ?? []) entry(id, label).p = share;
  for (const [label, share, id] of cell.proposed ?? []) entry(id, label).q = share;
  const own = entry(cell.id, cell.label);
  if (!now.greedy) {
    own.p ??= cell.p ?? null;
    own.q ??= cell.q ?? null;
  }
  const best = (law) => Math.max(law.p ?? 0, law.q ?? 0);
  return [...laws.values()].sort((a, b) => best(b) - best(a));
}

function barNode(kind, share) {
  const bar = make("div", "dl-law " + kind), fillNode = make("i");
  if (share === null) bar.classList.add("unknown");
  fillNode.style.width = 100 * (share ?? 0) + "%";
  bar.append(fillNode, make("b", "", shareText(share)));
  return bar;
}

function lawsNode(cell) {
  const laws = lawsOf(cell), hasQ = laws.some((law) => law.q !== null);
  const box = make("div", "dl-micro-laws"), grid = make("div", "dl-laws" + (hasQ ? "" : " one"));
  grid.append(make("span"), make("span", "dl-laws-name p", word("micro.p")));
  if (hasQ) grid.append(make("span", "dl-laws-name q", word("micro.q")));
  for (const law of laws) {
    const name = make("code", law.id === cell.id ? "own" : "", visible(law.label));
    name.title = visible(law.label);
    grid.append(name, barNode("p", law.p));
    if (hasQ) grid.append(barNode("q", law.q));
  }
  box.append(grid);
  return box;
}

// --- the coin ---

// A line from 0 to 1: up to min(1, p/q) the coin accepts.
function coinNode(cell) {
  const thrown = cell.u !== undefined, fate = judgedFate(cell);
  const box = make("div", "dl-micro-coin");
  const [u, accept] = toldApart(cell.u ?? 0, cell.accept);
  const coin = make("div", "dl-coin" + (thrown ? "" : " idle")), zone = make("i");
  zone.style.width = 100 * cell.accept + "%";
  const mark = (className, at, text) => {
    const node = make("span", className + (at > 0.5 ? " left" : ""), text);
    node.style.left = 100 * at + "%";
    return node;
  };
  coin.append(zone, mark("dl-coin-limit", cell.accept, "min(1, p/q) = " + accept));
  if (thrown) coin.append(mark("dl-coin-u", cell.u, "u = " + u));
  coin.setAttribute("role", "img");
  const scale = make("div", "dl-coin-scale");
  scale.append(make("span", "", "0"), make("span", "", "1"));
  const accepted = fate !== "rejected";
  const verdict = !thrown ? word("micro.no_coin")
    : fill(word(accepted ? "micro.won" : "micro.lost"), { u, accept });
  coin.setAttribute("aria-label", verdict);
  const verdictNode = make("p", "dl-coin-verdict", verdict);
  if (thrown) verdictNode.classList.add(accepted ? "won" : "lost");
  box.append(make("div", "dl-micro-name", word("micro.coin")), coin, scale, verdictNode);
  return box;
}

function residualNode(cell) {
  const box = make("div", "dl-micro-coin");
  box.append(make("div", "dl-micro-name", word("micro.residual")));
  const grid = make("div", "dl-laws one");
  for (const [label, share, id] of cell.residual) {
    grid.append(make("code", id === cell.id ? "own" : "", visible(label)), barNode("r", share));
  }
  box.append(grid);
  return box;
}

function overlapNode(cell) {
  return make("p", "dl-micro-overlap", fill(word("micro.overlap"), { percent: shareText(cell.overlap) }));
}

// The third column: how the choice between p and q fell.
function decisionNode(cell) {
  let box = make("div", "dl-micro-coin");
  // With temperature 0 both laws are 1 or 0; a coin and its odds would say nothing.
  if (!now.greedy) {
    if (cell.accept !== undefined) box = coinNode(cell);
    else if (cell.residual) box = residualNode(cell);
    if (cell.overlap !== undefined) box.append(overlapNode(cell));
  }
  return box.childNodes.length ? box : null;
}
