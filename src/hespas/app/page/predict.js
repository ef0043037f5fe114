// One step: knobs on the left, the answer on the right, as the knobs move.
import { addressOf, ask, clusterFields, field, go, h, post, redrawn, replaced, select, slider } from "/files/page.js";
import { REST_MS, clone, complete, copies, leave, past, pin, same } from "/files/answers.js";
import { bars, stack } from "/files/draw.js";

const FIRST = { model: "llama3-8b", cluster: "8xH100_80GB" };
const MOST_TRIED = 8;
const NEAR = ["tp", "expert", "fsdp", "data", "pipe"]; // Axes whose sizes are tried, in this order.
const SEARCHED = new Set(["mesh", "batch", "micro_batch", "micro_batches", "remat", "schedule", "fidelity"]); // What a search decides; the rest of a question stays.
const ELSEWHERE = { mesh: "", node: "", memory_limit_slop_factor: "" }; // What another cluster does not take over.
const WITH_KNOBS = new Set(["model", "cluster", "node", "mesh", "prefill", "decode", "batch", "global_batch", "micro_batch", "micro_batches", "sequence", "schedule", "dtype", "remat", "attention", "fidelity"]);
const SET_WITH_KNOBS = new Set(["product_dtype", "state_dtype", "weight_dtype", "cache_dtype", "context"]);
const SEQUENCES = [1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072];

export function setUp(home) {
  let state = clone(FIRST), known = null, shown = null, whole = null;
  let turn = 0, reading = 0, isReading = false, busy = false, again = false, rest = 0, tried = [], nearing = Promise.resolve(), modelled = null, refused = "", timed = "";
  const knobs = h("form.panel.knobs", { "aria-label": "Knobs", onsubmit: (event) => event.preventDefault() });
  const drawn = redrawn(knobs);
  const said = h("span.row"), pending = h("span.row"), status = h("div.status", { "aria-live": "polite" }, said, pending);
  const tell = (...parts) => { leave(pending); said.replaceChildren(...parts); };
  const cards = h("dl.cards", { id: "cards" });
  const problem = h("div"), body = h("div.answer");
  const before = past(home, (old) => change(old, { remember: false }));
  const pinned = pin(home, { state: () => state, show: (old) => change(old), redraw: () => draw(shown) });
  const copied = copies(home, { json: () => whole?.json, more: () => [h("button", { type: "button", onclick: () => go("cluster", { ...state, imperfect: "" }) }, "Show the cluster"), known?.axes.length ? h("button.main", { type: "button", onclick: () => go("search", Object.fromEntries(Object.entries(state).filter(([key]) => !SEARCHED.has(key)))) }, "Search the best mesh") : null] });
  home.append(h("div.split", {}, knobs, h("div.answer", {}, status, problem, cards, body, copied.place)));

  // ---- the state: one place that changes it, remembers it, and writes the address
  // An answer may come when another view is there, whose address stays.
  const address = () => { if (!home.hidden) history.replaceState(null, "", addressOf("predict", state)); };
  function change(next, { remember = true } = {}) {
    const old = state;
    for (const key of Object.keys(next)) if (next[key] === "" || next[key] === null || next[key] === undefined) delete next[key];
    if (same(old, next)) return;
    if (remember) before.add(old);
    state = next;
    address();
    const isOther = old.model !== state.model || old.cluster !== state.cluster || old.prefill !== state.prefill || old.decode !== state.decode;
    if (isOther) describe(); else { drawKnobs(); predict(); }
  }
  const set = (more) => change({ ...clone(state), ...more });

  // ---- meshes: only legal ones, the nearest to what is there when an axis moves
  const sizesNow = () => known.axes.map((axis) => state.mesh?.[axis.name] ?? 1);
  const meshOf = (sizes) => {
    const used = known.axes.map((axis, number) => [axis.name, sizes[number]]).filter(([, size]) => size > 1);
    return used.length ? Object.fromEntries(used) : ""; // One device is divided along no axis.
  };
  const EASY = { fsdp: 1, data: 1.6 };
  function moved(axis, size) {
    const now = sizesNow();
    let best = null, least = Infinity;
    for (const mesh of known.meshes) {
      if (mesh[axis] !== size) continue;
      const cost = mesh.reduce((sum, each, number) => sum + (number === axis ? 0 : (EASY[known.axes[number].name] || 9) * Math.abs(Math.log2(each / now[number]))), 0);
      if (cost < least) { least = cost; best = mesh; }
    }
    return best;
  }
  const stops = (axis) => [...new Set(known.meshes.map((mesh) => mesh[axis]))].sort((a, b) => a - b);

  // ---- what the knobs can be set to
  async function describe() {
    const mine = ++reading;
    isReading = true; turn++;
    tell(h("span.spin", { "aria-hidden": "true" }), "reading the model");
    const about = clone(state); delete about.mesh;
    const answer = await ask("describe", about);
    if (mine !== reading) return;
    isReading = false;
    if (answer.code) return consent(answer.code, describe);
    if (answer.error) { known = null; drawKnobs(); return fail(answer.error); }
    known = answer;
    // A mesh of other axes or another count goes: the model's own, or the nearest legal one, stands.
    if (known.axes.length) {
      const isLegal = state.mesh && known.meshes.some((mesh) => same(mesh, sizesNow())) && Object.keys(state.mesh).every((name) => known.axes.some((axis) => axis.name === name));
      if (!isLegal) {
        const own = known.axes.map((axis) => known.mesh[axis.name] ?? 1);
        const mesh = known.meshes.find((each) => same(each, own)) || known.meshes[0];
        if (mesh) { state = { ...state, mesh: meshOf(mesh) || undefined }; if (!state.mesh) delete state.mesh; address(); }
      }
    }
    drawKnobs(); predict();
  }

  function drawKnobs() {
    const model = h("input", { id: "model", list: "models", value: state.model, autocomplete: "off", spellcheck: "false", onchange: () => change({ model: model.value.trim(), cluster: state.cluster }) });
    const file = h("input", { type: "file", id: "upload", accept: ".json,.mlir,.hlo,.txt", onchange: () => upload(file.files[0]) });
    const rows = [
      h("fieldset", {}, h("legend", {}, "What runs"), field("Model (any name of hespas models, or a program)", model),
        h("div.row", {}, known && !Object.keys(known.settings).length ? null : h("div.grow", {}, field("Step", select([["", "training"], ["prefill", "prefill"], ["decode", "decode"]], state.prefill ? "prefill" : state.decode ? "decode" : "", (value) => change({ model: state.model, cluster: state.cluster, ...(value ? { [value]: true } : {}) })))),
          h("button", { type: "button", onclick: () => file.click() }, "Upload a file"), file), refused ? h("div.error", { role: "alert" }, refused) : null),
      h("fieldset", {}, h("legend", {}, "Where"), clusterFields("", state, (cluster, node) => set({ ...ELSEWHERE, cluster, node }), { own: true })),
    ];
    const others = alsoSet();
    if (others.length) rows.push(h("fieldset", { id: "also" }, h("legend", {}, "Also set"), others.map(([text, drop]) => h("div.row", {}, h("span.grow.note", {}, text), h("button.small", { type: "button", "aria-label": `drop ${text}`, onclick: drop }, "Drop")))));
    if (known?.axes.length) {
      const now = sizesNow();
      rows.push(h("fieldset", { id: "mesh" }, h("legend", {}, `Mesh of ${known.devices} device${known.devices === 1 ? "" : "s"}`), known.axes.map((axis, number) => {
        const turned = (size) => { const mesh = moved(number, size); if (mesh) set({ mesh: meshOf(mesh) }); };
        return slider(`axis-${axis.name}`, axis.name, stops(number), now[number], turned, { title: axis.help });
      }), h("details.note", {}, h("summary", {}, "What each axis divides"), h("dl.words", {}, known.axes.filter((axis) => axis.help).map((axis) => [h("dt", {}, axis.name), h("dd", {}, axis.help)]).flat()))));
    }
    if (known && Object.keys(known.settings).length) rows.push(...modelKnobs());
    rows.push(h("div.row.last", {}, before.button(), h("button", { type: "button", id: "reset", onclick: () => change(clone(FIRST)) }, "Start over")));
    drawn(...rows);
  }

  // What links and applied changes set, and no knob shows.
  function alsoSet() {
    const without = (key) => () => { const next = { ...state.set }; delete next[key]; set({ set: Object.keys(next).length ? next : "" }); };
    const text = (key, value) => (key === "imperfect" ? "imperfections of the Cluster view" : `${key.replaceAll("_", " ")}${value === true ? "" : ` ${value}`}`);
    const keys = Object.entries(state).filter(([key]) => key !== "set" && !WITH_KNOBS.has(key)).map(([key, value]) => [text(key, value), () => set({ [key]: "" })]);
    return [...keys, ...Object.entries(state.set || {}).filter(([key]) => !SET_WITH_KNOBS.has(key)).map(([key, value]) => [text(key, value), without(key)])];
  }

  function modelKnobs() {
    const has = known.settings, options = known.choices;
    const number = (key, label) => { const input = h("input", { type: "number", min: 1, step: 1, value: String(state[key] ?? has[key] ?? ""), placeholder: "default", id: key, onchange: () => set({ [key]: Number(input.value) || "" }) }); return field(label, input); };
    const isStaged = (state.mesh?.pipe ?? 1) > 1;
    const choose = (key, label, values) => (key in has ? field(label, select(values, state[key] ?? has[key], (value) => set({ [key]: value === String(has[key]) ? "" : value }))) : null);
    const setting = (key, label, values) => (key in has ? field(label, select(values, state.set?.[key] ?? has[key], (value) => { const next = { ...(state.set || {}) }; if (value === String(has[key])) delete next[key]; else next[key] = value; set({ set: Object.keys(next).length ? next : "" }); })) : null);
    const contexts = [...new Set([...SEQUENCES, Number(state.set?.context ?? has.context ?? SEQUENCES[0])])].sort((a, b) => a - b).map(String);
    const sequences = [...new Set([...SEQUENCES, Number(state.sequence ?? has.sequence)])].sort((a, b) => a - b);
    return [
      h("fieldset", {}, h("legend", {}, "A step"), h("div.two", {},
        isStaged ? number("global_batch", "Global batch") : "batch" in has ? number("batch", "Batch of a data part") : null,
        isStaged ? null : "accumulation" in has ? number("micro_batches", "Micro-batches") : null,
        isStaged ? number("micro_batch", "Micro-batch") : null,
        "sequence" in has ? field("Sequence", select(sequences.map(String), state.sequence ?? has.sequence, (value) => set({ sequence: Number(value) === has.sequence ? "" : Number(value) }))) : null,
        "context" in has ? setting("context", "Tokens in the cache", contexts) : null,
        isStaged ? field("Schedule", select([["", "default"], ...known.schedules.map((name) => name.replace("V", "2"))], state.schedule, (value) => set({ schedule: value }))) : null)),
      h("fieldset", {}, h("legend", {}, "Precision and memory"), h("div.two", {},
        choose("dtype", "Type", options.dtype), setting("product_dtype", "Products in", options.product_dtype), setting("state_dtype", "States in", options.state_dtype), setting("weight_dtype", "Weights in", options.weight_dtype), setting("cache_dtype", "Cache in", options.cache_dtype),
        "remat" in has ? h("div.wide", {}, choose("remat", "Recomputation", options.remat)) : null, choose("attention", "Attention", options.attention),
        field("Kernels", select([["", "best available"], ["fused", "modelled"], ["library", "of libraries"], ["exported", "as exported"]], state.fidelity === "auto" ? "" : state.fidelity, (value) => set({ fidelity: value, ...(value && value !== "fused" ? { memory_limit_slop_factor: "" } : {}) }))))),
    ];
  }

  async function upload(file) {
    if (!file) return;
    const answer = await post(`/api/upload?name=${encodeURIComponent(file.name)}`, null, file);
    refused = answer.error || "";
    if (refused) return drawKnobs();
    change({ model: answer.path, cluster: state.cluster });
  }

  // ---- asking: one question is under way, and the last knob's is next
  async function predict() {
    if (isReading) return; // The knobs are not known yet: the question follows them.
    again = true;
    clearTimeout(rest);
    whole = null;
    copied.ready(); copied.draw(clone(state));
    if (busy) return;
    busy = true;
    while (again && !isReading) {
      again = false;
      const mine = ++turn, about = clone(state);
      tell(h("span.spin", { "aria-hidden": "true" }), "predicting");
      cards.classList.add("stale"); body.classList.add("stale");
      const began = performance.now();
      const answer = await ask("quick", about);
      if (mine !== turn || again) continue;
      if (answer.code) { consent(answer.code, predict); continue; }
      if (answer.error) { fail(answer.error, answer.apply); continue; }
      tried = []; modelled = answer.view;
      draw(answer.view, `${answer.is_last ? "predicted" : "modelled"} in ${((performance.now() - began) / 1000).toFixed(2)} s`);
      rest = setTimeout(() => rested(about, answer.is_last, mine), REST_MS);
    }
    busy = false;
  }

  function rested(about, isLast, mine) {
    if (!isLast) near(about, mine);
    complete(pending, about, { isCompiled: !isLast, isCurrent: () => mine === turn, then: (answer, seconds) => {
      if (!answer.error) { whole = answer; draw(answer.view, isLast ? timed : `compiled in ${seconds.toFixed(1)} s`); }
      if (isLast) near(about, mine);
    } });
  }

  // ---- what lies near: knobs moved by one, predicted while nothing else is asked
  function neighbours(about) {
    const found = [], now = sizesNow();
    if ("remat" in known.settings) for (const value of ["full", "minimal_with_context"]) if ((about.remat ?? known.settings.remat) !== value) found.push({ ...clone(about), remat: value });
    const axes = known.axes.map((axis, number) => [NEAR.indexOf(axis.name), number]).filter(([place]) => place >= 0).sort((one, other) => one[0] - other[0]);
    for (const [, number] of axes) {
      const values = stops(number), place = values.indexOf(now[number]);
      for (const size of [values[place + 1], values[place - 1]]) {
        const mesh = size && moved(number, size);
        if (mesh) found.push({ ...clone(about), mesh: meshOf(mesh) });
      }
    }
    if ("batch" in known.settings && !((about.mesh?.pipe ?? 1) > 1)) found.push({ ...clone(about), batch: 2 * (about.batch ?? known.settings.batch) });
    if (known.settings.product_dtype === "same" && about.set?.product_dtype !== "f8") found.push({ ...clone(about), set: { ...(about.set || {}), product_dtype: "f8" } });
    const unique = new Map(found.map((each) => [JSON.stringify(each), each]));
    return [...unique.values()].slice(0, MOST_TRIED);
  }
  const difference = (about) => {
    const parts = [];
    for (const axis of known.axes) { const one = about.mesh?.[axis.name] ?? 1, old = state.mesh?.[axis.name] ?? 1; if (one !== old) parts.push(`${axis.name}\u00a0=\u00a0${one}`); }
    for (const key of ["remat", "batch"]) if (about[key] !== state[key]) parts.push(`${key} = ${about[key]}`);
    if (about.set?.product_dtype !== state.set?.product_dtype) parts.push(`products in ${about.set?.product_dtype ?? "the type"}, less precise`);
    return parts.join(", ");
  };
  async function near(about, mine) {
    await nearing;
    if (!known?.axes.length || tried.length) return;
    let finish;
    nearing = new Promise((done) => { finish = done; });
    for (const one of neighbours(about)) {
      let answer;
      do {
        if (mine !== turn || home.hidden || document.hidden) break;
        answer = await ask("quick", one, { can_wait: true });
        // Others are asking: a knob goes before what nobody asked for yet.
        if (answer.error === "busy") await new Promise((done) => setTimeout(done, 700 + 600 * Math.random()));
      } while (answer?.error === "busy");
      if (mine !== turn || !answer) break;
      if (!answer.error && !answer.code) { tried.push({ about: one, view: answer.view }); drawNear(); }
    }
    finish();
  }
  const rate = (view) => view.cards.find((card) => card.name.endsWith("/s"))?.value ?? 1 / view.step_time_s;
  function drawNear() {
    const place = document.getElementById("near");
    if (!place) return;
    const base = rate(modelled), fits = shown.memory.fits !== false;
    const isExact = (each) => each.about.set?.product_dtype === state.set?.product_dtype;
    const rows = tried.map((each) => ({ ...each, gain: rate(each.view) / base - 1 })).sort((a, b) => (b.view.memory.fits !== false) - (a.view.memory.fits !== false) || isExact(b) - isExact(a) || b.gain - a.gain);
    place.replaceChildren(h("h2", {}, "Try next"), h("p.note", {}, fits ? `Knobs moved by one, best first; the batch of a data part stays.${whole?.view.fidelity === "compiled" ? " They are modelled, and compared with the modelled answer." : ""}` : "This does not fit. Knobs moved by one, those that fit first; the batch of a data part stays."),
      h("div.scroll", {}, h("table", {}, h("thead", {}, h("tr", {}, ["change", "throughput", "memory", ""].map((name, number) => h(number === 1 || number === 2 ? "th.number" : "th", { scope: "col" }, name)))),
        h("tbody", {}, rows.map((each) => h(each.view.memory.fits === false ? "tr.out" : "tr", {}, h("td", {}, difference(each.about).replaceAll("_", "_\u200b")), h("td.number", {}, h(each.gain >= 0 ? "span.better" : "span.worse", {}, `${each.gain >= 0 ? "+" : "−"}${Math.abs(100 * each.gain).toFixed(1)} %`)),
          h("td.number", {}, each.view.memory.text, each.view.memory.fits === false ? h("span.worse", { title: "does not fit" }, " ✕") : ""), h("td.number", {}, h("button.small", { type: "button", "aria-label": `apply ${difference(each.about)}`, onclick: () => change(clone(each.about)) }, "Apply"))))))));
  }

  // ---- drawing
  function fail(text, apply) {
    tell(); cards.classList.remove("stale"); body.classList.remove("stale");
    shown = null; cards.replaceChildren(); body.replaceChildren(); copied.hide();
    problem.replaceChildren(h("div.error", { role: "alert" }, text), h("p.row", {}, apply ? h("button.main", { type: "button", onclick: () => set(apply) }, "Predict it all the same") : null, h("button", { type: "button", onclick: () => (known ? predict() : describe()) }, "Ask again")));
  }
  function consent(code, then) {
    tell(); cards.replaceChildren(); body.replaceChildren(); copied.hide();
    problem.replaceChildren(h("div.ask", { role: "alertdialog", "aria-label": "Run code?" }, h("p", {}, "This question runs code on this machine: ", h("code", {}, code)), h("p", {}, "Do it only if you know what it does. A link that somebody gave you can name code of theirs."),
      h("button.main", { type: "button", id: "run-code", onclick: async () => { await post("/api/allow", { code }); problem.replaceChildren(); then(); } }, "Run this code")));
  }
  function draw(view, text = timed) {
    shown = view; timed = text;
    problem.replaceChildren();
    said.replaceChildren(h("span.title", {}, view.title), h("span.note", {}, text), ...pinned.buttons(view.cards).filter(Boolean));
    cards.classList.remove("stale"); body.classList.remove("stale");
    cards.replaceChildren(...pinned.figures(view.cards));
    const memory = view.memory;
    const memoryBox = h("div.box", { id: "memory" }, h("h2", {}, "Memory of a device ", h(memory.fits === false ? "span.worse" : "span.better", {}, memory.fits === null ? "" : memory.fits ? "fits" : "does not fit")),
        stack(memory.parts, "Memory", memory.capacity_share), h("p.note", {}, memory.note));
    const bound = h("div.box", { id: "bound" }, h("h2", {}, "What bounds the step"), stack(view.bound, "The step"));
    const where = view.where.length ? h("div.box", { id: "where" }, h("h2", {}, "Where the step goes"), bars(view.where, "The step by kind of kernel")) : null;
    const communication = view.communication.length ? h("div.box", { id: "communication" }, h("h2", {}, "Exposed communication, by axis"), bars(view.communication, "Exposed communication by axis")) : null;
    const phases = view.phases.length > 1 ? h("div.box", { id: "phases" }, h("h2", {}, "By phase, with exposed communication"), bars(view.phases, "The step by phase")) : null;
    const changes = view.changes.length ? h("div.box", { id: "changes" }, h("h2", {}, "If this changed, and nothing else"), h("div.scroll", {}, h("table", {}, h("tbody", {}, view.changes.map((each) => h("tr", {}, h("td", {}, each.text), h("td.number", {}, each.step), h("td.number", {}, h("span.better", {}, `−${each.gain}`)),
      h("td.number", {}, Object.keys(each.apply).length ? h("button.small", { type: "button", "aria-label": `apply ${each.text}`, onclick: () => set(each.apply) }, "Apply") : "")))))))  : null;
    const stages = view.stages.length ? h("div.box", {}, h("h2", {}, "Stages"), h("div.scroll", {}, h("table", {}, h("thead", {}, h("tr", {}, view.stages[0].map((name) => h("th.number", { scope: "col" }, name)))), h("tbody", {}, view.stages.slice(1).map((row) => h("tr", {}, row.map((cell) => h("td.number", {}, cell)))))))) : null;
    const nearBox = known?.axes.length ? h("div.box", { id: "near" }, h("h2", {}, "Try next"), h("p.note", {}, "Knobs moved by one are predicted while this answer is read.")) : null;
    const columns = [[memoryBox, nearBox, where], [bound, changes, communication, phases]].map((boxes) => h("div.answer", {}, boxes.filter(Boolean)));
    const parts = [view.warnings.length ? h("ul.warning", {}, view.warnings.map((each) => h("li", {}, each))) : null, h("div.pair.columns", {}, columns)];
    if (stages) parts.push(stages);
    if (view.assumptions.length) parts.push(h("details.box", {}, h("summary", {}, `Assumed (${view.assumptions.length})`), h("ul", {}, view.assumptions.map((each) => h("li", {}, each)))));
    replaced(body, parts);
    if (tried.length) drawNear();
    copied.ready();
  }

  return {
    redraw: drawKnobs, show(given) {
      const next = Object.keys(given).length ? given : state;
      if (!known || !same(next, state)) {
        if (known) before.add(state);
        state = clone(next); state.model ??= FIRST.model; state.cluster ??= FIRST.cluster;
        address();
        drawKnobs(); describe();
      } else address();
    },
  };
}
