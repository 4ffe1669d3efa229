// Fragility against anchoring, one point per model, coloured and shaped by kind of position.
function drawScatter(chart) {
  const [across, up, corruption] = ["relation-x", "relation-y", "relation-corruption"].map((id) => byId(id).value);
  const words = { anchoring: "anchoring", delta_ssdc_rpi: "delta SSDC", fs: "FS", agreement_fs: "agreement fragility" };
  const kinds = [...new Set(DATA.models.map((model) => model.position))].sort();
  const lacking = [];
  const sets = kinds.map((kind, place) => {
    const ink = colour(`--c${place % COLOURS}`);
    const data = [];
    DATA.models.forEach((model, index) => {
      if (model.position !== kind) return;
      const [x, y] = [model[across], model[up][corruption]];
      const reason = x.value === null ? x.reason : y === undefined ? "not measured" : y.value === null ? y.reason : null;
      if (reason !== null) return void lacking.push(`${model.name} has no point: ${reason}`);
      data.push({
        index, x: x.value, y: y.value, low: y.low, high: y.high, xLow: x.low, xHigh: x.high,
        tip: [model.name, kind, `${words[across]} ${number(x.value)} ${interval(x)}`, `${words[up]} ${number(y.value)} ${interval(y)}`],
      });
    });
    const ringed = (context) => context.raw && slots.has(context.raw.index);
    return {
      data, showLine: false, pointStyle: MARKERS[place % 4], pointHitRadius: 6, pointHoverRadius: 8,
      backgroundColor: ink, whiskers: faded(ink, DATA.models.length > 20 ? 0.3 : 0.6),
      borderColor: (context) => (ringed(context) ? colour("--ink") : ink),
      pointBorderColor: (context) => (ringed(context) ? colour("--ink") : ink),
      pointBorderWidth: (context) => (ringed(context) ? 2.5 : 1),
      pointRadius: (context) => (ringed(context) ? 6.5 : 4.5),
    };
  });
  for (const set of sets) set.data.sort((a, b) => a.x - b.x);
  const column = DATA.corruptions.find(({ text }) => text === corruption)?.column;
  byId("relation-rho").textContent = DATA.relations[`${across}|${up === "fs" ? "fs" : "agreement"}_${column}`] ?? "";
  chart.config.options.scales.x.title.text = words[across];
  chart.config.options.scales.y.title.text = `${words[up]}, ${corruption}`;
  setCurves(chart, sets, { zero: false });
  byId("relation-legend").replaceChildren(...kinds.map((kind, place) => {
    const key = make("span", "", "key");
    key.append(picture(MARKERS[place % 4], `--c${place % COLOURS}`, false), make("span", kind));
    return key;
  }));
  listUndefined("relation-undefined", lacking);
}

function startScatter() {
  const chart = makeChart("relation-chart", { x: axis("anchoring"), y: axis("FS") }, { mode: "point", intersect: true });
  chart.config.options.onClick = (event, elements) => {
    const indices = elements.map((element) => chart.data.datasets[element.datasetIndex].data[element.index].index);
    if (indices.length) choose([indices[0]], !slots.has(indices[0]));
  };
  // Without labels there is no FS; agreement needs none.
  const judged = DATA.models.some((model) => Object.values(model.fs).some((point) => point.value !== null));
  byId("relation-y").value = judged ? "fs" : "agreement_fs";
  const draw = () => drawScatter(chart);
  onChoice.push(draw);
  onTheme.push(draw);
  for (const id of ["relation-x", "relation-y", "relation-corruption"]) byId(id).addEventListener("input", draw);
}
