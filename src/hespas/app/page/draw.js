// Charts: every one says in words what it shows, and a table beside it has the figures.
import { h } from "/files/page.js";

const SPACE = "http://www.w3.org/2000/svg";
export function s(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElementNS(SPACE, tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value); else element.setAttribute(key, value);
  }
  element.append(...children.flat().filter(Boolean));
  return element;
}
const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

// Colours of what bounds a step, the same in every answer; other parts take theirs in turn.
const COLOURS = { "arithmetic": 0, "memory": 1, "launches": 2, "exposed communication": 3, "host transfers": 4, "stragglers": 4, "other": 5 };
const colour = (part, number) => `k${COLOURS[part.name] ?? Math.min(number, 5)}`;

// A whole in parts, with a legend that has the figures.
export function stack(parts, label, limit) {
  const shown = parts.filter((part) => part.share > 0.0005);
  const bar = h("div.stack", { role: "img", "aria-label": `${label}: ${shown.map((part) => `${part.name} ${part.text}`).join(", ")}` },
    shown.map((part, number) => h(`i.${colour(part, number)}`, { "width%": 100 * part.share, title: `${part.name}: ${part.text}` })));
  const line = limit === undefined || limit === null ? null : h("div.limit", { "aria-hidden": "true" }, h("span", { "left%": 100 * limit }, "limit"));
  const legend = h("ul.legend", {}, shown.map((part, number) => h("li", {}, h(`i.${colour(part, number)}`), `${part.name} `, h("b", {}, part.text), ` ${percent(part.share)}`)));
  return [bar, line, legend];
}
export function bars(parts, label) {
  const most = Math.max(...parts.map((part) => part.share), 1e-9);
  const kind = parts.some((part) => part.name.length > 12) ? "dl.bars" : "dl.bars.short";
  return h(kind, { "aria-label": label }, parts.map((part) => h("div", { title: part.note || "" }, h("dt", {}, part.name),
    h("dd.bar", { "aria-hidden": "true" }, h("i", { "width%": (100 * part.share) / most })), h("dd.value", {}, `${part.text}  `, h("span.note", {}, percent(part.share))))));
}
export function ticks(least, most, count = 5) {
  const rough = (most - least || 1) / count, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((each) => each >= rough);
  const found = [];
  for (let value = Math.ceil(least / step) * step; value <= most + step * 1e-6; value += step) found.push(value);
  return found;
}
export const short = (value, digits = 3) => {
  const size = Math.abs(value);
  for (const [unit, factor] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (size >= factor) return `${+(value / factor).toPrecision(digits)} ${unit}`;
  if (size && size < 0.1) return `${+(value * 1e3).toPrecision(digits)} m`;
  return String(+value.toPrecision(digits));
};
const L = 62, R = 16, T = 14, B = 44, WIDE = 800, NARROW = 440;
function frame(label, xs, ys, xName, yName, { W, fromZero = false, xUnit = "" }) {
  const H = Math.min(320, 0.66 * W);
  const pad = (values) => { const least = Math.min(...values), most = Math.max(...values), gap = (most - least || most || 1) * 0.06; return [fromZero ? 0 : Math.max(0, least - gap), most + gap]; };
  const [x0, x1] = pad(xs), [y0, y1] = pad(ys);
  const x = (value) => L + ((value - x0) / (x1 - x0)) * (W - L - R), y = (value) => H - B - ((value - y0) / (y1 - y0)) * (H - T - B);
  const chart = s("svg.chart", { viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": label });
  for (const value of ticks(x0, x1)) chart.append(s("line.grid", { x1: x(value), x2: x(value), y1: T, y2: H - B }), s("text", { x: x(value), y: H - B + 16, "text-anchor": "middle" }, `${short(value)}${xUnit}`));
  for (const value of ticks(y0, y1)) chart.append(s("line.grid", { x1: L, x2: W - R, y1: y(value), y2: y(value) }), s("text", { x: L - 8, y: y(value) + 4, "text-anchor": "end" }, short(value)));
  chart.append(s("line.axis", { x1: L, x2: W - R, y1: H - B, y2: H - B }), s("line.axis", { x1: L, x2: L, y1: T, y2: H - B }));
  chart.append(s("text", { x: (L + W - R) / 2, y: H - 8, "text-anchor": "middle" }, xName), s("text", { x: 14, y: (T + H - B) / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${(T + H - B) / 2})` }, yName));
  return { chart, x, y, H };
}
// Points with a front of those that none beats in both.
export function scatter({ points, xName, xUnit = "", yName, label, limit, choose }) {
  if (!points.length) return h("p.note", {}, "no candidate yet");
  const { chart, x, y, H } = frame(label, [...points.map((point) => point.x), ...(limit ? [limit] : [])], points.map((point) => point.y), xName, yName, { W: WIDE, xUnit });
  if (limit) chart.append(s("line.limit-line", { x1: x(limit), x2: x(limit), y1: T, y2: H - B }), s("text", { x: x(limit) - 4, y: T + 10, "text-anchor": "end" }, "device memory"));
  const front = points.filter((one) => !one.out && !points.some((other) => !other.out && other.x <= one.x && other.y >= one.y && (other.x < one.x || other.y > one.y))).sort((a, b) => a.x - b.x);
  if (front.length > 1) chart.append(s("polyline.front", { points: front.map((point) => `${x(point.x)},${y(point.y)}`).join(" ") }));
  for (const point of points) {
    const kind = point.out ? ".out" : front.includes(point) ? ".best" : "";
    const dot = s(`circle.dot${kind}`, { cx: x(point.x), cy: y(point.y), r: kind === ".best" ? 6 : 4.5, onclick: () => choose(point) }, s("title", {}, point.text));
    chart.append(dot);
  }
  return chart;
}
export function lines({ series, xName, yName, label, mark }) {
  const all = series.flatMap((each) => each.points);
  const { chart, x, y, H } = frame(label, all.map((point) => point.x), all.map((point) => point.y), xName, yName, { W: NARROW, fromZero: true });
  if (mark) chart.append(s("line.limit-line", { x1: x(mark), x2: x(mark), y1: T, y2: H - B }), s("text", { x: x(mark) + 4, y: T + 10 }, "this load"));
  series.forEach((each, number) => {
    chart.append(s(`polyline.line${number}`, { points: each.points.map((point) => `${x(point.x)},${y(point.y)}`).join(" ") }));
    for (const point of each.points) chart.append(s(`circle.mark${number}`, { cx: x(point.x), cy: y(point.y), r: 3.5 }, s("title", {}, `${each.name}: ${short(point.y)} at ${short(point.x)}`)));
  });
  return chart;
}
