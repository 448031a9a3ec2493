// State and the numbers row. Contract: messages are those of app/visit.py.

const $ = (name) => element.querySelector(".dl-" + name);
const root = element.querySelector(".dl");
const strip = $("text"), card = $("card");
const NUMBERS = ["speed_up", "per_second", "rate", "length", "ttft", "saved"];
card.id = "dl-card-" + Math.random().toString(36).slice(2);
let now = null;            // the last message with a run in it
let status = null;         // what the page says: {code, facts, plain, error}
let rows = new Map();      // row index -> {node, key, row}
let pinned = null, shown = null, openFormula = null, lastN = -1;

// --- the numbers row ---

function bigNumber(name, n) {
  const none = { value: "—", unit: "", below: "" };
  if (!n) return { ...none, below: name === "speed_up" ? word("number.not_measured") : "" };
  const plain = n.plain_per_second;
  switch (name) {
    case "speed_up": {
      if (n.is_baseline) return { ...none, below: word("number.is_baseline") };
      const below = plain === null ? word("number.not_measured")
        : fill(word("number.plain"), { rate: rate(plain) });
      return n.speed_up === null ? { ...none, below }
        : { value: fixed(n.speed_up, 2), unit: "×", below };
    }
    case "per_second":
      return n.per_second === null ? none
        : { value: rate(n.per_second), unit: word("unit.per_second"),
            below: fill(word("number.decoded"), { tokens: n.decoded }) };
    case "rate":
      return n.rate === null ? { ...none, below: n.rounds ? word("number.no_draft") : "" }
        : { value: fixed(100 * n.rate, 0), unit: "%",
            below: fill(word("number.accepted"), { accepted: n.accepted, drafted: n.drafted }) };
    case "ttft":
      return n.ttft === null ? none : { ...duration(n.ttft), below: "" };
    case "saved":
      return !n.rounds ? none : { value: number(n.saved, 0),
        unit: "/" + number(n.emitted, 0), below: "" };
    default:
      return n.length === null ? none
        : { value: fixed(n.length, 2), unit: word("unit.tokens"),
            below: word("number.mean_length") };
  }
}

function counters(name, n) {
  if (!n) return word("counters.none");
  const own = n.per_second === null ? "—" : fixed(n.per_second, 2);
  const facts = {
    own, plain: n.plain_per_second === null ? "—" : fixed(n.plain_per_second, 2),
    decoded: n.decoded, seconds: fixed(n.decode_seconds, 3),
    prefill: fixed(n.prefill_seconds, 3), proposer: fixed(n.proposer_seconds, 3),
    emitted: n.emitted, passes: n.passes, accepted: n.accepted, drafted: n.drafted,
    rounds: n.rounds,
  };
  return fill(word("counters." + name), facts);
}

function drawNumbers() {
  const n = now && now.numbers;
  for (const name of NUMBERS) {
    const tile = root.querySelector(`[data-number=${name}]`);
    const { value, unit, below } = bigNumber(name, n);
    tile.querySelector(".dl-value").textContent = value;
    tile.querySelector(".dl-unit").textContent = unit;
    tile.querySelector(".dl-below").textContent = below;
    tile.querySelector(".dl-counters").textContent = counters(name, n);
  }
}

// A button that opens one explanation at a time, of a number or of a chart.
function infoButton(key, name, panel) {
  const info = make("button", "dl-info", "i");
  info.type = "button";
  info.setAttribute("aria-label", fill(word("number.explain"), { name }));
  panel.dataset.explains = key;
  info.dataset.key = key;
  info.onclick = () => { openFormula = openFormula === key ? null : key; showFormula(); };
  return info;
}

function showFormula() {
  for (const panel of root.querySelectorAll(".dl-formula")) {
    panel.hidden = panel.dataset.explains !== openFormula;
  }
  for (const info of root.querySelectorAll(".dl-info")) {
    info.setAttribute("aria-expanded", String(info.dataset.key === openFormula));
  }
}

function buildNumbers() {
  $("numbers").replaceChildren(...NUMBERS.map((name) => {
    const tile = make("div", "dl-number");
    tile.dataset.number = name;
    const big = make("div", "dl-big");
    big.append(make("span", "dl-value"), make("span", "dl-unit"));
    const title = word("number." + name), label = make("div", "dl-label", title);
    const formula = make("div", "dl-formula");
    formula.append(make("p", "", word("formula." + name)), make("p", "dl-counters"));
    if (props.names[name]) {
      const also = fill(word("number.also"), { names: props.names[name] });
      formula.append(make("p", "dl-also", also));
    }
    label.append(infoButton(name, title, formula));
    tile.append(label, big, make("div", "dl-below"), formula);
    return tile;
  }));
  showFormula();
}

function closeFormula() {
  if (openFormula) { openFormula = null; showFormula(); }
}

root.addEventListener("keydown", (e) => { if (e.key === "Escape") closeFormula(); });
document.addEventListener("click", (e) => {
  if (!e.target.closest?.(".dl-info, .dl-formula")) closeFormula();
});
