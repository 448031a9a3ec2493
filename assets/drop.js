// A trace may be dropped anywhere on the Inspect tab: it goes the way of the button's own file field.

const tab = element.closest("[role=tabpanel]") ?? document.body;
const hasFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

tab.addEventListener("dragover", (event) => {
  if (!hasFile(event)) return;
  event.preventDefault();
  tab.classList.add("dl-drop");
});
tab.addEventListener("dragleave", (event) => {
  if (!tab.contains(event.relatedTarget)) tab.classList.remove("dl-drop");
});
tab.addEventListener("drop", (event) => {
  if (!hasFile(event)) return;
  event.preventDefault();
  tab.classList.remove("dl-drop");
  const input = document.querySelector("#dl-traces input[type=file]");
  if (!input || !event.dataTransfer.files.length) return;
  const files = new DataTransfer();
  files.items.add(event.dataTransfer.files[0]);
  input.files = files.files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
});
