// Charts as SVG, drawn at the width there is: curves, and a confusion matrix.

const SPACE = "http://www.w3.org/2000/svg";
const CURVE_HEIGHT = 300;
const MOST_DOTS = 60;

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Draw now, and again whenever the width changes. */
function drawn(host, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (host.clientWidth && host.clientWidth !== width) {
      width = host.clientWidth;
      draw(width);
    }
  }).observe(host);
}

/** Return round numbers from 0 to the largest value, about as many as wanted. */
function ticksTo(largest, wanted, whole) {
  const raw = largest / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  let step = [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
  if (whole) step = Math.max(1, Math.round(step));
  const count = Math.floor(largest / step + 1e-9);
  return Array.from({ length: count + 1 }, (_, i) => i * step);
}

export function scaled(number, units) {
  let place = 0;
  for (; Math.abs(number) >= 999.5 && place < units.length - 1; place++) number /= 1000;
  return `${Number(number.toPrecision(3))} ${units[place]}`.trim();
}

/** Draw accuracies. Each series has a class, a label and points with x, y and text. */
export function curves(host, series, { label, tick, whole }) {
  const points = series.flatMap((each) => each.points);
  const readout = document.createElement("p");
  readout.className = "readout";
  const area = document.createElement("div");
  host.replaceChildren(area, readout);
  drawn(host, (width) => {
    const left = 44, right = width - 12, top = 12, bottom = CURVE_HEIGHT - 40;
    const mostX = Math.max(...points.map((point) => point.x)) || 1;
    const best = Math.max(...points.map((point) => point.y));
    const yTicks = ticksTo(best > 0.5 ? 1 : Math.max(best * 1.1, 1e-3), 5);
    const mostY = Math.max(yTicks.at(-1), best);
    const x = (value) => left + (value / mostX) * (right - left);
    const y = (value) => bottom - (value / mostY) * (bottom - top);
    const chart = svg("svg", { width, height: CURVE_HEIGHT, role: "img", "aria-label": `accuracy against ${label}` });
    for (const value of yTicks) {
      chart.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }));
      const text = `${Number((100 * value).toPrecision(6))} %`;
      chart.append(svg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, text));
    }
    for (const value of ticksTo(mostX, width < 500 ? 3 : 6, whole)) {
      chart.append(svg("text", { x: x(value), y: bottom + 18, "text-anchor": "middle" }, tick(value)));
    }
    chart.append(svg("text", { x: right, y: bottom + 36, "text-anchor": "end" }, label));
    const tuned = series[0].points.find((point) => point.phase === "finetune");
    if (tuned && series.length < 3) {
      chart.append(svg("line", { class: "mark", x1: x(tuned.x), x2: x(tuned.x), y1: top, y2: bottom }));
      chart.append(svg("text", { x: x(tuned.x) + 6, y: bottom - 8 }, "fine-tuning"));
    }
    for (const each of series) {
      const path = each.points.map((point, i) => `${i ? "L" : "M"}${x(point.x).toFixed(1)} ${y(point.y).toFixed(1)}`);
      chart.append(svg("path", { class: `curve ${each.kind}`, d: path.join("") }));
      if (each.points.length <= MOST_DOTS) {
        for (const point of each.points) {
          chart.append(svg("circle", { class: `dot ${each.kind}`, cx: x(point.x), cy: y(point.y), r: 3.5 }));
        }
      }
    }
    const cross = svg("line", { class: "cross", y1: top, y2: bottom, visibility: "hidden" });
    const ring = svg("circle", { class: "dot", r: 5.5, visibility: "hidden" });
    chart.append(cross, ring);
    const show = (series, point) => {
      cross.setAttribute("x1", x(point.x));
      cross.setAttribute("x2", x(point.x));
      ring.setAttribute("cx", x(point.x));
      ring.setAttribute("cy", y(point.y));
      ring.setAttribute("class", `dot ${series.kind}`);
      for (const element of [cross, ring]) element.setAttribute("visibility", "visible");
      readout.textContent = point.text;
    };
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect();
      const far = (point) => Math.hypot(x(point.x) - event.clientX + box.left, 0.3 * (y(point.y) - event.clientY + box.top));
      const pairs = series.flatMap((each) => each.points.map((point) => [each, point]));
      show(...pairs.reduce((one, other) => (far(one[1]) <= far(other[1]) ? one : other)));
    });
    area.replaceChildren(chart);
    const last = series[0].points.at(-1);
    if (last) readout.textContent = last.text;
  });
}

const MOST_NAMED = 20; // classes whose names and numbers fit

/** Draw counts [truth, prediction, images] of classes; `say` gets the cell under the pointer. */
export function matrix(host, names, counts, say) {
  const size = names.length;
  const named = size <= MOST_NAMED;
  const totals = new Array(size).fill(0);
  const cells = new Map();
  for (const [truth, guess, images] of counts) {
    totals[truth] += images;
    cells.set(truth * size + guess, images);
  }
  drawn(host, (width) => {
    const longest = Math.max(...names.map((name) => name.length));
    const left = named ? Math.min(7 * longest + 16, 130, width / 3) : 18;
    const most = Math.floor((left - 14) / 7); // letters of a name
    const top = named && longest > 3 ? left : 22;
    const cell = Math.min((width - left - 2) / size, 44);
    const side = cell * size;
    const chart = svg("svg", { width: left + side + 2, height: top + side + 2, role: "img", "aria-label": "confusion matrix" });
    const at = (truth, guess) => ({ x: left + guess * cell, y: top + truth * cell });
    for (const [truth, guess, images] of counts) {
      // Rare confusions are to be seen, too: the root of the share of the class.
      const share = Math.sqrt(images / totals[truth]);
      const kind = truth === guess ? "right" : "wrong";
      chart.append(svg("rect", { class: kind, ...at(truth, guess), width: cell, height: cell, "fill-opacity": (0.08 + 0.92 * share).toFixed(3) }));
      if (named && cell >= 18) {
        const { x, y } = at(truth, guess);
        const strong = share > 0.75 ? " strong" : "";
        chart.append(svg("text", { class: `cell${strong}`, x: x + cell / 2, y: y + cell / 2 }, String(images)));
      }
    }
    chart.append(svg("rect", { class: "frame", x: left, y: top, width: side, height: side }));
    if (named) {
      names.forEach((name, i) => {
        const short = name.length > most ? `${name.slice(0, most - 1)}…` : name;
        chart.append(svg("text", { x: left - 8, y: top + (i + 0.5) * cell + 4, "text-anchor": "end" }, short));
        const x = left + (i + 0.5) * cell;
        const turned = { x: 8 - top, y: x + 4, transform: "rotate(-90)" };
        chart.append(svg("text", longest > 3 ? turned : { x, y: top - 8, "text-anchor": "middle" }, short));
      });
    } else {
      chart.append(svg("text", { x: left, y: top - 6 }, "predicted class →"));
      chart.append(svg("text", { x: -top, y: left - 6, transform: "rotate(-90)", "text-anchor": "end" }, "← true class"));
    }
    const picked = svg("rect", { class: "picked", width: cell, height: cell, visibility: "hidden" });
    chart.append(picked);
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect();
      const guess = Math.floor((event.clientX - box.left - left) / cell);
      const truth = Math.floor((event.clientY - box.top - top) / cell);
      if (guess < 0 || truth < 0 || guess >= size || truth >= size) return;
      for (const [name, value] of Object.entries(at(truth, guess))) picked.setAttribute(name, value);
      picked.setAttribute("visibility", "visible");
      say(names[truth], names[guess], cells.get(truth * size + guess) ?? 0, totals[truth]);
    });
    host.replaceChildren(chart);
  });
}
