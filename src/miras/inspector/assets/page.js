const spans = [];

// the text

function visible(piece) {
  return piece.replace(/\n/g, "↵").replace(/\t/g, "→") || "·";
}

function writeText() {
  const special = new Set(content.special);
  const all = document.createDocumentFragment();
  content.pieces.forEach((piece, i) => {
    const span = document.createElement("span");
    // a mark before each line break, which is not part of the text
    piece.split("\n").forEach((line, number) => span.append(...(number ? [document.createElement("i"), "\n" + line] : [line])));
    if (special.has(i)) span.className = "special";
    else if (!piece) span.className = "goes-on";
    span.dataset.i = i;
    spans.push(span);
    all.append(span);
  });
  $("text").append(all);
}

function paint() {
  const values = series(chosen.colour);
  const { unit, log } = COLOURS[chosen.colour];
  const scale = log ? (x) => Math.log(Math.max(x, 1e-300)) : (x) => x;
  let [low, high] = values ? quantiles(values, 0.02, 0.98) : [NaN, NaN];
  if (chosen.colour === "clipped") [low, high] = [0, Math.max(high, 0.01)];
  const from = scale(low), span = scale(high) - from;
  const most = Number(getComputedStyle(document.documentElement).getPropertyValue("--most"));
  spans.forEach((each, i) => {
    const x = values ? values[i] : NaN;
    const share = Number.isFinite(x) ? Math.min(1, Math.max(0, span > 0 ? (scale(x) - from) / span : 0)) : 0;
    each.style.backgroundColor = share ? `rgba(var(--heat), ${(share * most).toFixed(3)})` : "";
  });
  const show = chosen.colour === "clipped" ? percent : format;
  $("low").textContent = values ? show(low) : "";
  $("high").textContent = values ? show(high) : "nothing to colour by";
  $("bar").style.display = values ? "" : "none";
  $("unit").textContent = values ? unit : "";
}

// one token

function point(i, scroll = false) {
  if (chosen.token >= 0) spans[chosen.token].classList.remove("on");
  chosen.token = i;
  for (const plot of plots) {
    plot.cursor.style.display = i < 0 ? "" : "block";
    plot.cursor.style.left = LEFT + ((i + 0.5) / T) * (plot.width - LEFT - RIGHT) + "px";
    if (plot.value) plot.value.textContent = i < 0 ? "" : plot.at(i);
  }
  if (i >= 0) {
    spans[i].classList.add("on");
    if (scroll) {
      const box = $("text"), top = spans[i].offsetTop - box.offsetTop;
      if (top < box.scrollTop || top > box.scrollTop + box.clientHeight - 30) box.scrollTop = top - box.clientHeight / 2;
    }
  }
  card(i);
  remember();
}

function card(i) {
  const title = document.createElement("h2"), table = document.createElement("table"), small = document.createElement("small");
  if (i < 0) {
    small.textContent = "Hover over a token, or tap one, for its numbers.";
    small.style.marginLeft = 0;
    title.append(small);
    $("token").replaceChildren(title);
    return;
  }
  title.textContent = visible(content.pieces[i]);
  const layer = content.layers[chosen.layer];
  const chunk = layer.chunk ? `, chunk ${layer.ends ? layer.ends.findIndex((end) => end > i) : Math.floor(i / layer.chunk) + 1}` : "";
  small.textContent = `token ${i + 1} of ${T}, id ${content.ids[i]}${chunk}${chosen.held ? ", held" : ""}`;
  title.append(small);
  const line = (...cells) => { const tr = table.insertRow(); for (const cell of cells) tr.insertCell().textContent = cell; };
  const rank = (values) => {
    const there = values.filter(Number.isFinite);
    return Number.isFinite(values[i]) ? `above ${Math.floor((100 * there.filter((x) => x < values[i]).length) / there.length)}% of tokens` : "";
  };
  for (const name of ["surprise", "error", "clipped", "loss"]) {
    const values = series(name);
    if (!values) continue;
    const show = name === "clipped" ? percent : format;
    line(COLOURS[name].label.toLowerCase(), show(values[i]), name === "clipped" ? "of coordinates" : Number.isFinite(values[i]) ? rank(values) : "no token before it");
  }
  if (layer.memory)
    for (const gate of layer.gates) {
      const [mean, low, high] = ["mean", "low", "high"].map((how) => ofHead(gate[how], chosen.head, how)[Math.floor(i / content.every)]);
      const show = gate.decay ? alpha : format;
      const half = gate.decay && mean > 0 ? `, half gone in ${format(Math.LN2 / mean)} tokens` : "";
      const [a, b] = gate.decay ? [high, low] : [low, high];
      line(`${gate.label} ${gate.letter}`, show(mean), (show(a) === show(b) ? "" : `${show(a)} to ${show(b)}`) + (a === b ? half.replace(", ", "") : half));
    }
  $("token").replaceChildren(title, table);
}

// choices

function choose(changes) {
  Object.assign(chosen, changes);
  const layer = content.layers[chosen.layer];
  chosen.head = layer.memory ? Math.min(chosen.head, layer.heads - 1) : -1;
  $("layer").value = chosen.layer;
  const heads = layer.memory ? [...Array.from({ length: layer.heads }, (_, h) => [h, `${h + 1}`]), ...(layer.heads > 1 ? [[-1, "all, mean"]] : [])] : [[-1, "none"]];
  $("head").replaceChildren(...heads.map(([value, text]) => new Option(text, value, false, value === chosen.head)));
  $("head").disabled = !layer.memory;
  for (const button of $("colours").children) {
    button.disabled = series(button.value) === null;
    if (button.disabled && chosen.colour === button.value) chosen.colour = "loss";
  }
  for (const button of $("colours").children) button.setAttribute("aria-pressed", button.value === chosen.colour);
  $("absent").replaceChildren(
    ...Object.entries(layer.absent).flatMap(([what, why]) => {
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = what; dd.textContent = why;
      return [dt, dd];
    }),
  );
  $("note").hidden = layer.memory;
  $("note").textContent = layer.memory ? "" : `Layer ${chosen.layer + 1}: ${Object.values(layer.absent)[0]}. The text is coloured by the model's loss.`;
  if (!layer.memory) $("absent").replaceChildren();
  makePlots();
  paint();
  plots.forEach(draw);
  point(chosen.token);
}

function remember() {
  const { layer, head, colour, token, held } = chosen;
  try {
    history.replaceState(null, "", `#layer=${layer + 1}&head=${head + 1}&colour=${colour}` + (held ? `&token=${token + 1}` : ""));
  } catch { /* some browsers keep no history of local files */ }
}

function recalled() {
  const given = new URLSearchParams(location.hash.slice(1));
  const number = (name, most) => {
    const value = parseInt(given.get(name) ?? "", 10) - 1;
    return value >= -1 && value < most ? value : null;
  };
  const found = {}, memory = content.layers.findIndex((layer) => layer.memory);
  found.layer = Math.max(0, number("layer", content.layers.length) ?? Math.max(0, memory));
  found.head = number("head", 1e6) ?? 0;
  if (given.get("colour") in COLOURS) found.colour = given.get("colour");
  const token = number("token", T);
  if (token !== null && token >= 0) Object.assign(found, { token, held: true });
  return found;
}

function set(theme) {
  document.documentElement.dataset.theme = theme;
  paint();
  plots.forEach(draw);
}

async function start() {
  $("source").textContent = content.source;
  const read = T < content.total ? `the first ${T} of ${content.total} tokens` : `${T} tokens`;
  const loss = content.mean_loss === null ? "" : `, ${format(content.mean_loss)} nats (${format(content.mean_loss / Math.LN2)} bits) a token`;
  $("about").textContent = `read by ${content.model}: ${read}${loss}`;
  if (typeof DecompressionStream === "undefined") {
    $("token").textContent = "This browser cannot inflate the page's numbers (DecompressionStream); one from 2023 or later can.";
    return;
  }
  numbers = await inflate($("numbers").textContent);
  for (const layer of content.layers) for (const gate of layer.gates ?? []) Object.assign(gate, GATES[gate.name]);
  content.layers.forEach((layer, l) => $("layer").add(new Option(`${l + 1} of ${content.layers.length} · ${layer.title}`, l)));
  $("colours").append(
    ...Object.entries(COLOURS).map(([value, { label }]) => {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", value, textContent: label, onclick: () => choose({ colour: value }) });
      return button;
    }),
  );
  $("layer").onchange = (event) => choose({ layer: Number(event.target.value), head: Math.max(0, chosen.head) });
  $("head").onchange = (event) => choose({ head: Number(event.target.value) });
  const over = (event) => event.target.closest("[data-i]");
  $("text").onpointerover = (event) => { if (!chosen.held && event.pointerType === "mouse" && over(event)) point(Number(over(event).dataset.i)); };
  $("text").onclick = (event) => {
    if (!over(event)) return;
    const i = Number(over(event).dataset.i);
    chosen.held = !(chosen.held && chosen.token === i);
    point(i);
  };
  document.onkeydown = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.target.tagName === "SELECT") return;
    event.preventDefault();
    point(Math.min(T - 1, Math.max(0, chosen.token + by)), true);
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  $("theme").onclick = () => set((document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark" ? "light" : "dark");
  dark.onchange = () => { paint(); plots.forEach(draw); };
  window.onresize = () => { plots.forEach(draw); point(chosen.token); };
  writeText();
  makeMap();
  choose(recalled());
  if (chosen.token >= 0) point(chosen.token, true);
}

start();
