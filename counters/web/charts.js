// One chart per counter: history, the live number at its end, and the band of two standard errors around it.

import { change, compact, MINUTE, tick, when, whole } from "./format.js";

const POINTS = 400; // per counter; more than a screen shows apart
const LINE = 3; // of the series that are drawn; before it the edges of the band
const ERRORS = 2; // standard errors in the band, about 95 % confidence
const BEFORE = 43200; // seconds asked for beyond both edges, so that lines go on to them; old points are this far apart
const LEAST = 60; // seconds; the closest a zoom goes
const STEPS = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

const now = () => Date.now() / 1000;

// Colours are settled by the style sheet, for light and for dark; a canvas needs them spelled out.
function colours(element) {
  const probe = document.createElement("i");
  element.append(probe);
  const found = Object.fromEntries(["accent", "band", "grid", "dim"].map((name) => {
    probe.style.color = `var(--${name})`;
    return [name, getComputedStyle(probe).color];
  }));
  probe.remove();
  return found;
}

class Chart {
  constructor(card, charts) {
    this.name = card.dataset.counter;
    this.plot = card.querySelector(".plot");
    this.reading = card.querySelector(".reading");
    this.error = 0;
    this.data = [[], [], [], []];
    this.live = null; // [seconds, number], newer than the history
    this.charts = charts;
    this.paint = colours(this.plot);
    this.plot.addEventListener("keydown", (event) => this.press(event));
    this.plot.addEventListener("blur", () => this.leave());
    this.observer = new ResizeObserver(() => this.uplot?.setSize(this.size()));
    this.observer.observe(this.plot);
  }

  size() {
    return { width: this.plot.clientWidth, height: this.plot.clientHeight };
  }

  // Replace the history; `points` are the server's.
  set(points) {
    this.history = points;
    this.draw();
  }

  draw() {
    const { times = [], values = [] } = this.history ?? {};
    const live = this.live && this.live[0] > (times.at(-1) ?? 0) && !this.charts.past() ? this.live : null;
    const xs = live ? [...times, live[0]] : times;
    const ys = live ? [...values, live[1]] : values;
    const margin = ERRORS * this.error;
    this.data = [xs, ys.map((y) => y * (1 + margin)), ys.map((y) => Math.max(0, y * (1 - margin))), ys];
    this.plot.classList.toggle("sparse", xs.length < 2);
    if (xs.length < 2) {
      this.uplot?.destroy();
      this.uplot = null;
      this.summarise();
      return;
    }
    if (!this.uplot) this.uplot = new uPlot(this.options(), this.data, this.plot);
    else this.uplot.setData(this.data, false);
    const [min, max] = this.charts.window();
    this.uplot.setScale("x", { min, max });
    this.summarise();
  }

  options() {
    const paint = (name) => () => this.paint[name];
    const axis = { stroke: paint("dim"), font: "11px system-ui, sans-serif", ticks: { show: false } };
    const grid = { stroke: paint("grid"), width: 1 };
    return {
      ...this.size(),
      padding: [8, 20, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false },
        points: { size: (_, series) => (series === LINE ? 7 : 0), width: 0, fill: paint("accent") },
        bind: { dblclick: () => () => this.charts.reset() },
      },
      scales: { x: { time: true }, y: { range: (_, min, max) => padded(min, max) } },
      axes: [
        { ...axis, grid: { show: false }, space: apart, size: 26, gap: 6,
          values: (_, ticks, __, ___, step) => ticks.map((at) => tick(at, step)) },
        { ...axis, grid, space: 24, gap: 6, incrs: STEPS,
          size: (_, labels) => 12 + 6.4 * Math.max(3, ...(labels ?? []).map((label) => label.length)),
          values: (_, ticks, __, ___, step) => ticks.map((number) => compact(number, step)) },
      ],
      series: [
        {},
        { width: 0, points: { show: false } },
        { width: 0, points: { show: false } },
        { stroke: paint("accent"), width: 1.75, points: { show: false } },
      ],
      bands: [{ series: [1, 2], fill: paint("band") }],
      hooks: {
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width < 4) return;
          plot.setSelect({ left: 0, width: 0 }, false);
          this.charts.zoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
        }],
        setCursor: [() => this.summarise()],
      },
    };
  }

  // What is under the cursor; without one, what happened in the visible range.
  summarise() {
    const [xs, , , ys] = this.data;
    const index = this.uplot?.cursor.idx;
    const [min, max] = this.charts.window();
    let text = "";
    if (this.uplot && index != null && this.uplot.cursor.left >= 0) {
      text = `${when(xs[index], max - min)}: ${whole(ys[index])}`;
      this.plot.setAttribute("aria-valuenow", index);
    } else {
      const [first, last] = this.visible();
      if (last > first) {
        const [from, to] = [xs[first], xs[last]].map((at) => when(at, max - min));
        text = change(ys[last] - ys[first]) + (this.charts.past() ? ` from ${from} to ${to}` : ` since ${from}`);
      }
      this.plot.setAttribute("aria-valuenow", Math.max(0, xs.length - 1));
    }
    if (this.reading.textContent !== text) this.reading.textContent = text;
    this.plot.setAttribute("aria-valuemax", Math.max(0, xs.length - 1));
    this.plot.setAttribute("aria-valuetext", text || "no history yet");
  }

  // Indices of the first and the last point in the window.
  visible() {
    const [xs] = this.data;
    const [min, max] = this.charts.window();
    return [xs.findIndex((at) => at >= min), xs.findLastIndex((at) => at <= max)];
  }

  press(event) {
    if (!this.uplot || event.ctrlKey || event.metaKey || event.altKey) return;
    const [xs] = this.data;
    const [first, last] = this.visible();
    const at = this.uplot.cursor.left >= 0 ? this.uplot.cursor.idx ?? last : null;
    const step = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowLeft: () => this.point(Math.max(first, (at ?? last + step) - step)),
      ArrowRight: () => this.point(Math.min(last, (at ?? last) + step)),
      Home: () => this.point(first),
      End: () => this.point(last),
      "+": () => this.charts.scale(xs[at ?? last], 0.5),
      "-": () => this.charts.scale(xs[at ?? last], 2),
      Escape: () => this.charts.reset(),
    };
    if (moves[event.key]) {
      event.preventDefault();
      moves[event.key]();
    }
  }

  point(index) {
    const [xs, , , ys] = this.data;
    this.uplot.setCursor({ left: this.uplot.valToPos(xs[index], "x"), top: this.uplot.valToPos(ys[index], "y") });
  }

  leave() {
    this.uplot?.setCursor({ left: -10, top: -10 });
  }

  repaint() {
    this.paint = colours(this.plot);
    this.uplot?.redraw();
  }

  close() {
    this.observer.disconnect();
    this.uplot?.destroy();
  }
}

// Least pixels between labels of the time axis. Those with seconds are longer, and not worth it while those of
// whole minutes have room.
function apart(_, __, min, max, width) {
  const minute = (0.99 * MINUTE * width) / (max - min);
  return Math.max(64, Math.min(100, minute));
}

// A little air above and below, never below nothing, and never no height at all.
function padded(min, max) {
  if (min == null) return [0, 1];
  const air = Math.max((max - min) * 0.08, max * 1e-9, 1);
  return [Math.max(0, min - air), max + air];
}

// All charts show the same stretch of time.
export class Charts {
  constructor({ types, onZoom }) {
    this.types = types;
    this.onZoom = onZoom;
    this.charts = new Map();
    this.span = null; // seconds up to now; null: everything
    this.zoomed = null; // [from, to], seconds
    this.first = null; // where the history begins
    this.asked = 0;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const chart of this.charts.values()) chart.repaint();
    });
  }

  // Keep to the cards that are there.
  adopt(cards) {
    for (const [name, chart] of this.charts) {
      if (!cards.has(name) || !cards.get(name).contains(chart.plot)) {
        chart.close();
        this.charts.delete(name);
      }
    }
    for (const [name, card] of cards) {
      if (!this.charts.has(name)) this.charts.set(name, new Chart(card, this));
    }
  }

  window() {
    if (this.zoomed) return this.zoomed;
    const end = this.end ?? now();
    return [this.span === null ? Math.min(this.first ?? end - LEAST, end - LEAST) : end - this.span, end];
  }

  // Whether the window ends before the present.
  past() {
    return this.zoomed !== null && this.zoomed[1] < (this.end ?? now());
  }

  // The newest number of one counter, by the clock of the store.
  live(name, at, value, error) {
    const chart = this.charts.get(name);
    if (!chart) return;
    chart.error = error;
    chart.live = [at, value];
  }

  // The present, by the same clock: later than the newest number where the store does not answer.
  reach(at) {
    this.end = Math.max(this.end ?? 0, at);
    for (const chart of this.charts.values()) if (chart.history) chart.draw();
  }

  async load() {
    const [from, to] = this.window();
    const ask = new URLSearchParams({ max_points: POINTS });
    if (this.types) ask.set("types", this.types);
    // Rounded, so that all readers ask the same and the server answers once.
    const grain = Math.max(1, Math.floor((to - from) / 200));
    if (this.zoomed || this.span !== null) ask.set("from", Math.floor((from - BEFORE) / grain) * grain);
    if (this.past()) ask.set("to", Math.ceil((to + BEFORE) / grain) * grain);
    const number = ++this.asked;
    const answer = await fetch(`/api/v1/history?${ask}`, { cache: "no-cache" });
    if (!answer.ok || number !== this.asked) return;
    const { series } = await answer.json();
    const begins = Object.values(series).flatMap(({ times }) => times.slice(0, 1));
    if (!ask.has("from")) this.first = begins.length ? Math.min(...begins) : null;
    for (const [name, chart] of this.charts) chart.set(series[name]);
  }

  choose(span) {
    this.span = span;
    this.zoomed = null;
    this.onZoom(false);
    for (const chart of this.charts.values()) chart.leave();
    return this.load();
  }

  zoom(from, to) {
    const middle = (from + to) / 2, half = Math.max(LEAST, to - from) / 2;
    this.zoomed = [middle - half, Math.min(middle + half, this.end ?? now())];
    this.onZoom(true);
    return this.load();
  }

  scale(around, factor) {
    const [from, to] = this.window();
    this.zoom(around - (around - from) * factor, around + (to - around) * factor);
  }

  reset() {
    this.choose(this.span);
  }
}
