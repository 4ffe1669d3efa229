// Similarity maps: decoded from the page's one text when a model is shown.
const ROWS = [];
for (const [place, token] of ["centre", "corner", "mid-edge"].entries()) {
  for (const kind of ["clean", "rpi"]) ROWS.push({ place, token, kind });
}
const SIDE = 76; // px of a map's longer side
// Dark to light over the range, readable without colour too (viridis, seven of its steps).
const RAMP = [[68, 1, 84], [70, 50, 127], [54, 92, 141], [39, 127, 142], [31, 161, 135], [109, 205, 89], [253, 231, 37]];

function shade(share) {
  const at = Math.max(0, Math.min(share, 1)) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  return RAMP[low].map((value, part) => Math.round(value + (at - low) * (RAMP[low + 1][part] - value)));
}

// All maps of one model: per layer, per row of the table, cosines row-major.
function decode(index) {
  const { bits, models } = DATA.maps;
  const { start, end, layers } = models[index];
  const text = byId("map-data").firstChild?.substringData(start, end - start) ?? "";
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  let at = 0;
  return layers.map((layer) => {
    const size = layer.grid[0] * layer.grid[1];
    const read = () => {
      const values = new Float32Array(size);
      for (let i = 0; i < size; i += 1) {
        const byte = bytes[at + (bits === 8 ? i : i >> 1)];
        const level = bits === 8 ? byte / 255 : (i % 2 ? byte & 15 : byte >> 4) / 15;
        values[i] = 2 * level - 1;
      }
      at += bits === 8 ? size : (size + 1) >> 1;
      return values;
    };
    const maps = { clean: [read(), read(), read()], rpi: [read(), read(), read()] };
    return { ...layer, maps };
  });
}

// Lowest and highest cosine to other tokens: the token itself is always 1.
function extremes(layers, choices) {
  let [low, high] = [1, -1];
  for (const layer of layers) {
    for (const { place, kind } of choices) {
      const [row, column] = layer.tokens[place];
      const own = row * layer.grid[1] + column;
      layer.maps[kind][place].forEach((value, i) => {
        if (i === own) return;
        low = Math.min(low, value);
        high = Math.max(high, value);
      });
    }
  }
  return low < high ? [low, high] : [-1, 1];
}

function drawMap(layer, { place, token, kind }, [low, high]) {
  const [rows, columns] = layer.grid;
  const values = layer.maps[kind][place];
  const small = document.createElement("canvas");
  [small.width, small.height] = [columns, rows];
  const picture = small.getContext("2d").createImageData(columns, rows);
  values.forEach((value, i) => picture.data.set([...shade((value - low) / (high - low)), 255], 4 * i));
  small.getContext("2d").putImageData(picture, 0, 0);
  const canvas = document.createElement("canvas");
  const scale = SIDE / Math.max(rows, columns);
  const sharp = Math.max(1, Math.min(devicePixelRatio, 3));
  [canvas.width, canvas.height] = [Math.round(columns * scale * sharp), Math.round(rows * scale * sharp)];
  canvas.style.width = `${columns * scale}px`;
  canvas.style.height = `${rows * scale}px`;
  const ctx = canvas.getContext("2d");
  ctx.imageSmoothingEnabled = false;
  ctx.drawImage(small, 0, 0, canvas.width, canvas.height);
  const [row, column] = layer.tokens[place];
  const [wide, tall] = [canvas.width / columns, canvas.height / rows];
  for (const [ink, inset] of [["#fff", 0], ["#d00000", sharp]]) {
    ctx.strokeStyle = ink;
    ctx.lineWidth = sharp;
    ctx.strokeRect(column * wide - 1.5 * sharp + inset, row * tall - 1.5 * sharp + inset, wide + 3 * sharp - 2 * inset, tall + 3 * sharp - 2 * inset);
  }
  const name = `layer ${layer.layer}, ${KINDS[kind]}, similarity to the ${token} token`;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", name);
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const at = [Math.floor(((event.clientY - box.top) / box.height) * rows), Math.floor(((event.clientX - box.left) / box.width) * columns)];
    const value = values[at[0] * columns + at[1]];
    if (value !== undefined) showTip(event.clientX, event.clientY, [[`cosine ${number(value)}`, name, `row ${at[0]}, column ${at[1]}`]]);
  });
  canvas.addEventListener("pointerleave", hideTip);
  return canvas;
}

function drawMaps() {
  const layers = decode(Number(byId("maps-model").value));
  const wanted = byId("maps-range").value;
  const shared = wanted === "full" ? [-1, 1] : extremes(layers, ROWS);
  const head = make("tr");
  head.append(make("th", "token"), ...layers.map((layer) => {
    const cell = make("th", `layer ${layer.layer}`);
    cell.scope = "col";
    cell.append(make("small", layer.grid.join("x")));
    return cell;
  }));
  const body = ROWS.map((choice) => {
    const line = make("tr", "", choice.kind === "clean" ? "first" : "");
    const name = make("th", choice.token);
    name.scope = "row";
    name.append(make("small", KINDS[choice.kind]));
    line.append(name, ...layers.map((layer) => {
      const cell = make("td");
      cell.append(drawMap(layer, choice, wanted === "map" ? extremes([layer], [choice]) : shared));
      return cell;
    }));
    return line;
  });
  byId("maps-table").replaceChildren(head, ...body);
  byId("maps-low").textContent = wanted === "map" ? "lowest" : number(shared[0]);
  byId("maps-high").textContent = wanted === "map" ? "highest" : number(shared[1]);
}

function startMaps() {
  const select = byId("maps-model");
  if (!select) return;
  DATA.maps.models.forEach((found, index) => {
    if (!found.layers.length) return;
    const entry = make("option", DATA.models[index].name);
    entry.value = index;
    select.append(entry);
  });
  const bar = byId("maps-bar").getContext("2d");
  for (let x = 0; x < 120; x += 1) {
    bar.fillStyle = `rgb(${shade(x / 119).join(",")})`;
    bar.fillRect(x, 0, 1, 10);
  }
  select.addEventListener("input", drawMaps);
  byId("maps-range").addEventListener("input", drawMaps);
  // Nothing is decoded before the reader comes near.
  const watch = new IntersectionObserver((seen) => {
    if (!seen.some((entry) => entry.isIntersecting)) return;
    watch.disconnect();
    drawMaps();
  }, { rootMargin: "600px" });
  watch.observe(byId("maps"));
}
