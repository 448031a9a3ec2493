// What is said at the controls themselves: an error under the field it is about, and the place in
// the queue under the buttons. The sentences are those of the status line.

let badField = null;       // {node, input, key}

function field(name) { return name ? document.getElementById(name) : null; }

function clearField() {
  if (!badField) return;
  badField.node.classList.remove("dl-bad");
  badField.node.querySelector(".dl-bad-why")?.remove();
  badField.input?.removeAttribute("aria-invalid");
  badField.input?.removeAttribute("aria-describedby");
  badField = null;
}

function markField(node, text, key) {
  const isNew = !badField || badField.key !== key;
  clearField();
  const why = make("div", "dl-bad-why", text);
  why.id = "dl-bad-why";
  const input = node.querySelector("textarea, input");
  node.classList.add("dl-bad");
  node.append(why);
  input?.setAttribute("aria-invalid", "true");
  input?.setAttribute("aria-describedby", why.id);
  input?.addEventListener("input", clearField, { once: true });
  badField = { node, input, key };
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

function drawFields() {
  const node = status && status.error ? field(status.field) : null;
  if (!node) clearField();
  else markField(node, say(status), lastN);
  const queued = status && status.code.startsWith("queued");
  const queue = document.querySelector("#queue .dl-queue");
  if (queue) queue.textContent = queued ? say(status) : "";
}
