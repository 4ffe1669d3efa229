// Put the parts together once all of them are there.
const scaled = new Set(DATA.models.flatMap((model) => model.alphas.flatMap((row) => Object.keys(row.fs))));
for (const select of all("select[data-corruption]")) {
  for (const { text, sigma } of DATA.corruptions) {
    if (select.id === "alpha-corruption" && scaled.size && !scaled.has(text)) continue;
    const entry = make("option", sigma ? `${text}, ${sigma}` : text);
    entry.value = text;
    select.append(entry);
  }
}
startTable();
if (DATA.models.length) {
  startCurves();
  startScatter();
}
startMaps();
choose(DATA.models.map((_, index) => index).slice(0, 5), true);
