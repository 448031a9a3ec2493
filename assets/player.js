// The step player: a run that is over, once more, phase by phase. Contract: pacing is the player's,
// times are the recorded ones; the numbers and charts stay those of the whole run. A live run always
// wins: `leavePlayer` before its rows are drawn, `takePlayer` after.
//
// Words: a *frame* is one phase of a round as it stands on screen; a draft has one for each token.

const player = $("player"), scrub = $("player-scrub"), speed = $("player-speed");
const SPEEDS = ["1", "0.5", "0.25", "0.1", "0.02", "step"];
const CALM = window.matchMedia("(prefers-reduced-motion: reduce)");
const AGAIN = ["waiting", "queued", "queued.one", "loading"];
let frames = [], order = [], frameAt = 0, playing = null;

// --- frames of a run ---

function proposedCells(row) {
  const seen = new Set();
  return row.cells.filter((cell) => cell.position && !seen.has(cell.position) && seen.add(cell.position));
}

function framesOf(row, place) {
  const ms = row.ms ?? {}, list = [];
  const add = (phase, time, part) => list.push({ place, row, phase, ms: time ?? null, ...part });
  if (row.i < 0) {
    add("prefill", (ms.prefill ?? 0) + (ms.proposer ?? 0));
    return list;
  }
  const count = proposedCells(row).length;
  for (let k = 1; k <= count; k++) add("draft", ms.draft, { shown: k, of: count });
  add("verify", ms.verify);
  if (count) add("verdict", ms.judge);
  // Without a proposal nothing is judged: the draw belongs to the token that comes.
  add("rollback", count ? ms.rest : (ms.judge ?? 0) + (ms.rest ?? 0) + (ms.draft ?? 0));
  return list;
}

// start and end: recorded milliseconds of the whole run. A draft is recorded as a whole; its tokens
// share its time evenly for the pace, and it counts as spent with the last of them.
function buildFrames() {
  order = [...rows.values()].map((held) => held.row).sort((a, b) => a.i - b.i);
  frames = order.flatMap(framesOf);
  let sum = 0;
  for (const frame of frames) {
    const own = (frame.ms ?? 0) / (frame.of ?? 1);
    frame.start = sum;
    frame.end = sum += own;
    frame.sum = frame.shown < frame.of ? frame.end - own * frame.shown : frame.end;
  }
}

// What the row of a frame shows: proposals as they stood then, whole rows at the end of a round.
function cellsOf(frame) {
  if (frame.phase === "prefill" || frame.phase === "rollback") return null;
  const plain = (cell, fate) => ({ ...cell, fate, ghost: true, text: cell.label, step: true });
  const waiting = ({ id, label, position, q, proposed, note }) =>
    plain({ id, label, position, q, proposed, note }, "pending");
  const proposed = proposedCells(frame.row);
  if (frame.phase === "verdict") return proposed.map((cell) => plain(cell, cell.was ?? cell.fate));
  return proposed.slice(0, frame.shown ?? proposed.length).map(waiting);
}

// --- showing one ---

function seek(index) {
  const next = Math.max(0, Math.min(frames.length - 1, index));
  if (!frames.length || next === frameAt) { drawPlayer(); return; }
  const from = frames[frameAt].place, frame = frames[next];
  hideCard(true);
  for (let i = Math.min(from, frame.place); i <= Math.max(from, frame.place); i++) {
    const held = rows.get(order[i].i);
    if (held.stepped) { fillRow(held.node, held.row.cells, held.row.i); held.stepped = false; }
    held.node.hidden = i > frame.place;
  }
  const held = rows.get(frame.row.i), cells = cellsOf(frame);
  if (cells) { fillRow(held.node, cells, frame.row.i); held.stepped = true; }
  frameAt = next;
  tabStop();
  keepRow(held.node);
  drawPlayer();
}

function keepRow(node) {
  const at = node.getBoundingClientRect(), within = strip.getBoundingClientRect();
  if (at.bottom > within.bottom - 8) strip.scrollTop += at.bottom - within.bottom + 30;
  else if (at.top < within.top) strip.scrollTop -= within.top - at.top + 12;
}

// The end of the round that stands on screen, of the next one, or of the one before.
function seekRound(by) {
  pausePlayer();
  const place = frames[frameAt].place;
  const ends = frames.findLastIndex((frame) => frame.place === place);
  const goal = by > 0 && frameAt < ends ? place : place + by;
  seek(goal < 0 ? 0 : frames.findLastIndex((frame) => frame.place <= goal));
}

// --- time ---

function tickPlayer(stamp) {
  if (!playing) return;
  if (!element.isConnected) { playing = null; return; }
  playing.clock += Math.max(0, stamp - playing.seen) * Number(speed.value);
  playing.seen = stamp;
  let next = frameAt;
  while (next < frames.length - 1 && frames[next].end <= playing.clock) next++;
  if (next !== frameAt) seek(next);
  if (frameAt === frames.length - 1) pausePlayer(); else requestAnimationFrame(tickPlayer);
}

function playPlayer() {
  const over = frameAt === frames.length - 1;
  if (speed.value === "step") { seek(over ? 0 : frameAt + 1); return; }
  if (over) seek(0);
  playing = { clock: frames[frameAt].start, seen: performance.now() };
  requestAnimationFrame(tickPlayer);
  drawPlayer();
}

function pausePlayer() {
  playing = null;
  drawPlayer();
}

// --- what it says ---

function milliseconds(ms) { return fixed(ms, ms < 10 ? 1 : 0); }

function saidOfFrame({ row, phase, ms, shown }) {
  const proposed = proposedCells(row), last = row.cells[row.cells.length - 1];
  const lost = proposed.filter((cell) => ["rejected", "unjudged"].includes(cell.fate)).length;
  const facts = {
    round: row.i + 1, rounds: order.filter((each) => each.i >= 0).length,
    method: now.method, drafted: proposed.length, read: row.read, dropped: row.dropped, lost, shown,
    accepted: proposed.filter((cell) => (cell.was ?? cell.fate) === "accepted").length,
    ms: ms === null ? "—" : milliseconds(ms),
  };
  const own = !proposed.length ? "own" : lost ? "lost" : "swept";
  const key = phase === "draft" ? (ms === null ? "draft.unknown" : facts.drafted === 1 ? "draft.one" : "draft")
    : phase === "verify" ? (!row.read ? "verify.unknown" : row.read === 1 ? "verify.one" : "verify")
    : phase === "rollback" ? (last.fate === "cut" ? "end" : own) : phase;
  const dropped = phase === "verify" && row.dropped ? " " + fill(word("player.dropped"), facts) : "";
  const start = row.i < 0 ? "" : fill(word("player.round"), facts) + " ";
  return start + fill(word("player." + key), facts) + dropped;
}

function namePart(node, key) {
  node.title = word(key);
  node.setAttribute("aria-label", word(key));
}

function drawPlayer() {
  player.hidden = !frames.length;
  const frame = frames[frameAt];
  if (!frame) return;
  const text = saidOfFrame(frame), total = duration(frame.sum / 1000);
  const steps = speed.value === "step", button = $("player-play");
  button.textContent = playing ? "❚❚" : steps ? "▸❙" : "▶\uFE0E";
  namePart(button, playing ? "player.pause" : steps ? "player.next" : "player.play");
  scrub.max = String(frames.length - 1);
  scrub.value = String(frameAt);
  scrub.setAttribute("aria-valuetext", text);
  player.dataset.phase = frame.phase;
  $("player-phase").textContent = word("player.phase." + frame.phase);
  const said = $("player-said");
  said.setAttribute("aria-live", playing ? "off" : "polite");
  said.textContent = said.title = text;
  $("player-sum").textContent = fill(word("player.sum"), { time: total.value + " " + total.unit });
}

function wordPlayer() {
  const chosen = speed.value || (CALM.matches ? "step" : "0.1");
  speed.replaceChildren(...SPEEDS.map((value) => {
    const option = make("option", "", word("player.speed." + value.replace(".", "_")));
    option.value = value;
    option.disabled = CALM.matches && value !== "step";
    return option;
  }));
  speed.value = CALM.matches ? "step" : chosen;
  player.setAttribute("aria-label", word("player.label"));
  namePart($("player-back"), "player.back");
  namePart($("player-on"), "player.on");
  namePart(scrub, "player.scrub");
  namePart(speed, "player.speed");
  $("player-sum").title = word("player.whole");
  drawPlayer();
}

// --- runs come and go ---

function leavePlayer(message) {
  playing = null;
  const stays = message.run === null && !AGAIN.includes(message.status.code);
  if (stays) return;
  seek(frames.length - 1);
  if (message.run !== null) frames = [];
}

function takePlayer(message) {
  const over = message.final || (message.full && message.stage !== "baseline");
  if (over && rows.size) {
    buildFrames();
    frameAt = frames.length - 1;
  }
  drawPlayer();
}

$("player-play").onclick = () => (playing ? pausePlayer() : playPlayer());
$("player-back").onclick = () => seekRound(-1);
$("player-on").onclick = () => seekRound(1);
scrub.oninput = () => { const to = Number(scrub.value); pausePlayer(); seek(to); };
speed.onchange = () => {
  if (speed.value === "step") pausePlayer();
  else if (playing) playing.clock = frames[frameAt].start;
  drawPlayer();
};
CALM.addEventListener("change", () => { pausePlayer(); wordPlayer(); });
player.addEventListener("keydown", (e) => {
  if (e.target === speed) return;
  const steps = { ArrowLeft: -1, ArrowRight: 1 };
  if (e.key === " " && e.target === scrub) $("player-play").click();
  else if (e.key in steps && e.target !== scrub) { pausePlayer(); seek(frameAt + steps[e.key]); }
  else return;
  e.preventDefault();
});
