// The three live charts. Layouts and traces come from app/charts.py without data; a message brings
// the rows of new rounds, which fill them here. Contract: at most four redraws a second, one chart
// each, in turn; a run's last message draws all, each in a frame of its own, so that no frame is
// long. Without plotly.js the rest of the page works.

const CHARTS = ["speed_up", "acceptance", "latency"];
const REDRAW_MS = 250;
let points = [], totals = null;
let redraw = null, drawnDark = null;
const stale = new Set();

// --- data ---

function takePoints(message, other) {
  if (message.full || other) points = [];
  points.push(...message.points);
  totals = message.totals;
  if (other || message.full || message.points.length) CHARTS.forEach((name) => stale.add(name));
  if (message.full) drawInTurn(); else drawSoon();
}

function chartData() {
  const data = { ...totals };
  props.charts.columns.forEach((name, i) => { data[name] = points.map((row) => row[i]); });
  return data;
}

function filled(trace, data) {
  const x = data[trace.meta.x];
  let y = data[trace.meta.y];
  if (y === null || y === undefined) return null;
  if (!Array.isArray(y)) y = x.map(() => data[trace.meta.y]);
  return y.some((value) => value !== null) ? { ...trace, x, y } : null;
}

// --- drawing ---

function chartNode(name) { return root.querySelector(`[data-chart=${name}]`); }

// What stands in a chart's place while it has nothing to show; null when it has.
function chartNote(name) {
  if (plotlyFailed) return word("chart.failed");
  const n = now && now.numbers;
  if (!points.length) return word(`chart.${name}.empty`);
  if (name === "speed_up" && n && n.is_baseline) return word("chart.speed_up.baseline");
  if (name === "speed_up" && n && n.plain_per_second === null) return word("chart.speed_up.none");
  if (name === "acceptance" && n && !n.drafted) return word("chart.acceptance.none");
  return null;
}

// Returns whether plotly had to draw: a note costs nothing and need not wait for its turn.
function drawChart(name) {
  stale.delete(name);
  const node = chartNode(name), plot = node.querySelector(".dl-plot"), text = chartNote(name);
  const note = node.querySelector(".dl-chart-note");
  note.hidden = text === null;
  note.textContent = text ?? "";
  plot.style.visibility = text === null ? "visible" : "hidden";
  if (text !== null || !Plotly) return false;
  drawnDark = isDark();
  const { traces, layout } = props.charts[drawnDark ? "dark" : "light"][name];
  const data = chartData();
  const shown = traces.map((trace) => filled(trace, data)).filter(Boolean);
  const look = {
    ...worded(layout), height: plot.clientHeight, uirevision: String(now.run),
    separators: separators(),
    dragmode: dragMode(),
  };
  // On a small projector two axis titles share the width of a hand.
  if (plot.clientWidth < 230) {
    for (const axis of [look.xaxis, look.xaxis2]) if (axis) axis.title.font.size = 11;
  }
  Plotly.react(plot, worded(shown), look, { displayModeBar: false, responsive: true });
  node.dataset.points = String(points.length);
  return true;
}

function drawAllCharts() {
  clearTimeout(redraw);
  redraw = null;
  CHARTS.forEach(drawChart);
}

function drawInTurn() {
  clearTimeout(redraw);
  redraw = null;
  requestAnimationFrame(() => {
    for (const name of [...stale]) if (drawChart(name)) break;
    if (stale.size && element.isConnected) drawInTurn();
  });
}

function drawSoon() {
  if (redraw !== null || !stale.size) return;
  redraw = setTimeout(() => {
    redraw = null;
    if (!element.isConnected || document.hidden) return;  // what comes back is drawn again
    for (const name of [...stale]) if (drawChart(name)) break;
    drawSoon();
  }, REDRAW_MS);
}

function redrawCharts() {
  CHARTS.forEach((name) => stale.add(name));
  drawAllCharts();
}

// --- frames around the plots ---

function buildCharts() {
  for (const name of CHARTS) {
    const node = chartNode(name), title = word("chart." + name);
    const caption = make("figcaption", "dl-label", title);
    const why = make("div", "dl-formula");
    why.append(make("p", "", fill(word(`chart.${name}.why`), props.charts.facts)));
    caption.append(infoButton("chart-" + name, title, why));
    if (name === "latency") caption.append(latencyKey());
    node.querySelector("figcaption").replaceWith(caption);
    node.querySelector(".dl-formula")?.remove();
    node.append(why);
    node.querySelector(".dl-plot").setAttribute("aria-label", title);
  }
  showFormula();
  redrawCharts();
}

function latencyKey() {
  const key = make("span", "dl-key");
  for (const name of ["draft", "verify", "overhead", "plain_token"]) {
    const item = make("span");
    item.append(make("i", "key-" + name), word("series." + name));
    key.append(item);
  }
  return key;
}

loadPlotly().then(redrawCharts);
document.addEventListener("visibilitychange", () => { if (!document.hidden) redrawCharts(); });
new MutationObserver(() => { if (isDark() !== drawnDark) redrawCharts(); })
  .observe(document.body, { attributeFilter: ["class"] });
window.addEventListener("resize", () => {
  CHARTS.forEach((name) => stale.add(name));
  drawSoon();
});
