// What the answers of all views have: they are waited for, copied, compared with a pinned one, and taken back.
import { TAB, ask, copy, h, post, say } from "/files/page.js";

export const REST_MS = 350; // After a knob rests this long, the whole answer is asked for.
export const clone = (state) => JSON.parse(JSON.stringify(state));
export const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

// A line that says what is waited for and for how long, with a button that cancels the question.
export const cancel = (question) => post("/api/cancel", { tab: `${TAB}-${question}` });
export function waiting(text, question) {
  const began = Date.now(), clock = h("span", { "aria-hidden": "true" });
  const line = h("span.row.waiting", {}, h("progress", { "aria-label": text }), text, clock, h("button.small", { type: "button", onclick: () => cancel(question) }, "Cancel"));
  const tick = setInterval(() => { clock.textContent = `${Math.round((Date.now() - began) / 1000)} s`; }, 500);
  return { line, end: () => { clearInterval(tick); line.remove(); } };
}

// Ask for the whole answer after the first one. `then` gets it, or its error, unless a knob moved meanwhile.
// What is modelled may be compiled: that has a process of its own.
export async function complete(place, about, { isCompiled, isCurrent, then }) {
  const began = Date.now(), wait = waiting(isCompiled ? "compiling" : "adding what takes the time", "whole");
  wait.line.classList.toggle("compiling", isCompiled);
  place.append(wait.line);
  const answer = await ask("whole", about, { is_slow: isCompiled });
  wait.end();
  if (!isCurrent()) return;
  if (answer.error) {
    const text = answer.error !== "cancelled" ? `the rest is missing: ${answer.error}` : isCompiled ? "cancelled: the modelled answer stands" : "cancelled";
    const line = h("span.row", {}, h("span.note", {}, text), h("button.small", { type: "button", onclick: () => { line.remove(); complete(place, about, { isCompiled, isCurrent, then }); } }, isCompiled ? "Compile it" : "Ask again"));
    place.append(line);
  }
  then(answer, (Date.now() - began) / 1000);
}
// Nobody waits for a compilation any more that a place shows.
export function leave(place) {
  if (place.querySelector(".compiling")) cancel("whole");
  place.replaceChildren();
}

// The states that a view had: its button, or Ctrl-Z, shows the last one again. A slider that is dragged is one step.
export function past(home, show) {
  const states = [];
  let isHeld = false, isAdded = false;
  home.addEventListener("pointerdown", () => { isHeld = true; isAdded = false; });
  for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => { isHeld = false; });
  const undo = () => { if (states.length) show(states.pop()); };
  addEventListener("keydown", (event) => {
    if (home.hidden || !(event.ctrlKey || event.metaKey) || event.key !== "z" || event.target.matches?.("input:not([type=range])")) return;
    event.preventDefault(); undo();
  });
  function add(state) {
    if (isHeld && isAdded) return;
    isAdded = true; states.push(clone(state));
  }
  return { add, button: () => h("button", { type: "button", id: `${home.id}-undo`, disabled: !states.length, onclick: undo }, "Undo") };
}

// An answer that later ones are compared with, and the way back to its state.
export function pin(home, { state, show, redraw }) {
  let pinned = null;
  function turn(cards) {
    pinned = pinned ? null : { cards, state: clone(state()) };
    say(pinned ? "pinned: differences are to this answer" : "no longer pinned");
    redraw();
    document.getElementById(`${home.id}-pin`)?.focus();
  }
  function difference(card) {
    const old = pinned?.cards.find((each) => each.name === card.name);
    if (!old?.value || card.value === null) return null;
    const gain = card.value / old.value - 1;
    if (Math.abs(gain) < 5e-5) return h("span.note", {}, "as pinned");
    return h((gain < 0) === card.is_less_better ? "span.better" : "span.worse", {}, `${gain > 0 ? "+" : "−"}${Math.abs(100 * gain).toFixed(1)}\u00a0% to the pinned ${old.text}`);
  }
  return {
    buttons: (cards) => [h("button.small", { type: "button", id: `${home.id}-pin`, "aria-pressed": String(Boolean(pinned)), onclick: () => turn(cards) }, pinned ? "Unpin" : "Pin this answer"),
      pinned ? h("button.small", { type: "button", onclick: () => show(clone(pinned.state)) }, "Back to the pinned") : null],
    figures: (cards) => cards.map((card) => h("div", {}, h("dt", {}, card.name), h("dd", {}, h("strong", {}, card.text), h("span.note", {}, card.note.replaceAll(" %", "\u00a0%")), " ", difference(card)))),
  };
}

// The texts of a state to copy: what its command prints as JSON is what the page shows.
export function copies(home, { question = "copies", json = null, more = () => [] }) {
  const place = h("div.box", { hidden: true });
  let turn = 0, shown = null;
  const button = (name, text) => h("button", { type: "button", onclick: () => copy(text, name) }, `Copy as ${name}`);
  function ready() { if (!json) return; const element = document.getElementById(`${home.id}-json`); if (element) element.disabled = !json(); }
  async function draw(about) {
    const mine = ++turn, texts = await ask(question, about);
    if (mine === turn) put(texts);
  }
  function put(texts) {
    place.hidden = Boolean(texts.error || texts.code);
    if (place.hidden) return;
    place.replaceChildren(h("h2", {}, "The same from the command line"), h("pre", { id: `${home.id}-command`, tabindex: "0" }, texts.command), h("p", {}),
      h("div.row", {}, button("command line", texts.command), button("Python", texts.python), texts.study ? button("study file", texts.study) : null,
        json ? h("button", { type: "button", id: `${home.id}-json`, onclick: () => copy(json(), "JSON") }, "Copy JSON") : null, h("button", { type: "button", onclick: () => copy(location.href, "link") }, "Copy link"), more()));
    ready();
  }
  // Texts that come again, as those of a search that runs, leave the buttons as they are.
  function keep(texts) { if (!place.hidden && same(texts, shown)) return; shown = texts; put(texts); }
  return { place, draw, keep, ready, hide: () => { turn++; place.hidden = true; } };
}
