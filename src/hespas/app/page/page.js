// The page's frame: asking the server, the state in the address, views and the theme.
import { setUp as predict } from "/files/predict.js";
import { setUp as search } from "/files/search.js";
import { setUp as serve } from "/files/serve.js";
import { setUp as cluster } from "/files/cluster.js";

export const TAB = crypto.getRandomValues(new Uint32Array(2)).join("-");

export async function post(path, body, raw) {
  try {
    const answer = await fetch(path, { method: "POST", headers: { "x-hespas": "1", "content-type": raw ? "application/octet-stream" : "application/json" }, body: raw || JSON.stringify(body) });
    if (answer.headers.get("content-type")?.includes("json")) return await answer.json();
    return { error: (await answer.text()).trim() };
  } catch {
    return { error: "the server does not answer: is hespas app still running?", lost: true };
  }
}
export const ask = (kind, about, more = {}) => post("/api/ask", { ask: kind, about, tab: `${TAB}-${kind}`, ...more });

// Elements: h("p.note", {title: ".."}, "text", child)
export function h(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "width%") element.style.width = `${value}%`;
    else if (key === "left%") element.style.left = `${value}%`;
    else if (key in element && typeof value !== "string") element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
let told;
export function say(text) {
  const toast = document.getElementById("toast");
  toast.textContent = text; toast.classList.add("shown");
  clearTimeout(told); told = setTimeout(() => toast.classList.remove("shown"), 2500);
}
export async function copy(text, what) {
  try { await navigator.clipboard.writeText(text); say(`${what} copied`); } catch { say("the browser does not allow copying: mark the text and copy it"); }
}
// A field with its label: the label's text is what a screen reader says.
let fields = 0;
export function field(label, input) {
  input.id ||= `field-${++fields}`;
  return h("div", {}, h("label", { for: input.id }, label), input);
}
export function select(values, chosen, change) {
  const element = h("select", { onchange: () => change(element.value) });
  for (const value of values) {
    const [key, text] = Array.isArray(value) ? value : [value, value];
    element.append(h("option", { value: key, selected: key === String(chosen ?? "") }, text));
  }
  return element;
}
// A slider through values. Its own figure moves with it; the form is drawn when the mouse lets go.
export function slider(id, label, values, value, change, { text = String, title = "" } = {}) {
  const place = Math.max(0, Math.min(values.length - 1, values.filter((each) => each < value).length)), figure = h("output", {}, text(value));
  const input = h("input", { type: "range", id, min: 0, max: Math.max(0, values.length - 1), step: 1, value: String(place), disabled: values.length < 2, title, "aria-valuetext": text(value), oninput: () => {
    const chosen = values[Number(input.value)];
    figure.textContent = text(chosen); input.setAttribute("aria-valuetext", text(chosen)); change(chosen);
  } });
  return h("div.slider", {}, h("label", { for: id, title }, label), input, figure);
}
// A cluster's part and count, and with `own` a system of the user's; `move` gets the new cluster, and the part of an own one.
export function clusterFields(id, { cluster, node }, move, { own = false } = {}) {
  const sized = /^(\d+)x(.+)$/.exec(cluster || ""), [count, part] = sized?.slice(1) ?? ["", ""], names = SHARED.names.parts;
  const to = (number, name) => move(`${Math.max(1, Math.round(number) || 1)}x${name || names[0]}`, "");
  const parts = select([...new Set([...(sized ? [] : [["", "one of your own"]]), ...names, ...(part ? [part] : [])])], part, (value) => value && to(count || 8, value));
  const many = h("input", { type: "number", min: 1, step: 1, value: count, id: `${id}count`, disabled: !sized, onchange: () => to(many.value, part) });
  const times = (factor, text, label) => h("button.small", { type: "button", disabled: !sized, onclick: () => to(count * factor, part), "aria-label": label }, text);
  const fields = [h("div.row.where", {}, h("div.grow", {}, field("Part", parts)), h("div.count", {}, field("How many", many)), times(0.5, "÷2", "half as many devices"), times(2, "×2", "twice as many devices"))];
  if (!own) return fields;
  const file = h("input", { value: sized ? "" : cluster || "", spellcheck: "false", onchange: () => { if (file.value.trim()) move(file.value.trim(), node || names[0]); } });
  return [...fields, h("details", { open: !sized }, h("summary.note", {}, "Or a system of your own"), field("Its directory", file), sized ? null : field("Of which part", select(names, node, (value) => move(cluster, value))))];
}
// Draw a place again: what was unfolded stays so.
const titleOf = (details) => details.querySelector("summary").textContent.replaceAll(/\d/g, "");
export function replaced(place, content) {
  const open = new Set([...place.querySelectorAll("details[open]")].map(titleOf));
  place.replaceChildren(...content.filter(Boolean));
  for (const details of place.querySelectorAll("details")) if (open.has(titleOf(details))) details.open = true;
}
// Let answers draw a form again: the focus stays, what is selected, and what is typed and not entered yet.
// What the mouse holds stays too: a slider that is dragged, a button between press and click.
// Returns the function that draws its new content.
export function redrawn(form) {
  const isTyped = (element) => element?.dataset.typed === "yes";
  form.addEventListener("input", (event) => { if (event.target.matches("input:not([type=range])")) event.target.dataset.typed = "yes"; });
  form.addEventListener("change", (event) => { delete event.target.dataset.typed; }, true);
  // Browsers enter only what was typed into the element itself, not what was put back into a new one.
  const enter = (element) => { if (isTyped(element)) element.dispatchEvent(new Event("change", { bubbles: true })); };
  form.addEventListener("keydown", (event) => { if (event.key === "Enter") enter(event.target); });
  form.addEventListener("focusout", (event) => enter(event.target));
  const nameOf = (element) => element.labels?.[0]?.textContent || element.ariaLabel || element.id || element.textContent;
  let isHeld = false, later = null;
  const release = () => setTimeout(() => { const content = later; isHeld = false; later = null; if (content) draw(...content); });
  form.addEventListener("pointerdown", () => { isHeld = true; });
  for (const name of ["pointerup", "pointercancel", "keydown"]) addEventListener(name, () => { if (isHeld) release(); });
  addEventListener("pointermove", (event) => { if (isHeld && !event.buttons) release(); }); // The list of a select takes what ends its press.
  function draw(...content) {
    if (isHeld) { later = content; return; }
    const before = form.contains(document.activeElement) ? document.activeElement : null;
    const typed = isTyped(before) ? before.value : null, name = before && nameOf(before);
    const selected = [before?.selectionStart, before?.selectionEnd]; // Of buttons and numbers there is none.
    if (typed !== null) { before.value = before.defaultValue; delete before.dataset.typed; } // Else the browser enters it as the element goes.
    replaced(form, content);
    const now = before && [...form.elements].find((element) => nameOf(element) === name);
    now?.focus({ preventScroll: true });
    if (now && typed !== null) { now.value = typed; now.dataset.typed = "yes"; }
    if (Number.isInteger(now?.selectionStart)) now.setSelectionRange(...selected);
  }
  return draw;
}
export const SHARED = { names: { models: [], parts: [] } };

// The address holds the view and the state of it.
export function readAddress() {
  const [view, text] = location.hash.slice(1).split("?");
  const state = {};
  for (const [key, value] of new URLSearchParams(text || "")) {
    const [, outer, inner] = /^([^.]*)\.?(.*)$/.exec(key);
    if (inner) (state[outer] ||= {})[inner] = typed(value); else state[outer] = typed(value);
  }
  return { view: view || "predict", state };
}
const typed = (text) => (/^\d+$/.test(text) ? Number(text) : text === "true" ? true : text === "false" ? false : text);
export function addressOf(view, state) {
  const texts = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (value && typeof value === "object") for (const [inner, each] of Object.entries(value)) texts.set(`${key}.${inner}`, each);
    else if (value !== "" && value !== null && value !== undefined) texts.set(key, value);
  }
  return `#${view}?${texts}`;
}
export const go = (view, state) => { location.hash = addressOf(view, state); };
const VIEWS = { predict, search, serve, cluster };
const ready = {};
function route() {
  const { view, state } = readAddress();
  if (!VIEWS[view]) { if (location.hash !== "#main") location.hash = "#predict"; return; }
  for (const name of Object.keys(VIEWS)) {
    document.getElementById(name).hidden = name !== view;
    const link = document.querySelector(`nav a[data-view=${name}]`);
    if (name === view) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  document.title = `hespas: ${view}`;
  ready[view] ||= VIEWS[view](document.getElementById(view));
  for (const [name, one] of Object.entries(ready)) if (name !== view) one.leave?.();
  ready[view].show(state);
}
function theme(name) {
  document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = name === "dark" ? "Light" : "Dark";
  localStorage.setItem("hespas-theme", name);
}
async function start() {
  theme(localStorage.getItem("hespas-theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  addEventListener("hashchange", route);
  route();
  document.documentElement.dataset.ready = "yes";
  // The first process takes seconds to start: knobs are there before it knows all names.
  const names = await ask("names", {});
  if (names.error) return say(names.error);
  SHARED.names = names;
  document.body.append(h("datalist", { id: "models" }, names.models.map((name) => h("option", { value: name }))));
  for (const view of Object.values(ready)) view.redraw();
}
start();
