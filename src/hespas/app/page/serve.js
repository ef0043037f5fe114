// A served load: sliders for the load and the objectives, latency against rate.
import { addressOf, ask, clusterFields, copy, field, h, redrawn, select, slider } from "/files/page.js";
import { cancel, clone, copies, past, pin, same, waiting } from "/files/answers.js";
import { lines, short } from "/files/draw.js";

const FIRST = { model: "Qwen/Qwen3-8B", cluster: "8xH100_80GB", mesh: "tp=2", rate: 20, isl: 1024, osl: 256, slo: "ttft=500ms,tpot=40ms", engine: "vllm" };
const STEPS = [1, 2, 4, 8, 16, 32], MS = { text: (value) => `${value} ms` };

export function setUp(home) {
  let state = { ...FIRST }, timer = 0, turn = 0, answer = null;
  const form = h("form.panel.knobs", { "aria-label": "Load and engine", onsubmit: (event) => { event.preventDefault(); predict(); } });
  const drawn = redrawn(form), found = h("div.answer"), said = h("span.row"), pending = h("span.row"), status = h("div.status", { "aria-live": "polite" }, said, pending);
  const before = past(home, restore);
  const pinned = pin(home, { state: () => state, show: set, redraw: draw });
  const copied = copies(home, { question: "serve-copies", json: () => answer?.json });
  home.append(h("div.split", {}, form, h("div.answer", {}, status, found, copied.place)));
  const objective = (name, fallback) => Number(new RegExp(`${name}=(\\d+)ms`).exec(state.slo || "")?.[1] ?? fallback);
  function set(more) { before.add(state); restore({ ...state, ...more }); }
  function restore(next) {
    state = clone(next);
    history.replaceState(null, "", addressOf("serve", state));
    drawForm();
    clearTimeout(timer);
    timer = setTimeout(predict, 500);
  }
  function drawForm() {
    const count = Number(/^\d+/.exec(state.cluster)?.[0] ?? 8);
    const model = h("input", { id: "serve-model", list: "models", value: state.model, onchange: () => set({ model: model.value.trim() }) });
    const rates = [0.5, 1, 2, 5, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300, 400];
    const tp = Number(/tp=(\d+)/.exec(state.mesh || "")?.[1] ?? 1);
    drawn(
      h("fieldset", {}, h("legend", {}, "What is served"), field("Model", model), ...clusterFields("serve-", state, (cluster) => set({ cluster, ...(parseInt(cluster) % tp ? { mesh: "tp=1" } : {}) })), field("Engine", select(["vllm", "sglang", "trtllm"], state.engine, (value) => set({ engine: value })))),
      h("fieldset", {}, h("legend", {}, "A replica"), slider("serve-tp", "tp", STEPS.filter((step) => count % step === 0), tp, (value) => set({ mesh: `tp=${value}` }))),
      h("fieldset", {}, h("legend", {}, "Load"), slider("serve-rate", "requests/s", rates, Number(state.rate), (value) => set({ rate: value })),
        slider("serve-isl", "tokens in", [128, 256, 512, 1024, 2048, 4096, 8192], state.isl, (value) => set({ isl: value })), slider("serve-osl", "tokens out", [32, 64, 128, 256, 512, 1024, 2048], state.osl, (value) => set({ osl: value }))),
      h("fieldset", {}, h("legend", {}, "Objectives"), slider("serve-ttft", "first token", [100, 200, 300, 500, 800, 1000, 2000, 5000], objective("ttft", 500), (value) => set({ slo: `ttft=${value}ms,tpot=${objective("tpot", 40)}ms` }), MS),
        slider("serve-tpot", "each token", [5, 10, 20, 30, 40, 60, 80, 100, 200], objective("tpot", 40), (value) => set({ slo: `ttft=${objective("ttft", 500)}ms,tpot=${value}ms` }), MS)),
      h("div.row.last", {}, h("button.main", { type: "submit" }, "Predict"), before.button()));
  }
  async function predict() {
    const mine = ++turn, about = clone(state), cancelled = cancel("serve");
    found.classList.add("stale");
    const wait = waiting("steps are predicted, then the engine is simulated; a new model takes up to half a minute", "serve");
    pending.replaceChildren(wait.line);
    await cancelled;
    const next = mine === turn ? await ask("serve", about) : null;
    wait.end();
    if (mine !== turn) return;
    found.classList.remove("stale");
    answer = next.error ? null : next;
    if (answer) { draw(); copied.draw(about); return; }
    said.replaceChildren(); copied.hide();
    found.replaceChildren(h("div.error", { role: "alert" }, next.error));
  }
  function draw() {
    const points = answer.points;
    said.replaceChildren(h("span.title", {}, answer.title), ...pinned.buttons(answer.cards).filter(Boolean));
    found.replaceChildren(
      h("dl.cards", {}, pinned.figures(answer.cards)), h("p.note", {}, answer.expected),
      h("div.pair", {},
        h("div.box", {}, h("h2", {}, "Latency against rate"), lines({ series: [{ name: "median", points: points.map((point) => ({ x: point.rate, y: 1e3 * point.ttft_p50_s })) }, { name: "p99", points: points.map((point) => ({ x: point.rate, y: 1e3 * point.ttft_p99_s })) }], xName: "requests/s", yName: "first token (ms)", label: "Time to the first token against the rate", mark: answer.rate }),
          h("ul.legend", {}, h("li", {}, h("i.k0"), "median"), h("li", {}, h("i.k3"), "p99"))),
        h("div.box", {}, h("h2", {}, "What a user sees against what a device makes"), lines({ series: [{ name: "tokens/s/user", points: [...points].sort((a, b) => a.tokens_per_s_per_device - b.tokens_per_s_per_device).map((point) => ({ x: point.tokens_per_s_per_device, y: point.tokens_per_s_per_user })) }], xName: "tokens/s/device", yName: "tokens/s/user", label: "Tokens a second of a user against those of a device" }))),
      h("div.box", {}, h("h2", {}, "Figures"), h("div.scroll", {}, h("table", {}, h("thead", {}, h("tr", {}, ["requests/s", "first token", "p99", "each token", "tokens/s/user", "tokens/s/device"].map((text) => h("th.number", { scope: "col" }, text)))),
        h("tbody", {}, points.map((point) => h(point.rate === answer.rate ? "tr.chosen" : "tr", {}, [short(point.rate, 4), ...[point.ttft_p50_s, point.ttft_p99_s, point.tpot_p50_s].map((time) => `${+(1e3 * time).toPrecision(4)} ms`), short(point.tokens_per_s_per_user, 4), short(point.tokens_per_s_per_device, 4)].map((text) => h("td.number", {}, text)))))))),
      h("div.box", {}, h("h2", {}, "Launch it"), h("pre", { tabindex: "0" }, answer.launch), h("p", {}), h("button", { type: "button", onclick: () => copy(answer.launch, "launch command") }, "Copy launch command")),
      h("details.box", {}, h("summary", {}, `Assumed (${answer.assumptions.length})`), h("ul", {}, answer.assumptions.map((each) => h("li", {}, each)))));
  }
  return {
    redraw: drawForm, show(given) {
      const asked = Object.keys(given).length ? { ...FIRST, ...given } : state, isOther = !same(asked, state);
      if (isOther && turn) before.add(state);
      state = asked;
      history.replaceState(null, "", addressOf("serve", state));
      drawForm();
      const isLink = Object.keys(given).length && !turn;
      if (isOther || isLink) return predict(); // A link is answered, and no other one's answer stays beside its knobs.
      if (!answer && !turn) found.replaceChildren(h("div.box", {}, h("h2", {}, "Latencies and throughput of a model under load"), h("p", {}, "Set the load and press Predict. Steps of a new model take up to half a minute; after that, sliders answer in seconds.")));
    },
  };
}
