// The lanes of a race on one clock. Contract: messages are those of app/racing.py; what is played
// are recorded times, all lanes from the same start. Reduced motion shows the end at once.

const $ = (name) => element.querySelector(".dl-race-" + name);
const SPEEDS = [1, 0.5, 0.25, 0.1];
let now = null, status = null, lastN = -1;
let began = null, speed = 1, frame = null, passed = 0;

const calm = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;
const lanes = () => (now ? now.lanes : []);
const last = (lane) => (lane.timeline.length ? lane.timeline[lane.timeline.length - 1][0] : 0);
const length = () => Math.max(0, ...lanes().map(last));

// --- words ---

function laneName(lane) {
  const name = word("method." + lane.method);
  if (lane.method === "plain") return name;
  return name + " " + (lane.adaptive ? word("race.auto") : "γ " + lane.gamma);
}

function times(value) {
  if (!value) return "—";
  const one = fixed(value.median, 2) + "×";
  return value.low === null ? one : `${one} (${fixed(value.low, 2)}–${fixed(value.high, 2)})`;
}

function verdictText(lane) {
  if (!lane.verdict) return lane.wall ? word("race.alone") : "";
  const said = say(lane.verdict);
  return lane.drafted === 0 && lane.method !== "plain" ? said + " " + word("race.idle") : said;
}

function figures(lane) {
  const list = make("dl");
  const line = (key, value) => list.append(make("dt", "", word("race." + key)), make("dd", "", value));
  if (!lane.wall) return list;
  if (lane.method !== "plain") {
    line("speed_up", times(lane.speed_up));
    line("decode_speed_up", times(lane.decode_speed_up));
    line("accepted", lane.drafted ? `${lane.accepted}/${lane.drafted}` : "—");
  }
  line("passes", `${number(lane.tokens, 0)} / ${number(lane.passes, 0)}`);
  return list;
}

// --- drawing ---

function memoryBar(lane, most) {
  const box = make("div", "dl-race-memory"), bar = make("i");
  bar.style.width = lane.memory === null ? "0" : (100 * lane.memory) / most + "%";
  const text = lane.memory === null ? "—" : number(lane.memory / 1e6, 0) + " MB";
  box.append(bar, make("span", "", fill(word("race.memory"), { size: text })));
  return box;
}

function buildLanes() {
  const most = Math.max(1, ...lanes().map((lane) => lane.memory ?? 0));
  $("lanes").replaceChildren(...lanes().map((lane) => {
    const node = make("section", "dl-lane"), left = make("div", "dl-lane-name");
    node.dataset.method = lane.method;
    left.append(make("h4", "", laneName(lane)), make("div", "dl-lane-clock"), memoryBar(lane, most));
    const middle = make("div", "dl-lane-run"), bar = make("div", "dl-lane-bar");
    bar.append(make("i"));
    middle.append(make("div", "dl-lane-text"), bar);
    const right = make("div", "dl-lane-told");
    const said = make("p", "dl-lane-verdict", "");
    right.append(said, figures(lane));
    node.append(left, middle, right);
    node.shown = 0;
    return node;
  }));
  draw();
}

function clockText(ms) { return fixed(ms / 1000, 2) + " s"; }

// Shows every lane as it stood `passed` recorded milliseconds after the start.
function draw() {
  [...$("lanes").children].forEach((node, i) => {
    const lane = lanes()[i], line = lane.timeline;
    const text = node.querySelector(".dl-lane-text");
    let count = node.shown;
    while (count < line.length && line[count][0] <= passed) {
      text.append(make("span", "tok f-" + line[count][2], line[count][1]));
      count += 1;
    }
    if (count !== node.shown) text.scrollTop = text.scrollHeight;
    node.shown = count;
    const over = line.length > 0 && count === line.length;
    const bar = node.querySelector(".dl-lane-bar i");
    bar.style.width = line.length ? (100 * count) / line.length + "%" : "0";
    const clock = node.querySelector(".dl-lane-clock");
    clock.textContent = !line.length ? "—" : clockText(over ? last(lane) : passed);
    node.classList.toggle("over", over);
    node.dataset.place = over && lane.place ? String(lane.place) : "";
    node.querySelector(".dl-lane-verdict").textContent = over ? verdictText(lane) : "";
    node.querySelector(".dl-lane-verdict").classList.toggle("warn",
      Boolean(lane.verdict && lane.verdict.code === "race.diverged"));
    node.querySelector("dl").style.visibility = over ? "visible" : "hidden";
    if (over && lane.inconclusive) {
      node.querySelector(".dl-lane-verdict").textContent += " " + word("race.inconclusive");
    }
  });
  $("clock").textContent = now ? clockText(Math.min(passed, length())) : "";
}

function tick(time) {
  frame = null;
  if (!element.isConnected) return;
  began ??= time - passed / speed;
  passed = (time - began) * speed;
  draw();
  if (passed < length()) frame = requestAnimationFrame(tick); else began = null;
}

function play() {
  passed = 0;
  began = null;
  for (const node of $("lanes").children) {
    node.shown = 0;
    node.querySelector(".dl-lane-text").replaceChildren();
  }
  if (calm()) toEnd();
  else frame ??= requestAnimationFrame(tick);
}

function toEnd() {
  if (frame !== null) cancelAnimationFrame(frame);
  frame = began = null;
  passed = length();
  draw();
}

// --- what is said ---

function drawStatus() {
  const text = status ? say(status) : "";
  if ($("status").textContent !== text) $("status").textContent = text;
  $("status").classList.toggle("error", Boolean(status && status.error));
  $("tools").hidden = !(now && now.play);
  element.querySelector(".dl-race").classList.toggle("empty", !lanes().length);
}

function drawWords() {
  $("lanes").dataset.empty = word("race.empty");
  $("again").textContent = word("race.again");
  $("end").textContent = word("race.end");
  $("speed").setAttribute("aria-label", word("race.speed"));
  $("speed").replaceChildren(...SPEEDS.map((value) => {
    const option = make("option", "", value === 1 ? word("race.real_time")
      : fill(word("race.slower"), { times: 1 / value }));
    option.value = String(value);
    option.selected = value === speed;
    return option;
  }));
  if (now) { const at = passed; buildLanes(); passed = at; draw(); }
  drawStatus();
}

$("again").onclick = play;
$("end").onclick = toEnd;
$("speed").onchange = () => { speed = Number($("speed").value); began = null; };

function take() {
  if (!props.value) return;
  const message = JSON.parse(props.value);
  if (message.n === lastN) return;
  lastN = message.n;
  status = message.status;
  if (message.lanes) {
    if (frame !== null) cancelAnimationFrame(frame);
    frame = null;
    now = message;
    passed = 0;
    buildLanes();
    if (message.play) play();
  }
  drawStatus();
}

watch("value", take);
onWords(drawWords);
take();
