// Plotly, loaded once per page and only from this server, and texts inside what it draws. Without it
// the rest of the page works: `loadPlotly` always resolves, and `plotlyFailed` says how.

let Plotly = null, plotlyFailed = false;

function loadPlotly() {
  window.dlPlotly ??= window.Plotly ? Promise.resolve(window.Plotly) : new Promise((done, failed) => {
    const script = document.createElement("script");
    const base = (window.gradio_config && window.gradio_config.root) || "";
    const path = props.charts.script.split("/").map(encodeURIComponent).join("/");
    script.src = base + "/gradio_api/file=" + path;
    script.onload = () => (window.Plotly ? done(window.Plotly) : failed(new Error("no Plotly")));
    script.onerror = failed;
    document.head.append(script);
  });
  return window.dlPlotly.then((it) => { Plotly = it; }, () => { plotlyFailed = true; });
}

function isDark() { return document.body.classList.contains("dark"); }

// Replaces every "@key" of a template by its text.
function worded(value) {
  if (Array.isArray(value)) return value.map(worded);
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, worded(item)]));
  }
  const isKey = typeof value === "string" && value.startsWith("@");
  return isKey ? fill(word(value.slice(1)), props.charts.facts) : value;
}

// What a decimal point looks like to plotly in this language.
function separators() { return fixed(0.5, 1)[1] === "," ? ",." : ".,"; }

// A finger that wants to scroll the page must not zoom a chart instead.
function dragMode() { return window.matchMedia("(pointer: coarse)").matches ? false : "zoom"; }
