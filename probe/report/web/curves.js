// Curves over depth and over alpha of the chosen models.
const KINDS = { rpi: "under RPI", clean: "clean" };
const option = (name) => document.querySelector(`input[name="${name}"]:checked`).value;

function depthPoints(index, kind, relative) {
  const model = DATA.models[index];
  const last = Math.max(1, model.layers.length - 1);
  return model.layers.map((layer, place) => {
    const point = layer[kind];
    const shown = point.value !== null;
    return {
      x: relative ? place / last : layer.layer,
      y: shown ? point.value : NaN, low: point.low, high: point.high,
      band: point.null_low === null ? null : [point.null_low, point.null_high],
      tip: shown ? [
        model.name, `layer ${layer.layer} (${layer.grid.join("x")}), ${KINDS[kind]}`,
        `SSDC ${number(point.value)} ${interval(point)}`,
        ...(point.null_low === null ? [] : [`null band [${number(point.null_low)}, ${number(point.null_high)}]`]),
      ] : [],
    };
  });
}

// Lowest and highest null band over all curves, at every x where one of them has a point.
function widestBand(curves) {
  const bands = curves.map((curve) => curve.filter((point) => point.band !== null));
  const places = [...new Set(bands.flat().map((point) => point.x))].sort((a, b) => a - b);
  return places.map((x) => {
    const here = bands.map((band) => bandAt(band, x)).filter((found) => found !== null);
    return { x, low: Math.min(...here.map(([low]) => low)), high: Math.max(...here.map(([, high]) => high)) };
  });
}

function bandAt(points, x) {
  const after = points.findIndex((point) => point.x >= x);
  if (after < 0 || (after === 0 && points[0].x > x)) return null;
  if (points[after].x === x) return points[after].band;
  const [left, right] = [points[after - 1], points[after]];
  const share = (x - left.x) / (right.x - left.x);
  return [0, 1].map((side) => left.band[side] + share * (right.band[side] - left.band[side]));
}

// Why points are missing: once where all are, for one and the same reason.
function undefinedLines(name, labelled) {
  const lacking = labelled.filter(([, point]) => point.value === null);
  const reasons = new Set(lacking.map(([, point]) => point.reason));
  if (lacking.length === labelled.length && reasons.size === 1) return [`${name}: ${[...reasons][0]}`];
  return lacking.map(([label, point]) => `${name}, ${label}: ${point.reason}`);
}

function drawDepth(chart) {
  const [wanted, relative] = [option("kind"), option("depth") === "relative"];
  const kinds = wanted === "both" ? ["rpi", "clean"] : [wanted];
  const sets = [];
  const lacking = [];
  for (const index of chosen()) {
    for (const kind of kinds) {
      sets.push({ ...curveStyle(index, kind === "clean"), data: depthPoints(index, kind, relative) });
      const { name, layers } = DATA.models[index];
      lacking.push(...undefinedLines(`${name}, ${KINDS[kind]}`, layers.map((layer) => [`layer ${layer.layer}`, layer[kind]])));
    }
  }
  const { x } = chart.config.options.scales;
  x.title.text = relative ? "share of the model's depth: 0 first layer, 1 last" : "layer";
  x.ticks = { ...x.ticks, precision: relative ? undefined : 0 };
  Object.assign(x, relative ? { min: 0, max: 1 } : { min: undefined, max: undefined });
  setCurves(chart, sets, { nullBand: widestBand(sets.map((set) => set.data)) });
  listUndefined("depth-undefined", lacking);
}

function drawAlpha(charts) {
  const corruption = byId("alpha-corruption").value;
  const measures = { delta: (row) => row.delta_ssdc_rpi, anchoring: (row) => row.anchoring, fs: (row) => row.fs[corruption] };
  const words = { delta: "delta SSDC", anchoring: "anchoring", fs: "FS" };
  const lacking = [];
  for (const [key, chart] of Object.entries(charts)) {
    const sets = chosen().map((index) => {
      const { name, alphas } = DATA.models[index];
      if (!alphas.length) lacking.push(`${name}: no alpha was measured`);
      const points = alphas.map((row) => measures[key](row) ?? { value: null, low: null, high: null, reason: row.reason ?? "not measured" });
      lacking.push(...undefinedLines(`${name}, ${words[key]}`, points.map((point, i) => [`alpha ${alphas[i].alpha}`, point])));
      const data = alphas.map((row, i) => {
        const point = points[i];
        const shown = point.value !== null;
        return {
          x: row.alpha, y: shown ? point.value : NaN, low: point.low, high: point.high,
          tip: shown ? [name, `alpha ${row.alpha}`, `${words[key]} ${number(point.value)} ${interval(point)}`] : [],
        };
      });
      return { ...curveStyle(index), data: data.sort((a, b) => a.x - b.x) };
    });
    setCurves(chart, sets);
  }
  listUndefined("alpha-undefined", lacking);
}

function startCurves() {
  const depth = makeChart("depth-chart", { x: axis("layer", { bounds: "data" }), y: axis("SSDC") });
  const over = (id, title) => makeChart(id, { x: axis("alpha", { bounds: "data" }), y: axis(title) });
  const charts = {
    delta: over("alpha-delta", "delta SSDC"), anchoring: over("alpha-anchoring", "anchoring"), fs: over("alpha-fs", "FS"),
  };
  curveCharts.push(depth, ...Object.values(charts));
  const draw = () => {
    drawLegends();
    drawDepth(depth);
    drawAlpha(charts);
  };
  onChoice.push(draw);
  onTheme.push(draw);
  for (const input of all('input[name="kind"], input[name="depth"]')) input.addEventListener("input", () => drawDepth(depth));
  byId("alpha-corruption").addEventListener("input", () => drawAlpha(charts));
}
