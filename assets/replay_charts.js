// The three charts of a replay file as hand-made SVG: no library, no colours but the page's variables.
// Contract: `takePoints` keeps the rows of the rounds shown so far; scales are those of the whole
// run, so that nothing jumps while it plays.

const CHARTS = ["speed_up", "acceptance", "latency"];
const PARTS = ["draft", "verify", "overhead"];
let points = [], totals = null;
const whole = replay.frames.flatMap((frame) => frame.message.points);
const column = (rows, name) => rows.map((row) => row[replay.charts.columns.indexOf(name)]);

function takePoints(message, other) {
  if (message.full || other) points = [];
  points.push(...message.points);
  totals = message.totals;
  drawCharts();
}

function drawing(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// About `count` round numbers from 0 to `most`.
function ticks(most, count) {
  const rough = most / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((by) => by * power >= rough);
  const list = [];
  for (let at = 0; at <= most * 1.0001; at += step) list.push(at);
  return list;
}

function digitsOf(list) {
  const step = list[1] ?? 1;
  return Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
}

// Axes are drawn, and places of data returned. x and y: {most, title, unit, marks}.
function axes(svg, box, x, y) {
  const px = (value) => box.left + (value - (x.from ?? 0)) / ((x.most - (x.from ?? 0)) || 1) * box.width;
  const py = (value) => box.top + (1 - value / (y.most || 1)) * box.height;
  for (const at of y.marks) {
    svg.append(drawing("line", { class: "grid", x1: box.left, x2: box.left + box.width, y1: py(at), y2: py(at) }));
    if (y.unit !== undefined) {
      svg.append(drawing("text", { class: "tick", x: box.left - 6, y: py(at) + 4, "text-anchor": "end" },
        fixed(at, digitsOf(y.marks)) + y.unit));
    }
  }
  for (const at of x.marks) {
    svg.append(drawing("text", { class: "tick", x: px(at), y: box.top + box.height + 16, "text-anchor": "middle" },
      number(at, 0)));
  }
  svg.append(drawing("text", { class: "title", x: box.left + box.width / 2, y: box.top + box.height + 33,
    "text-anchor": "middle" }, fill(word(x.title), replay.charts.facts)));
  return { px, py };
}

function curve(svg, className, pairs) {
  const known = pairs.filter(([, y]) => y !== null);
  if (!known.length) return;
  svg.append(drawing("polyline", { class: className, points: known.map((pair) => pair.join(",")).join(" ") }));
  if (known.length === 1) svg.append(drawing("circle", { class: className, cx: known[0][0], cy: known[0][1], r: 3 }));
}

function level(svg, box, y, text) {
  svg.append(drawing("line", { class: "plain", x1: box.left, x2: box.left + box.width, y1: y, y2: y }));
  svg.append(drawing("text", { class: "tick", x: box.left + box.width, y: y + 15, "text-anchor": "end" }, text));
}

const most = (list, least) => Math.max(least, ...list.filter((value) => value !== null));
const wholeMarks = (limit, count) => ticks(Math.max(limit, 1), count).filter((at) => Number.isInteger(at));

function drawSpeedUp(svg, box) {
  const last = most(column(whole, "tokens"), 1);
  const y = { most: 1.08 * most(column(whole, "speed_up"), 1.2), unit: "×" };
  y.marks = ticks(y.most, 4);
  const { px, py } = axes(svg, box, { most: last, title: "axis.tokens", marks: wholeMarks(last, 5) }, y);
  level(svg, box, py(1), word("chart.plain_level"));
  const values = column(points, "speed_up");
  const pairs = column(points, "tokens").map((at, i) => [px(at), values[i] === null ? null : py(values[i])]);
  curve(svg, "own", pairs);
}

function drawAcceptance(svg, box) {
  const left = { ...box, width: 0.56 * box.width };
  const right = { ...box, left: box.left + 0.66 * box.width, width: 0.34 * box.width };
  const y = { most: 104, unit: " %", marks: [0, 50, 100] }, rounds = Math.max(whole.length, 1);
  const one = axes(svg, left, { from: 1, most: Math.max(rounds, 2), title: "axis.rolling",
    marks: wholeMarks(rounds, 3).filter((at) => at >= 1) }, y);
  const rolling = column(points, "rolling");
  curve(svg, "accepted", column(points, "round").map((at, i) =>
    [one.px(at), rolling[i] === null ? null : one.py(rolling[i])]));
  const places = totals.position, shown = Math.max(places.length, 1);
  const two = axes(svg, right, { from: 0.5, most: shown + 0.5, title: "axis.position", marks: places },
    { ...y, unit: undefined });
  totals.by_position.forEach((rate, i) => {
    const bar = { class: "bar", x: two.px(places[i]) - 0.36 * right.width / shown,
      width: 0.72 * right.width / shown, y: two.py(rate), height: two.py(0) - two.py(rate) };
    const node = drawing("rect", bar);
    node.append(drawing("title", {}, `${places[i]}: ${fixed(rate, 0)} %`));
    svg.append(node);
  });
}

function drawLatency(svg, box) {
  const sums = whole.map((row) => PARTS.reduce((sum, name) => sum + (column([row], name)[0] ?? 0), 0));
  const y = { most: 1.06 * most([...sums, totals.plain_token], 0.001), unit: " ms" };
  y.marks = ticks(y.most, 4);
  const rounds = Math.max(whole.length, 1), wide = box.width / rounds;
  const { px, py } = axes(svg, box, { from: 0.5, most: rounds + 0.5, title: "axis.round",
    marks: wholeMarks(rounds, 5).filter((at) => at >= 1) }, y);
  const rows = PARTS.map((name) => column(points, name));
  column(points, "round").forEach((round, i) => {
    let below = 0;
    PARTS.forEach((name, k) => {
      const value = rows[k][i];
      if (!value || value < 0) return;
      const bar = { class: "part-" + name, x: px(round) - 0.42 * wide, width: 0.84 * wide,
        y: py(below + value), height: py(below) - py(below + value) };
      const node = drawing("rect", bar);
      node.append(drawing("title", {}, `${word("series." + name)} ${fixed(value, 1)} ms`));
      svg.append(node);
      below += value;
    });
  });
  if (totals.plain_token !== null) {
    level(svg, box, py(totals.plain_token), "");
  }
}

const DRAW = { speed_up: drawSpeedUp, acceptance: drawAcceptance, latency: drawLatency };

function noteOf(name) {
  const n = now && now.numbers;
  if (!points.length) return word(`chart.${name}.empty`);
  if (name === "speed_up" && n && n.is_baseline) return word("chart.speed_up.baseline");
  if (name === "speed_up" && n && n.plain_per_second === null) return word("replay.no_baseline");
  if (name === "acceptance" && n && !n.drafted) return word("chart.acceptance.none");
  return null;
}

function drawCharts() {
  for (const name of CHARTS) {
    const node = root.querySelector(`[data-chart=${name}]`), plot = node.querySelector(".dl-plot");
    const note = node.querySelector(".dl-chart-note"), text = noteOf(name);
    note.hidden = text === null;
    note.textContent = text ?? "";
    if (text !== null) { plot.replaceChildren(); continue; }
    const width = plot.clientWidth || 300, height = plot.clientHeight || 180;
    const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
    DRAW[name](svg, { left: 46, top: 8, width: width - 56, height: height - 48 });
    plot.replaceChildren(svg);
    node.dataset.points = String(points.length);
  }
}

function buildCharts() {
  for (const name of CHARTS) {
    const node = root.querySelector(`[data-chart=${name}]`), title = word("chart." + name);
    const caption = make("figcaption", "dl-label", title);
    const why = make("div", "dl-formula");
    why.append(make("p", "", fill(word(`chart.${name}.why`), replay.charts.facts)));
    caption.append(infoButton("chart-" + name, title, why));
    if (name === "latency") {
      const key = make("span", "dl-key");
      for (const part of [...PARTS, "plain_token"]) {
        const item = make("span");
        item.append(make("i", "key-" + part), word("series." + part));
        key.append(item);
      }
      caption.append(key);
    }
    node.querySelector("figcaption").replaceWith(caption);
    node.querySelector(".dl-formula")?.remove();
    node.append(why);
    node.querySelector(".dl-plot").setAttribute("aria-label", title);
  }
  showFormula();
  if (totals) drawCharts();
}

window.addEventListener("resize", () => { if (totals) drawCharts(); });
