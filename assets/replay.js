// The player of a replay file. Contract: it hands the page's scripts the messages a visitor would have
// got, frame by frame, at the run's own pace times the chosen speed. It opens on the finished run.

const player = document.querySelector(".replay-player");
const part = (name) => document.querySelector(".replay-" + name);
const speed = player.querySelector("select");
const LAST = replay.frames.length - 1;
let at = -1, playing = null, sent = 0;

// --- frames ---

function numbersOf(frame) {
  return Object.fromEntries(replay.numbers.map((name, i) => [name, frame.numbers[i]]));
}

// The changes of frames from..to as one message; from the first one it is a full one.
function messageOf(from, to) {
  const changed = new Map(), rounds = [];
  for (let i = from; i <= to; i++) {
    for (const row of replay.frames[i].message.rows) changed.set(row.i, row);
    rounds.push(...replay.frames[i].message.points);
  }
  const full = from === 0;
  const status = { code: to === LAST ? "replay.done" : "replay.goes_on", facts: { method: replay.head.method } };
  return {
    ...replay.head, ...replay.frames[to].message, full, points: rounds, stage: "recording",
    rows: [...changed.values()].filter((row) => !full || row.cells.length), text: textUpTo(to),
    n: ++sent, run: 1, final: to === LAST, numbers: numbersOf(replay.frames[to]), status,
  };
}

function textUpTo(to) {
  if (to === LAST) return replay.text;
  const cells = new Map();
  for (let i = 0; i <= to; i++) for (const row of replay.frames[i].message.rows) cells.set(row.i, row.cells);
  return [...cells.keys()].sort((a, b) => a - b).flatMap((i) => cells.get(i))
    .filter((cell) => !cell.ghost).map((cell) => cell.text).join("");
}

function show(index) {
  const next = Math.max(0, Math.min(LAST, index));
  if (next !== at && LAST >= 0) {
    props.value = JSON.stringify(next > at && at >= 0 ? messageOf(at + 1, next) : messageOf(0, next));
    at = next;
    take();
  }
  drawPlayer();
}

// --- time ---

function tick(now) {
  if (!playing) return;
  playing.clock += (now - playing.seen) / 1000 * Number(speed.value);
  playing.seen = now;
  let next = at;
  while (next < LAST && replay.frames[next + 1].at <= playing.clock) next++;
  if (next !== at) show(next);
  if (at === LAST) pause(); else requestAnimationFrame(tick);
}

function play() {
  if (at === LAST) show(0);
  playing = { clock: replay.frames[at].at, seen: performance.now() };
  requestAnimationFrame(tick);
  drawPlayer();
}

function pause() {
  playing = null;
  drawPlayer();
}

function stepBy(by) {
  pause();
  show(at + by);
}

// --- controls ---

function named(node, key) {
  node.setAttribute("aria-label", word(key));
  node.title = word(key);
}

function drawPlayer() {
  const frame = replay.frames[at], over = replay.frames[LAST];
  part("play").textContent = word(playing ? "replay.pause" : "replay.play");
  part("clock").textContent = frame ? `${fixed(frame.at, 2)} / ${fixed(over.at, 2)} s` : "";
  part("scrub").value = String(at);
  part("scrub").setAttribute("aria-valuetext", part("clock").textContent);
}

function drawFrame() {
  const about = replay.about, facts = { ...about, method: replay.head.method };
  part("about").textContent = fill(word("replay.about"), { ...facts, temperature: number(about.temperature, 2) });
  document.title = "Draftlight: " + fill("{method}", facts);
  player.setAttribute("aria-label", word("replay.player"));
  part("languages").setAttribute("aria-label", word("language.label"));
  named(part("back"), "replay.back");
  named(part("on"), "replay.on");
  named(part("scrub"), "replay.scrub");
  part("speed").querySelector("span").textContent = word("replay.speed");
  for (const button of part("languages").children) {
    button.setAttribute("aria-pressed", String(replay.words[button.lang] === words));
  }
  drawPlayer();
}

for (const [code, name] of Object.entries(replay.languages)) {
  const button = make("button", "", name);
  button.type = "button";
  button.lang = code;
  button.onclick = () => {
    props.words = words = replay.words[code];
    drawWords();
    drawFrame();
  };
  part("languages").append(button);
}
part("scrub").max = String(Math.max(LAST, 0));
part("scrub").oninput = () => stepBy(Number(part("scrub").value) - at);
part("play").onclick = () => (playing ? pause() : play());
part("back").onclick = () => stepBy(-1);
part("on").onclick = () => stepBy(1);
for (const name of ["back", "play", "on", "scrub"]) part(name).disabled = LAST < 1;
window.addEventListener("beforeprint", () => { pause(); show(LAST); });
drawFrame();
show(LAST);
