// One view: title, explanation, and the blocks of app/views/blocks.py. Contract: draws when the
// value, the words or the theme change, and when it comes into sight; never while it is hidden.

const view = element.querySelector(".dl-view");
let drawnKey = null, open = false;
const viewName = element.closest("[id^=view-]").id.slice("view-".length);

// --- figures ---

// "$accepted/0.4" is a colour of the theme; other strings are left alone.
function colour(text) {
  const [name, alpha] = text.slice(1).split("/");
  const style = getComputedStyle(document.body.classList.contains("dark") ? document.body : view);
  const of = (variable) => style.getPropertyValue(variable).trim();
  let found = of("--dl-" + name) || of("--fate-" + name);
  if (found.startsWith("var(")) found = of(found.slice(4, -1));
  if (!found || alpha === undefined) return found || text;
  // Plotly reads only the old way to write this.
  return `rgba(${[1, 3, 5].map((i) => parseInt(found.slice(i, i + 2), 16)).join()},${alpha})`;
}

function dressed(value) {
  if (Array.isArray(value)) return value.map(dressed);
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, dressed(item)]));
  }
  if (typeof value !== "string") return value;
  if (value.startsWith("@") && value.slice(1) in words) return word(value.slice(1));
  return /^\$[a-z-]+(\/[\d.]+)?$/.test(value) ? colour(value) : value;
}

function axis(own) {
  const line = colour("$line"), muted = colour("$muted");
  const title = own.title && { ...own.title, font: { color: muted, size: 13 }, standoff: 4 };
  return {
    gridcolor: line, zerolinecolor: line, linecolor: line, tickfont: { color: muted },
    automargin: true, ...own, ...(title && { title }),
  };
}

function layoutOf(block) {
  const own = dressed(block.layout);
  const axes = Object.keys({ xaxis: 1, yaxis: 1, ...own }).filter((name) => /^[xy]axis/.test(name));
  return {
    font: { family: "system-ui, sans-serif", size: 13, color: colour("$text") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    hoverlabel: { bgcolor: colour("$panel"), bordercolor: colour("$line"),
      font: { color: colour("$text") } },
    margin: { l: 52, r: 12, t: 26, b: 40 }, showlegend: false, bargap: 0.2, hovermode: "closest",
    ...own,
    ...Object.fromEntries(axes.map((name) => [name, axis(own[name] ?? {})])),
    height: block.height, separators: separators(), dragmode: dragMode(), uirevision: block.name,
  };
}

// The plot's own buttons save it as a picture; SVG for print, PNG for slides.
function plotConfig(name) {
  const svg = {
    name: "svg", title: word("figure.svg"), icon: Plotly.Icons.disk,
    click: (plot) => Plotly.downloadImage(plot, { format: "svg", filename: name }),
  };
  return {
    responsive: true, displaylogo: false, locale: "en",
    modeBarButtons: [[{ ...svg }, "toImage", "resetScale2d"]],
    toImageButtonOptions: { format: "png", filename: name, scale: 2 },
  };
}

function figureNode(block) {
  const node = make("figure", "dl-figure"), plot = make("div", "dl-figure-plot");
  const title = word("figure." + block.name);
  node.dataset.figure = block.name;
  plot.style.height = block.height + "px";
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", title);
  node.append(make("figcaption", "dl-label", title), plot);
  if (Plotly) node.draw = () =>
    Plotly.react(plot, dressed(block.traces), layoutOf(block), plotConfig(block.name));
  else plot.textContent = word("chart.failed");
  return node;
}

// --- other blocks ---

function cellText(cell, column) {
  if (cell === null || cell === undefined) return "—";
  if (typeof cell === "object") return say(cell);
  if (typeof cell !== "number") return String(cell);
  return fixed(cell, column.digits ?? 0) + (column.unit ? " " + column.unit : "");
}

function tableNode(block) {
  const box = make("div", "dl-table"), node = make("table"), head = make("tr");
  const side = (column) => (column.digits === null ? "" : "num");
  head.append(...block.columns.map((c) => make("th", side(c), word(c.code))));
  const body = block.rows.map((row) => {
    const line = make("tr");
    line.append(...row.map((cell, i) =>
      make("td", side(block.columns[i]), cellText(cell, block.columns[i]))));
    return line;
  });
  const top = make("thead"), rest = make("tbody");
  top.append(head);
  rest.append(...body);
  node.append(top, rest);
  box.append(node);
  return box;
}

function blockNode(block) {
  switch (block.kind) {
    case "sentence": return make("p", "dl-sentence " + block.tone, say(block));
    case "figure": return figureNode(block);
    case "table": return tableNode(block);
    case "pieces": {
      const node = make("p", "dl-pieces");
      node.append(...block.parts.map(([text, look]) => make("span", look, text)));
      return node;
    }
    default: throw new Error("unknown block " + block.kind);
  }
}

// --- drawing ---

function heading() {
  const title = make("h3", "dl-view-title", word("view." + viewName));
  const why = make("p", "dl-view-why", word(`view.${viewName}.why`));
  const info = make("button", "dl-info", "i");
  info.type = "button";
  info.setAttribute("aria-label", fill(word("number.explain"), { name: title.textContent }));
  info.setAttribute("aria-expanded", String(open));
  why.hidden = !open;
  info.onclick = () => {
    open = !open;
    why.hidden = !open;
    info.setAttribute("aria-expanded", String(open));
  };
  title.append(info);
  return [title, why];
}

function drawView() {
  if (!view.isConnected || view.offsetParent === null || !("language.tag" in words)) return;
  const key = JSON.stringify([props.value, words["language.tag"], isDark(), Boolean(Plotly)]);
  if (key === drawnKey) return;
  drawnKey = key;
  const blocks = props.value ? JSON.parse(props.value).blocks : [];
  const nodes = blocks.map(blockNode);
  view.replaceChildren(...heading(), ...nodes);
  for (const node of nodes) if (node.draw) node.draw();
  view.dataset.drawn = String(blocks.length);
}

watch("value", drawView);
onWords(drawView);
new MutationObserver(drawView).observe(document.body, { attributeFilter: ["class"] });
new IntersectionObserver(drawView).observe(view);
loadPlotly().then(drawView);
