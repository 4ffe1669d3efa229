// What the charts share: axes, intervals, tooltip, stepping by keyboard, legend.
Chart.defaults.animation = false;
Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
const MANY = 6; // beyond this number of models, intervals would hide the curves

// Shaded intervals along curves, whiskers at points, and the null band behind all.
const intervalsPlugin = {
  id: "intervals",
  beforeDatasetsDraw(chart) {
    const { ctx, chartArea: area, scales: { x, y } } = chart;
    ctx.save();
    ctx.beginPath();
    ctx.rect(area.left, area.top, area.width, area.height);
    ctx.clip();
    if (chart.nullBand?.length) fillBand(ctx, x, y, chart.nullBand, colour("--null"));
    for (const set of chart.data.datasets) {
      if (set.shade) for (const run of runs(set.data)) fillBand(ctx, x, y, run, set.shade);
      if (set.whiskers) {
        ctx.strokeStyle = set.whiskers;
        ctx.lineWidth = 1;
        ctx.beginPath();
        for (const point of set.data) whisker(ctx, x, y, point);
        ctx.stroke();
      }
    }
    ctx.restore();
  },
};

function runs(points) {
  const found = [[]];
  for (const point of points) {
    if (point.low === null || point.high === null || Number.isNaN(point.y)) found.push([]);
    else found.at(-1).push(point);
  }
  return found.filter((run) => run.length > 1);
}

function fillBand(ctx, x, y, points, fill) {
  ctx.fillStyle = fill;
  ctx.beginPath();
  for (const point of points) ctx.lineTo(x.getPixelForValue(point.x), y.getPixelForValue(point.low));
  for (const point of [...points].reverse()) {
    ctx.lineTo(x.getPixelForValue(point.x), y.getPixelForValue(point.high));
  }
  ctx.fill();
}

function whisker(ctx, x, y, point) {
  const [px, py] = [x.getPixelForValue(point.x), y.getPixelForValue(point.y)];
  if (point.low !== null && point.high !== null) {
    ctx.moveTo(px, y.getPixelForValue(point.low));
    ctx.lineTo(px, y.getPixelForValue(point.high));
  }
  if ((point.xLow ?? null) !== null && (point.xHigh ?? null) !== null) {
    ctx.moveTo(x.getPixelForValue(point.xLow), py);
    ctx.lineTo(x.getPixelForValue(point.xHigh), py);
  }
}

function axis(title, extra = {}) {
  return { type: "linear", title: { display: true, text: title }, ...extra };
}

// A chart whose points are {x, y, low, high, tip: [title, ...lines]}; y NaN is a gap.
function makeChart(id, scales, mode = { mode: "nearest", intersect: false }) {
  const canvas = byId(id);
  const chart = new Chart(canvas, {
    type: "line",
    data: { datasets: [] },
    options: {
      parsing: false, normalized: true, maintainAspectRatio: false, events: ["mousemove", "mouseout", "click", "touchstart"],
      interaction: mode, scales,
      plugins: { legend: { display: false }, tooltip: { enabled: false, external: tooltip } },
    },
    plugins: [intervalsPlugin],
  });
  canvas.addEventListener("mouseleave", hideTip);
  canvas.addEventListener("blur", hideTip);
  canvas.addEventListener("keydown", (event) => step(chart, event));
  return chart;
}

function tooltip({ chart, tooltip: model }) {
  if (!model.opacity || !model.dataPoints?.length) return hideTip();
  const entries = model.dataPoints.slice(0, 6).map((item) => item.raw.tip);
  const more = model.dataPoints.length - entries.length;
  if (more > 0) entries.push([`and ${more} more here`]);
  const box = chart.canvas.getBoundingClientRect();
  showTip(box.left + model.caretX, box.top + model.caretY, entries);
}

// Left and right walk along a curve, up and down from curve to curve.
function step(chart, event) {
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  const sets = chart.data.datasets;
  if (!moves[event.key] || !sets.length) return;
  event.preventDefault();
  const [down, right] = moves[event.key];
  const at = chart.at ?? { datasetIndex: 0, index: -1 };
  const within = (value, size) => Math.max(0, Math.min(value, size - 1));
  const datasetIndex = within(at.datasetIndex + down, sets.length);
  let index = within(at.index + right, sets[datasetIndex].data.length);
  const drawn = (i) => !Number.isNaN(sets[datasetIndex].data[i]?.y);
  while (!drawn(index) && index > 0 && index < sets[datasetIndex].data.length - 1) index += right || 1;
  chart.at = { datasetIndex, index };
  if (!drawn(index)) return;
  const { x, y } = chart.getDatasetMeta(datasetIndex).data[index];
  chart.tooltip.setActiveElements([chart.at], { x, y });
  chart.update();
}

// Axes hold whole intervals, not points alone, and 0 where `zero` is asked for.
function fitAxes(chart, datasets, nullBand, zero) {
  const points = datasets.flatMap((set) => set.data).filter((point) => !Number.isNaN(point.y));
  const { x, y } = chart.config.options.scales;
  const ends = (values) => {
    const known = values.filter((value) => value !== null && value !== undefined);
    return known.length ? [Math.min(...known), Math.max(...known)] : [undefined, undefined];
  };
  const up = [...points, ...nullBand].flatMap((point) => [point.y, point.low, point.high]);
  [y.suggestedMin, y.suggestedMax] = ends(zero ? [...up, 0] : up);
  const across = points.flatMap((point) => [point.xLow, point.xHigh]);
  [x.suggestedMin, x.suggestedMax] = ends(across);
}

function setCurves(chart, datasets, { nullBand = [], zero = true } = {}) {
  fitAxes(chart, datasets, nullBand, zero);
  chart.at = undefined;
  chart.tooltip.setActiveElements([], { x: 0, y: 0 });
  chart.nullBand = nullBand;
  chart.data.datasets = datasets;
  const [ink, lines] = [colour("--muted"), colour("--line")];
  for (const scale of Object.values(chart.config.options.scales)) {
    scale.ticks = { ...scale.ticks, color: ink };
    scale.title.color = ink;
    scale.grid = { color: lines };
    scale.border = { color: lines };
  }
  chart.update();
}

// How a model's curve looks; `quiet` is its dashed, hollow second curve.
function curveStyle(index, quiet = false) {
  const ink = colour(colourName(index));
  const many = slots.size > MANY;
  return {
    model: index, borderColor: ink, pointStyle: marker(index), pointBorderColor: ink,
    backgroundColor: quiet ? colour("--page") : ink, pointBackgroundColor: quiet ? colour("--page") : ink,
    borderWidth: many ? 1.25 : 2, borderDash: quiet ? [5, 4] : [], pointRadius: many ? 2.5 : 3.5,
    pointHoverRadius: 6, pointHitRadius: 8, shade: many ? null : faded(ink, quiet ? 0.1 : 0.18),
  };
}
const faded = (rgb, share) => rgb.replace(/^rgb\((.*)\)$/, `rgba($1, ${share})`);

// A small picture of a model's colour and marker.
const SHAPES = {
  circle: "M8 4.5a3.5 3.5 0 1 0 .01 0z", rect: "M4.8 4.8h6.4v6.4h-6.4z", triangle: "M8 4l4 7.2h-8z",
  rectRot: "M8 3.4l4.6 4.6-4.6 4.6-4.6-4.6z", crossRot: "M4.8 4.8l6.4 6.4M11.2 4.8l-6.4 6.4",
  star: "M4.8 4.8l6.4 6.4M11.2 4.8l-6.4 6.4M8 3.5v9M3.5 8h9", cross: "M8 3.5v9M3.5 8h9", dash: "M8 8h4.5",
};
function picture(shape, variable, line = true) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  svg.style.color = `var(${variable})`;
  for (const d of [...(line ? ["M0 8h16"] : []), SHAPES[shape]]) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", d);
    svg.append(path);
  }
  return svg;
}
const swatch = (index) => picture(marker(index), colourName(index));

const curveCharts = [];
function emphasise(index) {
  for (const chart of curveCharts) {
    for (const set of chart.data.datasets) {
      set.borderWidth = set.model === index ? 4 : slots.size > MANY ? 1.25 : 2;
    }
    chart.update();
  }
}

function drawLegends() {
  for (const legend of all("[data-legend]")) {
    legend.replaceChildren(...chosen().map((index) => {
      const chip = make("button", "", "chip");
      chip.type = "button";
      chip.title = "Take out of the charts";
      chip.append(swatch(index), make("span", DATA.models[index].name), make("span", "\u00d7", "cross"));
      chip.addEventListener("click", () => choose([index], false));
      chip.addEventListener("mouseenter", () => emphasise(index));
      chip.addEventListener("mouseleave", () => emphasise(-1));
      return chip;
    }));
    if (!slots.size) legend.append(make("span", "No model is chosen: choose rows of the table.", "small"));
  }
  const many = slots.size > MANY;
  for (const note of all("[data-bands]")) {
    note.textContent = many ? `Intervals are drawn for up to ${MANY} models; point at a curve to read its own.`
      : "Shaded: 95 % interval over images.";
  }
}

function listUndefined(id, lines) {
  byId(id).replaceChildren(...[...new Set(lines)].map((line) => make("li", line)));
}
