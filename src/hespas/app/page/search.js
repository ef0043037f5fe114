// Searches: studies on disk, with their candidates as points while they run.
import { addressOf, clusterFields, field, go, h, post, redrawn, replaced, say, select } from "/files/page.js";
import { copies } from "/files/answers.js";
import { scatter } from "/files/draw.js";

const LOOK_MS = 1500, MOST_ROWS = 40;
const OWN = new Set(["model", "cluster", "node", "global_batch", "goal", "where", "mesh"]); // Keys that have a field of their own.
const KEYS = { tokens_per_s_per_device: "tokens/s/device", samples_per_s: "samples/s" };

export function setUp(home) {
  let name = "", keys = { model: "llama3-8b", cluster: "8xH100_80GB" }, timer = 0;
  const form = h("form.panel.knobs", { "aria-label": "A new search", onsubmit: (event) => { event.preventDefault(); start(); } });
  const drawn = redrawn(form), found = h("div.answer");
  const copied = copies(home, {});
  home.append(h("div.split", {}, form, h("div.answer", {}, found, copied.place)));
  const address = () => { if (!name && !home.hidden) history.replaceState(null, "", addressOf("search", keys)); };
  form.addEventListener("change", address);

  // The list is drawn by itself: what is typed beside it stays.
  const listed = h("fieldset", {}, h("legend", {}, "Searches on this disk"));
  let listing = 0;
  async function drawList() {
    const { searches = [] } = await post("/api/search", { do: "list" });
    const rows = searches.map((each) => h("div.row", {}, h("a.grow", { href: addressOf("search", { name: each.name }) }, each.name), h("span.note", {}, each.is_running ? "running" : "")));
    const held = listed.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    replaced(listed, [h("legend", {}, "Searches on this disk"), ...(rows.length ? rows : [h("p.note", {}, "none yet")])]);
    if (held) [...listed.querySelectorAll("a")].find((each) => each.getAttribute("href") === held)?.focus({ preventScroll: true });
    clearTimeout(listing);
    // One that another tab or a command started ends without a word to this page.
    if (!home.hidden && searches.some((each) => each.is_running)) listing = setTimeout(drawList, 2 * LOOK_MS);
  }
  function drawForm() {
    const model = h("input", { list: "models", id: "search-model", value: keys.model, onchange: () => { keys = { model: model.value.trim(), cluster: keys.cluster }; drawForm(); } });
    const goals = select([["", "most tokens/s of a device"], ["step_time_s", "shortest step"], ["peak_memory_bytes", "least memory of a device"]], keys.goal?.minimise, (value) => { if (value) keys.goal = { minimise: value }; else delete keys.goal; });
    const axes = select([["", "the usual axes"], ["staged", "the usual axes and stages (pipelines)"], ["every", "every axis"]], keys.mesh, (value) => { if (value) keys.mesh = value; else delete keys.mesh; });
    const where = h("input", { id: "search-where", value: keys.where ?? "memory.fits", spellcheck: "false", onchange: () => { keys.where = where.value.trim(); } });
    const batch = h("input", { id: "search-batch", type: "number", min: 1, value: keys.global_batch ?? "", placeholder: "4 for each device", onchange: () => { if (batch.value) keys.global_batch = Number(batch.value); else delete keys.global_batch; } });
    const pinned = Object.entries(keys).flatMap(([key, value]) => (OWN.has(key) ? [] : typeof value === "object" ? Object.entries(value) : [[key, value]])).map(([key, value]) => `${key.replaceAll("_", " ")} ${value}`);
    drawn(h("fieldset", {}, h("legend", {}, "Find the best mesh"), field("Model", model), ...clusterFields("search-", keys, (cluster) => { keys.cluster = cluster; drawForm(); }), field("Sequences of a step, the same for all", batch), field("Meshes of", axes), field("Best", goals), field("Where (as in memory.fits and mesh.tp <= 8)", where), pinned.length ? h("p.note", { id: "search-pinned" }, `With ${pinned.join(", ")} `, h("button.small", { type: "button", onclick: () => { keys = Object.fromEntries(Object.entries(keys).filter(([key]) => OWN.has(key))); drawForm(); } }, "drop")) : null),
      h("button.main", { type: "submit", id: "search-start" }, "Search"),
      listed);
  }
  async function start() {
    const answer = await post("/api/search", { do: "start", keys });
    if (answer.error) return found.replaceChildren(h("div.error", { role: "alert" }, answer.error));
    go("search", { name: answer.name });
  }
  async function look() {
    clearTimeout(timer);
    if (!name || home.hidden) return;
    const mine = name, answer = await post("/api/search", { do: "show", name });
    if (mine !== name) return;
    if (answer.error) { found.replaceChildren(h("div.error", { role: "alert" }, answer.error)); if (answer.lost) timer = setTimeout(look, LOOK_MS); return; }
    draw(answer);
    if (answer.is_running) timer = setTimeout(look, LOOK_MS); else drawList();
  }
  const act = (what) => async () => { const answer = await post("/api/search", { do: what, name }); if (answer.error) say(answer.error); setTimeout(look, 300); drawList(); };
  function open(row) {
    const state = { ...row.candidate };
    if (state.mesh) state.mesh = Object.fromEntries(Object.entries(state.mesh).filter(([, size]) => size > 1));
    go("predict", state);
  }
  function draw(answer) {
    const held = document.activeElement?.dataset?.row;
    const metric = Object.keys(KEYS).find((key) => answer.rows.some((row) => row.figures[key])) || "tokens_per_s_per_device";
    const points = answer.rows.filter((row) => row.figures[metric] && row.figures.peak_memory_bytes).map((row) => ({ x: row.figures.peak_memory_bytes, y: row.figures[metric], out: row.fits === false || row.status === "pruned", text: `${row.text}: ${row.texts[metric]}, ${row.texts.peak_memory_bytes}`, row }));
    const done = answer.total ? answer.total - answer.waiting : 0;
    const rows = answer.rows.filter((row) => row.figures.step_time_s && row.status !== "pruned").slice(0, MOST_ROWS);
    const pruned = answer.rows.filter((row) => row.status === "pruned" || !row.figures.step_time_s);
    replaced(found, [
      h("div.status", {}, h("span.title", {}, answer.name), answer.is_running ? h("progress", { max: answer.total || 1, value: done, "aria-label": "candidates decided" }) : null, h("span", { id: "search-text" }, answer.total ? `${done} of ${answer.total}: ${answer.text}` : answer.text),
        answer.is_running ? h("button.small", { type: "button", id: "search-stop", onclick: act("stop") }, "Stop") : answer.waiting || !answer.total ? h("button.small.main", { type: "button", id: "search-resume", onclick: act("resume") }, "Resume") : h("span.better", {}, "finished")),
      answer.goal ? h("p.note", {}, `${answer.pinned}. ${answer.title ? `${answer.title}. ` : ""}Goal: ${answer.goal}${answer.where ? `, where ${answer.where}` : ""}.`) : null,
      h("div.box", {}, h("h2", {}, "Candidates: memory against throughput"), !points.length && !answer.is_running && pruned.length ? h("p", {}, "None of these can run: the reasons stand below. More devices, or a part with more memory, may have one that can.") : scatter({ points, xName: "memory of a device", xUnit: "B", yName: KEYS[metric], limit: answer.capacity_bytes, label: `${points.length} candidates; the table below has the figures`, choose: (point) => open(point.row) }),
        h("ul.legend", {}, h("li", {}, h("i.k1"), "not beaten in both"), h("li", {}, h("i.k0"), "others"), h("li", {}, h("i.k5"), "does not fit, or left out"))),
      rows.length ? h("div.box", {}, h("h2", {}, "Best first"), rows.length === MOST_ROWS ? h("p.note", {}, `The first ${MOST_ROWS}; the file of the search has all.`) : null, h("div.scroll", {}, h("table", {}, h("thead", {}, h("tr", {}, ["", "candidate", "step", KEYS[metric], "MFU", "memory", ""].map((text, number) => h(number > 1 && number < 6 ? "th.number" : "th", { scope: "col" }, text)))),
        h("tbody", {}, rows.map((row) => h(row.fits === false ? "tr.out" : row.number === 1 ? "tr.chosen" : "tr", {}, h("td.number", {}, String(row.number)), h("td.candidate", {}, row.text.replaceAll(/[,_]/g, "$&\u200b")), h("td.number", {}, row.texts.step_time_s || ""), h("td.number", {}, row.texts[metric] || ""), h("td.number", {}, row.texts.mfu || ""), h("td.number", {}, row.texts.peak_memory_bytes || ""),
          h("td.number", {}, h("button.small", { type: "button", "data-row": String(row.number), "aria-label": `open ${row.text}`, onclick: () => open(row) }, "Open")))))))) : null,
      pruned.length ? h("details.box", { open: !rows.length && !answer.is_running }, h("summary", {}, `Left out (${pruned.length})`), h("ul", {}, pruned.slice(0, 60).map((row) => h("li", {}, `${row.text}: ${row.reason || row.status}`)))) : null]);
    if (answer.copies) copied.keep(answer.copies); else copied.hide();
    if (held) found.querySelector(`[data-row="${held}"]`)?.focus({ preventScroll: true });
  }
  return {
    redraw: drawForm, show(state) {
      const { name: chosen, ...asked } = state;
      if (asked.model) keys = { cluster: keys.cluster, ...asked };
      name = chosen || "";
      drawForm(); drawList(); address();
      if (name) { look(); return; }
      copied.hide();
      found.replaceChildren(h("div.box", {}, h("h2", {}, "Every mesh that a model can be divided by"), h("p", {}, "A search bounds each candidate from its sizes, predicts those that can fit, and keeps all of it on disk. It can be stopped and resumed, here or with hespas study.")));
    },
    leave() { clearTimeout(timer); clearTimeout(listing); },
  };
}
