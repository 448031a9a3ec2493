// What is said at the controls themselves: an error under the field it is about, and the place in
// the queue under the buttons. The sentences are those of the status line.

let badField = null;       // {node, input, said}
let answered = null;       // the error that the visitor has begun to mend

function clearField() {
  if (!badField) return;
  const { node, input, mend } = badField;
  node.classList.remove("dl-bad");
  node.querySelector(".dl-bad-why")?.remove();
  input?.removeAttribute("aria-invalid");
  input?.removeAttribute("aria-describedby");
  input?.removeEventListener("input", mend);
  badField = null;
}

function markField(node, said) {
  const isNew = badField?.said !== said;
  clearField();
  const why = make("div", "dl-bad-why", say(said));
  const input = node.querySelector("textarea, input");
  const mend = () => { answered = said; clearField(); };
  why.id = "dl-bad-why";
  node.classList.add("dl-bad");
  node.append(why);
  input?.setAttribute("aria-invalid", "true");
  input?.setAttribute("aria-describedby", why.id);
  input?.addEventListener("input", mend);
  badField = { node, input, said, mend };
  if (!isNew) return;
  reveal(node);
  setTimeout(() => {  // an accordion needs a moment to open
    input?.focus({ preventScroll: true });
    node.scrollIntoView({ block: "nearest" });
  }, 60);
}

// A field in a closed accordion is shown by opening it, as a visitor would.
function reveal(node) {
  if (node.offsetParent === null) document.querySelector("#more > button")?.click();
}

// The column of fields scrolls inside itself: what the accordion opens must come into view.
document.addEventListener("click", (e) => {
  if (!e.target.closest?.("#more > button")) return;
  setTimeout(() => document.getElementById("more").scrollIntoView({ block: "nearest" }), 150);
});

// The box has room for one word; what it does shows on hover and is read out on focus.
function explainAuto() {
  const box = document.getElementById("adaptive");
  if (!box) return;
  box.title = word("help.adaptive");
  box.querySelector("input")?.setAttribute("aria-description", box.title);
}

function drawFields() {
  explainAuto();
  const bad = status && status.error && status.field && status !== answered;
  const node = bad ? document.getElementById(status.field) : null;
  if (node) markField(node, status); else clearField();
  const queue = document.querySelector("#queue .dl-queue");
  const queued = status && status.code.startsWith("queued");
  if (queue) queue.textContent = queued ? say(status) : "";
}
