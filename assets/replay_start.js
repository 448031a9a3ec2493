// What Gradio gives a component, for a file without Gradio: the scripts of the page run as they are.

const replay = JSON.parse(document.getElementById("replay-data").textContent);
const element = document.querySelector(".replay-strip");
const spoken = (navigator.languages ?? [navigator.language]).map((tag) => tag.split("-")[0]);
const firstLanguage = spoken.find((tag) => tag in replay.words) ?? "en";
const props = {
  words: replay.words[firstLanguage], fates: replay.fates, names: replay.names,
  charts: replay.charts, value: "",
};
const watch = () => {}, trigger = () => {}, server = {};

// There is no form here that a message could be about.
function drawFields() {}

// The file has a player of its own.
function leavePlayer() {}
function takePlayer() {}
function wordPlayer() {}
