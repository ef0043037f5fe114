// A cluster: its network drawn; devices and links can be marked as slow, and the step is shown then.
import { addressOf, ask, clusterFields, field, go, h, post, redrawn, replaced } from "/files/page.js";
import { REST_MS, clone, complete, copies, leave, past, pin, same } from "/files/answers.js";
import { s } from "/files/draw.js";

const MOST_NODES = 8, MOST_DEVICES = 8;
const MOST_PLACES = [8, 8, 4, 2], STUBS = [[-0.7, 0.7], [0.7, 0.7], [0.7, -0.7], [-0.7, -0.7]];
const PLACED = ["across", "down", "planes beside each other, linked by short lines to the upper right", "planes below each other, linked by short lines to the upper left"];
const LINK = [1, 0.5, 0], DEVICE = [1, 1.2, 2];

export function setUp(home) {
  const FIRST = { model: "llama3-8b", cluster: "16xH100_80GB" };
  let state = FIRST, network = null, marks = { devices: {}, links: {} }, base = null, turn = 0, placed = null, rest = 0, drawnStep = null, whole = null;
  const called = new Map(); // Links by the name that files of imperfections have, as the picture calls them.
  const form = h("form.panel.knobs", { "aria-label": "The cluster", onsubmit: (event) => event.preventDefault() });
  const drawn = redrawn(form), picture = h("div.box"), result = h("div.answer"), file = h("div.answer");
  const said = h("span.row"), pending = h("span.row"), status = h("div.status", { "aria-live": "polite" }, said, pending);
  const before = past(home, restore);
  const pinned = pin(home, { state: asked, show: (old) => { before.add(asked()); restore(old); }, redraw: drawStep });
  const copied = copies(home, { json: () => whole?.json });
  home.append(h("div.split", {}, form, h("div.answer", {}, status, result, picture, file, copied.place)));
  function drawForm() {
    const model = h("input", { list: "models", value: state.model, onchange: () => move({ model: model.value.trim(), cluster: state.cluster, node: state.node }) });
    const links = new Map(Object.entries(marks.links).map(([link, scale]) => [called.get(link) ?? link, scale ? `${scale} of its bandwidth` : "dead"]));
    const listed = [...Object.entries(marks.devices).map(([device, scale]) => `device ${device}: computes ${scale} times as long`), ...[...links].map(([link, text]) => `${link}: ${text}`)];
    drawn(h("fieldset", {}, h("legend", {}, "Cluster"), ...clusterFields("cluster-", state, (cluster, node) => move({ ...state, cluster, node, mesh: undefined }), { own: true }), field("Step of", model)),
      h("fieldset", {}, h("legend", {}, "Not perfect"), listed.length ? h("ul.note", {}, listed.map((text) => h("li", {}, text))) : null, h("p.note", {}, "Click a device: slow, slower, as it should be. Click a link: half its bandwidth, dead, as it should be. By keyboard: Tab to it, Enter."),
        h("button", { type: "button", disabled: !listed.length, onclick: () => { before.add(asked()); marks = { devices: {}, links: {} }; redraw(); } }, "All as it should be")),
      h("div.row.last", {}, before.button()));
  }
  const address = () => { if (!home.hidden) history.replaceState(null, "", addressOf("cluster", asked())); };
  function asked() { return { ...state, device: marks.devices, link: marks.links }; }
  function restore({ device, link, ...next }) {
    const isOther = !same(next, state);
    state = next; marks = clone({ devices: device, links: link });
    if (!isOther) return redraw();
    base = null; address(); load();
  }
  function move(next) { before.add(asked()); restore({ ...next, device: {}, link: {} }); }
  const next = (values, now) => values[(values.indexOf(now) + 1) % values.length];
  function turnLink(links) { before.add(asked()); const now = marks.links[links[0]] ?? 1, scale = next(LINK, now); for (const link of links) if (scale === 1) delete marks.links[link]; else marks.links[link] = scale; redraw(); }
  function turnDevice(device) { before.add(asked()); const scale = next(DEVICE, marks.devices[device] ?? 1); if (scale === 1) delete marks.devices[device]; else marks.devices[device] = scale; redraw(); }
  // A line between two points, with what a click on it marks.
  function wire(chart, links, text, title, { x1, y1, x2, y2 }) {
    for (const link of links) called.set(link, text);
    chart.append(s(`line.wire${kind(marks.links[links[0]])}`, { x1, y1, x2, y2 }), s("line.hit", { x1, y1, x2, y2, ...press(text, () => turnLink(links)) }, s("title", {}, `${text}: ${title}`)));
  }
  function circle(chart, device, x, y, title = "") {
    const scale = marks.devices[device];
    chart.append(s(`circle.device${scale ? ".slow" : ""}`, { cx: x, cy: y, r: 12, ...press(`device ${device}${scale ? `, computes ${scale} times as long` : ""}`, () => turnDevice(device)) }, s("title", {}, `device ${device}${title}`)), s(device > 99 ? "text.long" : "text", { x, y: y + 4, "text-anchor": "middle", "pointer-events": "none", "aria-hidden": "true" }, String(device)));
  }
  const canvas = (width, height) => s("svg.chart.network", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": `Network of ${network.name}` });
  const kind = (scale) => (scale === undefined ? "" : scale === 0 ? ".dead" : ".slow");
  const press = (label, action) => ({ tabindex: "0", role: "button", "aria-label": label, onclick: action, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); action(); } } });
  // A network that is no product of dimensions: devices below, switches in tiers above them.
  function drawGraph() {
    const { tiers, wires } = network.graph, most = Math.max(...tiers.map((tier) => tier.length)), width = Math.max(480, most * 46 + 40), tall = 96, height = tiers.length * tall + 20;
    const chart = canvas(width, height);
    const place = new Map(tiers.flatMap((tier, level) => tier.map((name, number) => [name, { x: (width * (number + 0.5)) / tier.length, y: height - 40 - level * tall }])));
    for (const { ends, links, bandwidth } of wires) {
      const [one, other] = ends.map((name) => place.get(name));
      wire(chart, links, `link between ${ends.join(" and ")}`, bandwidth, { x1: one.x, y1: one.y, x2: other.x, y2: other.y });
    }
    tiers.forEach((tier, level) => tier.forEach((name, number) => {
      const { x, y } = place.get(name);
      if (level) chart.append(s("rect.switch", { x: x - 20, y: y - 12, width: 40, height: 24, rx: 5 }, s("title", {}, name)), s("text", { x, y: y - 16, "text-anchor": "middle" }, name.length > 12 ? `${name.slice(0, 11)}…` : name));
      else circle(chart, number, x, y, `: ${name}`);
    }));
    shown([h("h2", {}, `${network.name}: ${network.devices} device${network.devices === 1 ? "" : "s"}`), h("div.scroll", {}, chart), h("pre.note", { tabindex: "0" }, network.lines.join("\n"))]);
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
    if (!network.dimensions.length) return shown([h("h2", {}, `${network.name}: ${network.devices} device${network.devices === 1 ? "" : "s"}`), h("p", {}, "This network has too many links for a picture."), h("pre.note", { tabindex: "0" }, network.lines.join("\n"))]);
    const isLined = network.dimensions.some((each) => each.is_lined);
    const [chart, left] = isLined ? drawGrid() : drawNodes();
    const notes = network.dimensions.map((each, number) => h("li", {}, `dimension ${each.number}: ${each.shape} of ${each.size}, ${each.bandwidth} a link, ${each.latency}${!isLined && each.is_of_pairs ? "; a line is the links of a device to all others" : ""}${isLined && number < PLACED.length ? `; ${PLACED[number]}` : ""}`));
    shown([h("h2", {}, `${network.name}: ${network.devices} device${network.devices === 1 ? "" : "s"}`), h("div.scroll", {}, chart), left ? h("p.note", {}, left) : null, h("ul.note", {}, notes)]);
  }
  function drawNodes() {
    const size = Math.min(network.node, MOST_DEVICES), w = size * 30 + 24, gap = 24, tall = 190, outer = network.nodes > 1 ? network.dimensions[1] : null, inner = network.dimensions[0];
    const wide = Math.max(1, Math.min(network.nodes, 4, Math.floor((picture.clientWidth - 2 * gap) / (w + gap)))), nodes = Math.min(network.nodes, wide > 1 ? MOST_NODES : MOST_NODES / 2);
    const width = Math.max(wide * (w + gap) + gap, 300), pitch = tall + (outer ? 60 : 10);
    const chart = canvas(width, Math.ceil(nodes / wide) * pitch);
    for (let node = 0; node < nodes; node++) {
      const x0 = gap + (node % wide) * (w + gap), y0 = (outer ? 70 : 10) + Math.floor(node / wide) * pitch;
      if (outer && node % wide === 0) chart.append(s("rect.switch", { x: gap, y: y0 - 62, width: width - 2 * gap, height: 34, rx: 6 }), s("text.strong", { x: width / 2, y: y0 - 40, "text-anchor": "middle" }, node ? `the same ${outer.shape}` : `${outer.shape} across nodes: ${outer.bandwidth} a device`));
      chart.append(s("rect.node", { x: x0, y: y0, width: w, height: tall - 20, rx: 8 }), s("text", { x: x0 + 8, y: y0 + 158 }, `node ${node}`));
      if (inner.size > 1) chart.append(s("rect.switch", { x: x0 + 12, y: y0 + 112, width: w - 24, height: 26, rx: 5 }), s("text", { x: x0 + w / 2, y: y0 + 129, "text-anchor": "middle" }, size > 2 ? `${inner.shape}, ${inner.bandwidth}` : inner.shape));
      for (let place = 0; place < size; place++) {
        const device = node * network.node + place, x = x0 + 27 + place * 30, y = y0 + 54;
        const to = (dimension, y1, y2) => wire(chart, linksOf(dimension, device), `link of device ${device} in dimension ${dimension.number}`, dimension.bandwidth, { x1: x, y1, x2: x, y2 });
        if (outer) to(outer, y - 12, y0 - 28);
        if (inner.size > 1) to(inner, y + 12, y0 + 112);
        circle(chart, device, x, y);
      }
    }
    return [chart, network.nodes > nodes || network.node > size ? `Shown: ${nodes} of ${network.nodes} nodes, ${size} of ${network.node} devices of each.` : ""];
  }
  // Rows and columns of devices with links to the next one, as tori and meshes have; planes of them beside and below each other.
  function drawGrid() {
    const all = network.dimensions, cell = 44, margin = 34, cut = all.map((each, number) => Math.min(each.size, MOST_PLACES[number] ?? 1));
    const wide = cut[0] * cell + margin, tall = (cut[1] ?? 1) * cell + margin, step = [[cell, 0], [0, cell], [wide, 0], [0, tall]];
    const chart = canvas(wide * (cut[2] ?? 1), tall * (cut[3] ?? 1));
    const places = cut.reduce((found, count) => found.flatMap((at) => [...Array(count).keys()].map((each) => [...at, each])), [[]]);
    const devices = places.map((at) => ({ at, device: at.reduce((sum, each, number) => sum + each * all[number].stride, 0), x: margin + at.reduce((sum, each, number) => sum + each * (step[number]?.[0] ?? 0), 0), y: margin + at.reduce((sum, each, number) => sum + each * (step[number]?.[1] ?? 0), 0) }));
    for (const { at, device, x, y } of devices) all.forEach((dimension, number) => {
      const text = `link of device ${device} in dimension ${dimension.number}`, end = at[number] + 1, isRow = number < 2 && (dimension.is_lined || dimension.size === 2);
      if (dimension.size < 2) return;
      if (!isRow) { const links = linksOf(dimension, device), [dx, dy] = STUBS[number] ?? STUBS[0]; if (links.length) wire(chart, links, text, dimension.bandwidth, { x1: x + 8 * dx, y1: y + 8 * dy, x2: x + 18 * dx, y2: y + 18 * dy }); return; }
      const isLast = end === dimension.size, other = device + (isLast ? 1 - dimension.size : 1) * dimension.stride, [dx, dy] = step[number].map(Math.sign), length = end < cut[number] ? cell - 12 : 22;
      if (isLast && (dimension.shape === "line" || dimension.is_of_pairs)) return;
      const links = dimension.is_of_pairs ? [`${dimension.links[0]}${device}.${other}`, `${dimension.links[0]}${other}.${device}`] : [`${dimension.links[0]}${device}`, `${dimension.links[1]}${other}`];
      wire(chart, links, text, `${dimension.bandwidth}, to device ${other}`, { x1: x + 12 * dx, y1: y + 12 * dy, x2: x + length * dx, y2: y + length * dy });
    });
    for (const { device, x, y } of devices) circle(chart, device, x, y);
    return [chart, devices.length < network.devices ? `Shown: ${devices.length} of ${network.devices} devices.` : ""];
  }
  function linksOf(dimension, device) {
    const place = Math.floor(device / dimension.stride) % dimension.size;
    if (!dimension.is_of_pairs) return dimension.links.filter((_, number) => dimension.shape !== "line" || place !== (number ? 0 : dimension.size - 1)).map((name) => `${name}${device}`);
    const first = device - place * dimension.stride;
    return [...Array(dimension.size).keys()].filter((each) => each !== place).map((each) => `${dimension.links[0]}${device}.${first + each * dimension.stride}`);
  }
  async function redraw() {
    draw(); drawForm(); address();
    const mine = ++turn;
    clearTimeout(rest); leave(pending);
    whole = null; copied.ready();
    await placed;
    if (mine !== turn) return;
    address();
    const written = await post("/api/imperfect", marks);
    if (mine !== turn) return;
    const perfect = Object.fromEntries(Object.entries(state).filter(([, value]) => value !== "" && value !== undefined));
    const about = { ...perfect, ...(written.path ? { imperfect: written.path } : {}) };
    result.classList.add("stale");
    const answer = await ask("quick", about);
    // Marks can be made before the perfect cluster is answered.
    const compared = written.path && !base && !answer.error && !answer.code ? await ask("quick", perfect) : null;
    if (mine !== turn) return;
    base = compared?.view ?? base;
    result.classList.remove("stale");
    file.replaceChildren();
    if (answer.error || answer.code) { said.replaceChildren(); copied.hide(); }
    if (answer.error) return result.replaceChildren(h("div.error", { role: "alert" }, answer.error));
    if (answer.code) return result.replaceChildren(h("div.ask", {}, h("p", {}, "The step of ", h("code", {}, answer.code), " runs code on this machine. The Predict view asks for it."), h("button", { type: "button", onclick: () => go("predict", about) }, "Ask there")));
    if (!written.path) base = answer.view;
    drawnStep = { view: answer.view, isMarked: Boolean(written.path) };
    drawStep();
    if (written.path) file.replaceChildren(h("div.box", {}, h("h2", {}, "The file of these imperfections"), h("pre", { tabindex: "0" }, written.text), h("p", {}), h("button.main", { type: "button", onclick: () => go("predict", about) }, "Predict with them")));
    // Marks change no kernel: nothing is compiled here, and what is copied says so.
    const modelled = answer.is_last ? about : { ...about, fidelity: "fused" };
    copied.draw(modelled);
    rest = setTimeout(() => complete(pending, modelled, { isCompiled: false, isCurrent: () => mine === turn, then: (more) => { if (!more.error) whole = more; copied.ready(); } }), REST_MS);
  }
  function drawStep() {
    const more = base ? drawnStep.view.step_time_s / base.step_time_s - 1 : 0, isSlower = more > 5e-5;
    const change = base && drawnStep.isMarked ? h(isSlower ? "span.worse" : "span.note", { id: "cluster-change" }, isSlower ? `+${(100 * more).toFixed(1)} % to a perfect cluster` : "as on a perfect cluster") : h("span.note", {}, "on a perfect cluster");
    said.replaceChildren(h("span.title", {}, `Step of ${state.model}${state.mesh ? `, ${Object.entries(state.mesh).map((axis) => axis.join("=")).join(",")}` : ""}`), change, ...pinned.buttons(drawnStep.view.cards).filter(Boolean));
    result.replaceChildren(h("dl.cards", { id: "cluster-step" }, pinned.figures(drawnStep.view.cards)));
  }
  // The mesh that the model takes on these devices: marks wait for it.
  async function place() {
    const { model, cluster, node } = state;
    const { mesh = {} } = await ask("describe", { model, cluster, ...(node ? { node } : {}) });
    const used = Object.entries(mesh).filter(([, size]) => size > 1);
    if (used.length && !state.mesh && state.model === model && state.cluster === cluster) state = { ...state, mesh: Object.fromEntries(used) };
  }
  async function load() {
    drawForm();
    network = null; picture.replaceChildren(h("p.note", {}, "reading the system")); result.replaceChildren(); file.replaceChildren(); said.replaceChildren(); copied.hide();
    const mine = ++turn, answer = await ask("network", { cluster: state.cluster });
    if (mine !== turn) return;
    if (answer.error) return picture.replaceChildren(h("div.error", { role: "alert" }, answer.error));
    network = answer;
    placed = state.mesh ? null : place();
    redraw();
  }
  const numbers = (pairs = {}) => Object.fromEntries(Object.entries(pairs).map(([name, scale]) => [name, Number(scale)]));
  return {
    redraw: drawForm, show(given) {
      const { device, link, ...others } = given, isAsked = Object.keys(others).length, next = isAsked ? { ...FIRST, ...others } : state;
      const marked = isAsked ? { devices: numbers(device), links: numbers(link) } : marks;
      const isOther = !same([next, marked], [state, marks]);
      if (isOther) { if (network) before.add(asked()); state = next; marks = marked; base = null; }
      address();
      if (!network || isOther) load();
    },
  };
}
