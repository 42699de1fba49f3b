#include "dovetail/report/page.h"

namespace dovetail::report {

const std::string_view kReportScript = R"js(
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const view = { axis: 0, zoom: null, hover: null, smoothing: 0.8 };  // shared by all charts
const axes = [
  { name: "step", format: x => Math.round(x).toLocaleString("en") },
  { name: data.unit + "s", format: x => short(x) },
  { name: "time", format: x => x < 1 / 60 ? (x * 3600).toFixed(1) + " s" : x < 1 ? (x * 60).toFixed(1) + " min" : x.toFixed(2) + " h" },
];

// `extra` digits tell the marks of a narrow axis apart.
function short(v, extra = 0) {
  const size = Math.abs(v);
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit) return trim(v / unit, extra) + " " + name;
  }
  return trim(v, extra);
}
function trim(v, extra = 0) {
  const digits = Math.abs(v) >= 100 ? 0 : Math.abs(v) >= 10 ? 1 : 2;
  return String(Number(v.toFixed(digits + extra)));
}
function labels(values, format) {
  for (let extra = 0; ; extra++) {
    const texts = values.map(v => format(v, extra));
    if (extra === 4 || new Set(texts).size === texts.length) return texts;
  }
}
const formats = {
  number: (v, extra = 0) => v === 0 ? "0" : Math.abs(v) >= 1e5 || Math.abs(v) < 1e-3 ? v.toExponential(2 + extra) : String(Number(v.toPrecision(5 + extra))),
  small: v => v === 0 ? "0" : Math.abs(v) < 0.01 ? v.toExponential(2).replace(/\.?0+e/, "e") : String(Number(v.toPrecision(4))),
  count: short,
  percent: (v, extra) => trim(v, extra) + " %",
  bytes: (v, extra) => short(v, extra) + "B",
};

const color = name => getComputedStyle(root).getPropertyValue(name).trim();
const element = (tag, attributes = {}, ...children) => {
  const e = Object.assign(document.createElement(tag), attributes);
  e.append(...children);
  return e;
};

// Mean with weights that fall by `weight` per unit of distance on both sides. It does not lag behind a falling loss.
// The unit is a 500th of the run, so that a slider looks alike on curves of any length, whole or thinned.
// Short runs stay as they are.
function smooth(points, weight) {
  const n = points.length, unit = (n > 1 ? points[n - 1][0] - points[0][0] : 1) / 500;
  const sum = new Float64Array(n), mass = new Float64Array(n);
  const pass = indices => {
    let s = 0, m = 0, last = null;
    for (const i of indices) {
      const keep = last === null ? 0 : Math.pow(weight, Math.abs(points[i][0] - last) / unit);
      last = points[i][0];
      s *= keep;
      m *= keep;
      sum[i] += s;
      mass[i] += m;
      s += points[i][3];
      m += 1;
    }
  };
  const forward = [...points.keys()];
  pass(forward);
  pass(forward.reverse());
  return points.map((p, i) => (sum[i] + p[3]) / (mass[i] + 1));
}

// About `count` round values from low to high: 1, 2 or 5 times a power of ten.
// A log axis has powers of ten, or finer marks if few fit.
function ticks(low, high, count, log) {
  if (log) {
    const decades = Math.log10(high / low), marks = decades > 4 ? [1] : decades > 1.2 ? [1, 2, 5] : null;
    if (marks) {
      const out = [];
      for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
        for (const m of marks) { const t = m * Math.pow(10, e); if (t >= low && t <= high) out.push(t); }
      }
      const every = Math.max(1, Math.ceil(out.length / (count + 2)));
      return out.filter((_, i) => i % every === 0);
    }
  }
  const raw = (high - low) / Math.max(count, 1), power = Math.pow(10, Math.floor(Math.log10(raw))), share = raw / power;
  const step = (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10) * power;
  const out = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-9; t += step) out.push(Math.abs(t) < step * 1e-9 ? 0 : t);
  return out;
}

class Chart {
  constructor(spec, index) {
    this.spec = spec;
    this.log = spec.scale === "log";
    this.canvas = element("canvas", { tabIndex: 0 });
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", spec.title);
    this.tip = element("div", { className: "tip" });
    this.toggle = element("button", { textContent: "log", title: "logarithmic axis", onclick: () => { this.log = !this.log; this.draw(); } });
    const legend = element("div", { className: "legend" });
    spec.series.forEach((s, i) => {
      const item = element("span", { textContent: s.name });
      item.style.setProperty("--mark", `var(--c${i})`);
      if (spec.series.length > 1) legend.append(item);
    });
    const top = element("div", { className: "top" }, element("h3", { textContent: spec.title }), legend, this.toggle);
    this.box = element("section", { className: index === 0 ? "chart wide" : "chart" }, top, this.canvas, this.tip);
    this.listen();
  }

  listen() {
    const c = this.canvas;
    c.addEventListener("pointermove", e => {
      if (this.drag !== undefined) this.dragTo = e.offsetX;
      hoverAt(this.toX(e.offsetX), this);
    });
    c.addEventListener("pointerleave", () => { if (this.drag === undefined) hoverAt(null, this); });
    c.addEventListener("pointerdown", e => { this.drag = this.dragTo = e.offsetX; c.setPointerCapture(e.pointerId); });
    c.addEventListener("pointerup", () => {
      const [a, b] = [this.drag, this.dragTo].sort((x, y) => x - y);
      this.drag = undefined;
      if (b - a > 6) view.zoom = [this.toX(a), this.toX(b)];
      drawAll();
    });
    c.addEventListener("pointercancel", () => { this.drag = undefined; drawAll(); });
    c.addEventListener("dblclick", () => { view.zoom = null; drawAll(); });
  }

  toX(pixel) {
    const [low, high] = this.range, share = (pixel - this.left) / (this.width - this.left - this.right);
    return low + Math.min(1, Math.max(0, share)) * (high - low);
  }
  px(x) { return this.left + (x - this.range[0]) / (this.range[1] - this.range[0] || 1) * (this.width - this.left - this.right); }
  py(y) {
    const [low, high] = this.domain, f = this.log ? Math.log : v => v;
    return this.height - this.bottom - (f(y) - f(low)) / (f(high) - f(low) || 1) * (this.height - this.bottom - this.top);
  }

  // Curves on the chosen axis; a log axis has no place for what is not positive.
  prepare() {
    const axis = view.axis, visible = p => p[axis] !== null && (!this.log || p[3] > 0);
    this.curves = this.spec.series.map((s, i) => {
      const points = s.points.filter(visible);
      return { ...s, points, color: `--c${i}`, smooth: s.style === "noisy" && view.smoothing > 0 ? smooth(points, view.smoothing) : null };
    });
    this.range = view.zoom ?? fullRange();
    let low = Infinity, high = -Infinity;
    for (const curve of this.curves) {
      curve.points.forEach((p, i) => {
        if (p[axis] < this.range[0] || p[axis] > this.range[1]) return;
        for (const y of curve.smooth ? [p[3], curve.smooth[i]] : [p[3]]) { low = Math.min(low, y); high = Math.max(high, y); }
      });
    }
    if (low > high) [low, high] = this.log ? [0.1, 1] : [0, 1];
    if (low === high) { const d = Math.abs(low) * 0.1 || 1; low -= this.log ? low / 2 : d; high += d; }
    const pad = this.log ? Math.pow(high / low, 0.04) : (high - low) * 0.05;
    const zeroBased = !this.log && low >= 0 && low < 0.35 * high;
    this.domain = this.log ? [low / pad, high * pad] : [zeroBased ? 0 : low - pad, high + pad];
  }

  draw() {
    const ratio = window.devicePixelRatio || 1, box = this.canvas.getBoundingClientRect();
    if (box.width === 0) return;
    Object.assign(this, { width: box.width, height: box.height, right: 10, top: 8, bottom: 24 });
    this.canvas.width = Math.round(box.width * ratio);
    this.canvas.height = Math.round(box.height * ratio);
    const g = this.g = this.canvas.getContext("2d");
    g.scale(ratio, ratio);
    g.font = "12px system-ui, sans-serif";
    this.prepare();
    this.toggle.setAttribute("aria-pressed", this.log);
    this.drawGrid();
    g.save();
    g.beginPath();
    g.rect(this.left, 0, this.width - this.left - this.right, this.height - this.bottom + 1);
    g.clip();
    if (this.spec === data.charts[0]) this.drawSkipped();
    for (const curve of this.curves) this.drawCurve(curve);
    g.restore();
    this.drawPointer();
  }

  drawGrid() {
    const g = this.g, format = formats[this.spec.format];
    const rows = ticks(this.domain[0], this.domain[1], this.height / 55, this.log);
    const texts = labels(rows, format);
    this.left = Math.max(38, ...texts.map(text => g.measureText(text).width + 12));
    const columns = ticks(this.range[0], this.range[1], (this.width - this.left) / 110, false);
    g.strokeStyle = color("--grid");
    g.fillStyle = color("--soft");
    g.lineWidth = 1;
    g.textBaseline = "middle";
    g.textAlign = "right";
    rows.forEach((t, i) => {
      const y = Math.round(this.py(t)) + 0.5;
      line(g, this.left, y, this.width - this.right, y);
      g.fillText(texts[i], this.left - 8, y);
    });
    g.textBaseline = "top";
    for (const t of columns) {
      const x = Math.round(this.px(t)) + 0.5, text = axes[view.axis].format(t), half = g.measureText(text).width / 2;
      line(g, x, this.top, x, this.height - this.bottom);
      g.textAlign = x + half > this.width ? "right" : "center";
      g.fillText(text, g.textAlign === "right" ? this.width : x, this.height - this.bottom + 7);
    }
    g.strokeStyle = color("--line");
    line(g, this.left, this.height - this.bottom + 0.5, this.width - this.right, this.height - this.bottom + 0.5);
  }

  drawCurve(curve) {
    const g = this.g, axis = view.axis;
    const path = value => {
      g.beginPath();
      curve.points.forEach((p, i) => g.lineTo(this.px(p[axis]), this.py(value(p, i))));
      g.stroke();
    };
    g.strokeStyle = g.fillStyle = color(curve.color);
    g.lineJoin = "round";
    g.globalAlpha = curve.smooth ? 0.28 : 1;
    g.lineWidth = curve.smooth ? 1 : 1.7;
    path(p => p[3]);
    g.globalAlpha = 1;
    if (curve.smooth) { g.lineWidth = 1.9; path((p, i) => curve.smooth[i]); }
    if (curve.style === "points" || curve.points.length === 1) {
      const radius = curve.points.length > 80 ? 1.6 : 3;
      for (const p of curve.points) { g.beginPath(); g.arc(this.px(p[axis]), this.py(p[3]), radius, 0, 7); g.fill(); }
    }
  }

  drawSkipped() {
    if (view.axis !== 0) return;
    this.g.fillStyle = color("--bad");
    for (const step of data.skipped_steps) this.g.fillRect(this.px(step) - 1, this.height - this.bottom - 8, 2, 8);
  }

  drawPointer() {
    const g = this.g;
    if (this.drag !== undefined) {
      g.fillStyle = color("--accent");
      g.globalAlpha = 0.14;
      g.fillRect(Math.min(this.drag, this.dragTo), this.top, Math.abs(this.dragTo - this.drag), this.height - this.bottom - this.top);
      g.globalAlpha = 1;
    }
    this.tip.style.display = "none";
    if (view.hover === null || view.hover.x < this.range[0] || view.hover.x > this.range[1]) return;
    g.strokeStyle = color("--soft");
    g.lineWidth = 1;
    g.setLineDash([3, 3]);
    line(g, this.px(view.hover.x), this.top, this.px(view.hover.x), this.height - this.bottom);
    g.setLineDash([]);
    const rows = [];
    for (const curve of this.curves) {
      const i = nearest(curve.points, view.hover.x);
      if (i < 0) continue;
      const p = curve.points[i], y = curve.smooth ? curve.smooth[i] : p[3];
      g.fillStyle = color(curve.color);
      g.beginPath();
      g.arc(this.px(p[view.axis]), this.py(y), 3.5, 0, 7);
      g.fill();
      rows.push({ curve, p, y });
    }
    if (view.hover.chart === this && rows.length > 0) this.showTip(rows);
  }

  showTip(rows) {
    const format = formats[this.spec.format], at = rows[0].p;
    const where = ["step " + at[0].toLocaleString("en")];
    if (at[1] !== null) where.push(`${short(at[1])} ${axes[1].name}`);
    if (at[2] !== null) where.push(axes[2].format(at[2]));
    this.tip.replaceChildren(element("div", { className: "at", textContent: where.join(" · ") }));
    for (const { curve, p, y } of rows) {
      const dot = element("i");
      dot.style.background = color(curve.color);
      const smoothed = curve.smooth ? `  (smoothed ${format(y)})` : "";
      const step = p[0] === at[0] ? "" : `  at step ${p[0].toLocaleString("en")}`;
      this.tip.append(element("div", {}, dot, `${curve.name} ${format(p[3])}${smoothed}${step}`));
    }
    this.tip.style.display = "block";
    const x = this.px(view.hover.x) + this.canvas.offsetLeft, flip = x + this.tip.offsetWidth + 24 > this.box.clientWidth;
    this.tip.style.left = (flip ? Math.max(4, x - this.tip.offsetWidth - 12) : x + 12) + "px";
    this.tip.style.top = this.canvas.offsetTop + 10 + "px";
  }
}

function line(g, x0, y0, x1, y1) { g.beginPath(); g.moveTo(x0, y0); g.lineTo(x1, y1); g.stroke(); }

// Index of the point nearest to x on the chosen axis, by bisection; -1 for no points.
function nearest(points, x) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (points[middle][view.axis] < x) low = middle; else high = middle; }
  return high < 0 ? -1 : Math.abs(points[low][view.axis] - x) <= Math.abs(points[high][view.axis] - x) ? low : high;
}

function fullRange() {
  let low = Infinity, high = -Infinity;
  for (const chart of data.charts) for (const s of chart.series) for (const p of s.points) {
    if (p[view.axis] !== null) { low = Math.min(low, p[view.axis]); high = Math.max(high, p[view.axis]); }
  }
  return low < high ? [low, high] : low === high ? [low - 0.5, low + 0.5] : [0, 1];
}

const charts = data.charts.map((spec, i) => new Chart(spec, i));
let due = false;
function drawAll() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => { due = false; charts.forEach(c => c.draw()); });
}
function hoverAt(x, chart) { view.hover = x === null ? null : { x, chart }; drawAll(); }

document.getElementById("charts").append(...charts.map(c => c.box));
const slider = document.getElementById("smoothing");
slider.addEventListener("input", () => { view.smoothing = Number(slider.value); slider.nextElementSibling.value = slider.value; drawAll(); });
document.querySelectorAll("[data-axis]").forEach(button => button.addEventListener("click", () => {
  Object.assign(view, { axis: Number(button.dataset.axis), zoom: null, hover: null });
  document.querySelectorAll("[data-axis]").forEach(b => b.setAttribute("aria-pressed", b === button));
  drawAll();
}));
document.getElementById("reset").addEventListener("click", () => { view.zoom = null; drawAll(); });
document.querySelectorAll(".command button").forEach(button => button.addEventListener("click", () => {
  navigator.clipboard?.writeText(button.previousElementSibling.textContent).then(() => { button.textContent = "copied"; });
}));

const dark = matchMedia("(prefers-color-scheme: dark)");
function setTheme(theme) { root.dataset.theme = theme; drawAll(); }
setTheme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
document.getElementById("theme").addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));
new ResizeObserver(drawAll).observe(document.getElementById("charts"));
)js";

}  // namespace dovetail::report
