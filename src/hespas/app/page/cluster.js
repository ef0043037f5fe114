// A cluster: its network drawn; devices and links can be marked as slow, and the step is shown then.
import { SHARED, addressOf, ask, field, go, h, post, redrawn, select } from "/files/page.js";
import { s } from "/files/draw.js";

const MOST_NODES = 8, MOST_DEVICES = 8;
const LINK = [1, 0.5, 0], DEVICE = [1, 1.2, 2];

export function setUp(home) {
  let state = { model: "llama3-8b", cluster: "16xH100_80GB" }, network = null, marks = { devices: {}, links: {} }, base = null, turn = 0;
  const form = h("form.panel.knobs", { "aria-label": "The cluster", onsubmit: (event) => event.preventDefault() });
  const drawn = redrawn(form), found = h("div.answer"), picture = h("div.box"), result = h("div.answer");
  found.append(picture, result);
  home.append(h("div.split", {}, form, found));
  function drawForm() {
    const sized = /^(\d+)x(.+)$/.exec(state.cluster), [count, part] = sized?.slice(1) ?? ["", ""];
    const own = h("input", { value: sized ? "" : state.cluster, spellcheck: "false", onchange: () => { if (own.value.trim()) set({ cluster: own.value.trim(), node: state.node || SHARED.names.parts[0] }); } });
    const of = sized ? null : field("Of which part", select(SHARED.names.parts, state.node, (value) => set({ node: value })));
    const many = h("input", { type: "number", min: 2, value: count, onchange: () => set({ cluster: `${many.value}x${part || SHARED.names.parts[0]}`, node: "" }) });
    const model = h("input", { list: "models", value: state.model, onchange: () => set({ model: model.value.trim() }) });
    const listed = [...Object.entries(marks.devices).map(([device, scale]) => `device ${device}: computes ${scale} times as long`), ...Object.entries(marks.links).map(([link, scale]) => (scale ? `${link}: ${scale} of its bandwidth` : `${link}: dead`))];
    drawn(h("fieldset", {}, h("legend", {}, "Cluster"), h("div.two", {}, field("Part", select([...new Set([...SHARED.names.parts, part])], part, (value) => set({ cluster: `${count || 8}x${value}`, node: "" }))), field("How many", many)), field("Or one of your own: its directory", own), of, field("Step of", model)),
      h("fieldset", {}, h("legend", {}, "Not perfect"), listed.length ? h("ul.note", {}, listed.map((text) => h("li", {}, text))) : h("p.note", {}, "Click a device or a link of the picture: slow, slower or dead, and as it should be again. By keyboard: Tab to it, Enter."),
        h("button", { type: "button", disabled: !listed.length, onclick: () => { marks = { devices: {}, links: {} }; redraw(); } }, "All as it should be")));
  }
  const set = (more) => { state = { ...state, ...more }; marks = { devices: {}, links: {} }; base = null; history.replaceState(null, "", addressOf("cluster", state)); load(); };
  const next = (values, now) => values[(values.indexOf(now) + 1) % values.length];
  function turnLink(links) { const now = marks.links[links[0]] ?? 1, scale = next(LINK, now); for (const link of links) if (scale === 1) delete marks.links[link]; else marks.links[link] = scale; redraw(); }
  function turnDevice(device) { const scale = next(DEVICE, marks.devices[device] ?? 1); if (scale === 1) delete marks.devices[device]; else marks.devices[device] = scale; redraw(); }
  const kind = (scale) => (scale === undefined ? "" : scale === 0 ? ".dead" : ".slow");
  const press = (label, action) => ({ tabindex: "0", role: "button", "aria-label": label, onclick: action, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); action(); } } });
  // A network that is no product of dimensions: devices below, switches in tiers above them.
  function drawGraph() {
    const { tiers, wires } = network.graph, most = Math.max(...tiers.map((tier) => tier.length)), width = Math.max(480, most * 46 + 40), tall = 96, height = tiers.length * tall + 20;
    const chart = s("svg.chart.network", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Network of ${network.name}` });
    const place = new Map(tiers.flatMap((tier, level) => tier.map((name, number) => [name, { x: (width * (number + 0.5)) / tier.length, y: height - 40 - level * tall }])));
    for (const wire of wires) {
      const [one, other] = wire.ends.map((name) => place.get(name)), text = `link between ${wire.ends.join(" and ")}`;
      chart.append(s(`line.wire${kind(marks.links[wire.links[0]])}`, { x1: one.x, y1: one.y, x2: other.x, y2: other.y }), s("line.hit", { x1: one.x, y1: one.y, x2: other.x, y2: other.y, ...press(text, () => turnLink(wire.links)) }, s("title", {}, `${text}: ${wire.bandwidth}`)));
    }
    tiers.forEach((tier, level) => tier.forEach((name, number) => {
      const { x, y } = place.get(name), scale = level ? undefined : marks.devices[number];
      if (level) chart.append(s("rect.switch", { x: x - 20, y: y - 12, width: 40, height: 24, rx: 5 }, s("title", {}, name)), s("text", { x, y: y - 16, "text-anchor": "middle" }, name.length > 12 ? `${name.slice(0, 11)}…` : name));
      else chart.append(s(`circle.device${scale ? ".slow" : ""}`, { cx: x, cy: y, r: 12, ...press(`device ${number}${scale ? `, computes ${scale} times as long` : ""}`, () => turnDevice(number)) }, s("title", {}, `device ${number}: ${name}`)), s("text", { x, y: y + 4, "text-anchor": "middle", "pointer-events": "none", "aria-hidden": "true" }, String(number)));
    }));
    shown([h("h2", {}, `${network.name}: ${network.devices} devices`), h("div.scroll", {}, chart), h("pre.note", { tabindex: "0" }, network.lines.join("\n"))]);
  }
  function shown(parts) {
    const held = picture.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label")?.split(",")[0] : null;
    const scrolled = picture.querySelector(".scroll")?.scrollLeft ?? 0;
    picture.replaceChildren(...parts.filter(Boolean));
    const box = picture.querySelector(".scroll");
    if (box) box.scrollLeft = scrolled;
    if (held) [...picture.querySelectorAll("[role=button]")].find((element) => element.getAttribute("aria-label").split(",")[0] === held)?.focus();
  }
  function draw() {
    if (network.graph) return drawGraph();
    if (!network.dimensions.length) return shown([h("h2", {}, `${network.name}: ${network.devices} devices`), h("p", {}, "This network has too many links for a picture."), h("pre.note", { tabindex: "0" }, network.lines.join("\n"))]);
    const size = Math.min(network.node, MOST_DEVICES), nodes = Math.min(network.nodes, MOST_NODES), wide = Math.max(2, Math.min(nodes, 4));
    const w = size * 30 + 24, gap = 24, tall = 190, rows = Math.ceil(nodes / wide), outer = network.dimensions[1], inner = network.dimensions[0];
    const width = wide * (w + gap) + gap, height = rows * (tall + 20) + (nodes > 1 ? 60 : 0);
    const chart = s("svg.chart.network", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Network of ${network.name}` });
    if (nodes > 1 && outer) chart.append(s("rect.switch", { x: gap, y: 14, width: width - 2 * gap, height: 34, rx: 6 }), s("text.strong", { x: width / 2, y: 36, "text-anchor": "middle" }, `${outer.shape} across nodes: ${outer.bandwidth} a device, ${outer.latency}`));
    for (let node = 0; node < nodes; node++) {
      const x0 = gap + (node % wide) * (w + gap), y0 = (nodes > 1 ? 80 : 20) + Math.floor(node / wide) * (tall + 20);
      chart.append(s("rect.node", { x: x0, y: y0, width: w, height: tall - 20, rx: 8 }), s("text", { x: x0 + 8, y: y0 + 158 }, `node ${node}`));
      chart.append(s("rect.switch", { x: x0 + 12, y: y0 + 112, width: w - 24, height: 26, rx: 5 }), s("text", { x: x0 + w / 2, y: y0 + 129, "text-anchor": "middle" }, `${inner.shape}, ${inner.bandwidth}`));
      for (let place = 0; place < size; place++) {
        const device = node * network.node + place, x = x0 + 27 + place * 30, y = y0 + 54;
        const wire = (dimension, x1, y1, x2, y2) => {
          if (!dimension?.links.length) return;
          const links = linksOf(dimension, device), text = `link of device ${device} in dimension ${dimension.number}`;
          chart.append(s(`line.wire${kind(marks.links[links[0]])}`, { x1, y1, x2, y2 }), s("line.hit", { x1, y1, x2, y2, ...press(text, () => turnLink(links)) }, s("title", {}, `${text}: ${dimension.bandwidth}`)));
        };
        if (nodes > 1) wire(outer, x, y - 12, x, node < wide ? 48 : y0 - 8);
        wire(inner, x, y + 12, x, y0 + 112);
        const scale = marks.devices[device];
        chart.append(s(`circle.device${scale ? ".slow" : ""}`, { cx: x, cy: y, r: 12, ...press(`device ${device}${scale ? `, computes ${scale} times as long` : ""}`, () => turnDevice(device)) }, s("title", {}, `device ${device}`)), s("text", { x, y: y + 4, "text-anchor": "middle", "pointer-events": "none", "aria-hidden": "true" }, String(device)));
      }
    }
    const left = network.nodes > nodes || network.node > size ? h("p.note", {}, `Shown: ${nodes} of ${network.nodes} nodes, ${size} of ${network.node} devices of each.`) : null;
    shown([h("h2", {}, `${network.name}: ${network.devices} devices`), h("div.scroll", {}, chart), left, h("ul.note", {}, network.dimensions.map((each) => h("li", {}, `dimension ${each.number}: ${each.shape} of ${each.size}, ${each.bandwidth} a link, ${each.latency}${each.is_of_pairs ? "; a line is the links of a device to all others" : ""}`)))]);
  }
  function linksOf(dimension, device) {
    if (!dimension.is_of_pairs) return dimension.links.map((name) => `${name}${device}`);
    const place = Math.floor(device / dimension.stride) % dimension.size, first = device - place * dimension.stride;
    return [...Array(dimension.size).keys()].filter((each) => each !== place).map((each) => `${dimension.links[0]}${device}.${first + each * dimension.stride}`);
  }
  async function redraw() {
    draw(); drawForm();
    const mine = ++turn;
    const written = await post("/api/imperfect", marks);
    if (mine !== turn) return;
    const perfect = { model: state.model, cluster: state.cluster, ...(state.node ? { node: state.node } : {}) };
    const about = { ...perfect, ...(written.path ? { imperfect: written.path } : {}) };
    result.classList.add("stale");
    const answer = await ask("quick", about);
    // Marks can be made before the perfect cluster is answered.
    const compared = written.path && !base && !answer.error && !answer.code ? await ask("quick", perfect) : null;
    if (mine !== turn) return;
    base = compared?.view ?? base;
    result.classList.remove("stale");
    if (answer.error) return result.replaceChildren(h("div.error", { role: "alert" }, answer.error));
    if (answer.code) return result.replaceChildren(h("div.ask", {}, h("p", {}, "The step of ", h("code", {}, answer.code), " runs code on this machine. The Predict view asks for it."), h("button", { type: "button", onclick: () => go("predict", about) }, "Ask there")));
    if (!written.path) base = answer.view;
    const step = answer.view.cards[0], more = base ? answer.view.step_time_s / base.step_time_s - 1 : 0;
    result.replaceChildren(...[h("dl.cards", {}, h("div", {}, h("dt", {}, `Step of ${state.model}`), h("dd", {}, h("strong", { id: "cluster-step" }, step.text), base && written.path ? h(more > 5e-5 ? "span.worse" : "span.note", { id: "cluster-change" }, more > 5e-5 ? `+${(100 * more).toFixed(1)} % to a perfect cluster` : "as on a perfect cluster") : h("span.note", {}, "on a perfect cluster")))),
      written.path ? h("div.box", {}, h("h2", {}, "The file of these imperfections"), h("pre", { tabindex: "0" }, written.text), h("p", {}), h("button.main", { type: "button", onclick: () => go("predict", about) }, "Predict with them")) : null].filter(Boolean));
  }
  async function load() {
    drawForm();
    network = null; picture.replaceChildren(h("p.note", {}, "reading the system")); result.replaceChildren();
    const mine = ++turn, answer = await ask("network", { cluster: state.cluster });
    if (mine !== turn) return;
    if (answer.error) return picture.replaceChildren(h("div.error", { role: "alert" }, answer.error));
    network = answer;
    redraw();
  }
  return { redraw: drawForm, show(given) { const shown = { ...state, ...given }; const isOther = JSON.stringify(shown) !== JSON.stringify(state); state = shown; history.replaceState(null, "", addressOf("cluster", state)); if (!network || isOther) load(); } };
}
