"use strict";
// Draws the charts of a page, and makes its tables sort and filter. Nothing is fetched.
(() => {
  const root = document.documentElement;
  const specifications = JSON.parse(document.getElementById("charts").textContent);
  const views = new Map();
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function themed() {
    const style = getComputedStyle(root);
    const color = (name) => style.getPropertyValue(name).trim();
    const [fore, faint, line] = [color("--fore"), color("--faint"), color("--line")];
    return {
      background: null,
      font: "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif",
      axis: { labelColor: fore, titleColor: fore, domainColor: faint, tickColor: faint,
              gridColor: line, labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500,
              labelLimit: 260 },
      legend: { labelColor: fore, titleColor: fore, labelFontSize: 12, titleFontSize: 12,
                orient: "bottom", labelLimit: 280, columns: root.clientWidth < 560 ? 1 : 4 },
      title: { color: fore },
      header: { labelColor: fore, titleColor: fore },
      text: { color: fore },
      rule: { color: faint },
      view: { stroke: null },
    };
  }

  function choose(theme) {
    root.dataset.theme = theme;
    const button = document.getElementById("theme");
    button.textContent = theme === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(theme === "dark"));
  }

  // A chart may be too wide for its place: axes' labels leave less on a narrow screen.
  function fitted(specification) {
    if (root.clientWidth >= 560) return specification;
    const copy = structuredClone(specification);
    copy.config = { axis: { labelLimit: 110 } };
    return copy;
  }

  async function draw() {
    root.dataset.drawn = "0";
    const config = themed();
    let drawn = 0;
    for (const [name, specification] of Object.entries(specifications)) {
      const previous = views.get(name);
      if (previous) previous.finalize();
      const result = await vegaEmbed(`#${name}`, fitted(specification), {
        actions: false, ast: true, renderer: "svg", config,
        tooltip: { theme: root.dataset.theme === "dark" ? "dark" : "light" },
      });
      views.set(name, result.view);
      if (specification.usermeta && specification.usermeta.drill) drill(name, result.view);
      drawn += 1;
    }
    root.dataset.drawn = String(drawn);
  }

  // A click on a block makes it as wide as the chart.
  function drill(name, view) {
    const whole = document.querySelector(`button.whole[data-chart="${name}"]`);
    const first = [view.signal("low"), view.signal("high")];
    const show = (low, high) => {
      view.signal("low", low).signal("high", high).runAsync();
      whole.hidden = low === first[0] && high === first[1];
    };
    view.addEventListener("click", (event, item) => {
      if (item && item.datum && item.datum.x1 > item.datum.x0) show(item.datum.x0, item.datum.x1);
    });
    whole.onclick = () => show(...first);
    whole.hidden = true;
  }

  function value(row, column) {
    const cell = row.cells[column];
    const text = cell.dataset.sort ?? cell.textContent;
    const number = Number(text);
    return text !== "" && !Number.isNaN(number) ? number : text;
  }

  // Numbers before texts, and what has no value last, whichever way.
  function compared(a, b, sign) {
    if (a === "" || b === "") return (a === "") - (b === "");
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return sign * (typeof a === "number" ? a - b : a.localeCompare(b));
  }

  function sortable(table) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows];
        rows.sort((a, b) => compared(value(a, column), value(b, column), down ? -1 : 1));
        body.append(...rows);
      });
    });
  }

  function filtered(place) {
    const input = place.querySelector("input[type=search]");
    if (!input) return;
    const rows = [...place.querySelectorAll("tbody tr")];
    const count = place.querySelector("output");
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
    });
  }

  document.querySelectorAll("table").forEach(sortable);
  document.querySelectorAll(".table").forEach(filtered);
  document.getElementById("theme").addEventListener("click", () => {
    choose(root.dataset.theme === "dark" ? "light" : "dark");
    draw();
  });
  dark.addEventListener("change", (event) => { choose(event.matches ? "dark" : "light"); draw(); });
  choose(dark.matches ? "dark" : "light");
  draw();
})();
