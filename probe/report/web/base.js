// What every part shares: data, small helpers, the chosen models, the theme.
"use strict";
const byId = (id) => document.getElementById(id);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const DATA = JSON.parse(byId("report-data").textContent);

// Text is only ever set as text: names and reasons are never parsed as HTML.
function make(tag, text = "", className = "") {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  if (className) element.className = className;
  return element;
}

// Three decimals without the zero before the point, as in every other output.
function number(value) {
  const text = value.toFixed(3);
  return Number(text) === 0 ? ".000" : text.replace(/^(-?)0\./, "$1.");
}
const interval = (point) =>
  point.low === null || point.high === null ? "no interval"
    : `[${number(point.low)}, ${number(point.high)}]`;

// Chosen models keep their colour and marker while others come and go.
const COLOURS = 8;
const MARKERS = ["circle", "rect", "triangle", "rectRot", "crossRot", "star", "cross", "dash"];
const slots = new Map();
const onChoice = [];

function choose(indices, on) {
  for (const index of indices) {
    if (!on) slots.delete(index);
    else if (!slots.has(index)) {
      const taken = new Set(slots.values());
      let slot = 0;
      while (taken.has(slot)) slot += 1;
      slots.set(index, slot);
    }
  }
  for (const listener of onChoice) listener();
}
const chosen = () => [...slots.keys()].sort((a, b) => a - b);
const colourName = (index) => `--c${slots.get(index) % COLOURS}`;
const marker = (index) => MARKERS[Math.floor(slots.get(index) / COLOURS) % MARKERS.length];

// Colours of the style sheet as a canvas understands them, in the theme of the moment.
const colours = new Map();
function colour(name) {
  if (!colours.has(name)) {
    const sample = byId("tip");
    sample.style.color = `var(${name})`;
    colours.set(name, getComputedStyle(sample).color);
    sample.style.color = "";
  }
  return colours.get(name);
}

const onTheme = [];
const system = matchMedia("(prefers-color-scheme: dark)");
let theme = null; // what the reader asked for, else the system's

function setTheme(wanted) {
  theme = wanted;
  const dark = (theme ?? (system.matches ? "dark" : "light")) === "dark";
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  colours.clear();
  const button = byId("theme");
  button.hidden = false;
  button.textContent = dark ? "Light theme" : "Dark theme";
  for (const listener of onTheme) listener();
}
byId("theme").addEventListener("click", () => {
  const wanted = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  setTheme(wanted);
  try {
    localStorage.setItem("probe-theme", wanted);
  } catch {
    // Storage may be closed to local files; the theme then lasts as long as the page.
  }
});
system.addEventListener("change", () => setTheme(theme));
try {
  theme = localStorage.getItem("probe-theme");
} catch {
  theme = null;
}
setTheme(theme === "dark" || theme === "light" ? theme : null);

// One tooltip for charts and maps: a bold first line, then the rest.
function showTip(x, y, entries) {
  const tip = byId("tip");
  tip.replaceChildren();
  for (const [title, ...lines] of entries) {
    tip.append(make("strong", title));
    for (const line of lines) tip.append(make("span", line));
  }
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 14 + width > innerWidth ? x - 14 - width : x + 14;
  tip.style.left = `${Math.max(4, Math.min(left, innerWidth - width - 4))}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - height - 4))}px`;
}
const hideTip = () => { byId("tip").hidden = true; };
addEventListener("scroll", hideTip, { passive: true, capture: true });
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

// A link to a model's section opens it.
function openTarget() {
  const target = location.hash ? byId(location.hash.slice(1)) : null;
  if (target?.tagName === "DETAILS") {
    target.open = true;
    target.scrollIntoView();
  }
}
addEventListener("hashchange", openTarget);
openTarget();
