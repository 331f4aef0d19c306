"use strict";
// layers, heads and tokens are numbers from 0; head -1 is the mean of all heads
const $ = (id) => document.getElementById(id);
const content = JSON.parse($("content").textContent);
const T = content.ids.length;
const chosen = { layer: 0, head: 0, colour: "surprise", token: -1, held: false };
const COLOURS = {
  surprise: { label: "Surprise", unit: "‖gradient‖", log: true },
  error: { label: "Error", unit: "‖M(k) − v‖", log: true },
  clipped: { label: "Clipped", unit: "of coordinates", log: false },
  loss: { label: "Loss", unit: "nats", log: false },
};
const GATES = {
  step: { label: "step", letter: "η", what: "How far a token moves the weights along its gradient." },
  decay: { label: "retention", letter: "α", what: "What a token keeps, on a scale of 1 − α; higher is longer memory.", decay: true },
  value_decay: { label: "retention, value side", letter: "β", what: "What a token keeps on the value side.", decay: true },
  momentum: { label: "momentum", letter: "μ", what: "How much of past surprise carries on." },
  threshold: { label: "threshold", letter: "δ", what: "Errors above it count as if they were of its size." },
  soft_threshold: { label: "soft threshold", letter: "γ", what: "What each token takes off every weight's size." },
};
let numbers = null;
const rows = new Map();
const spans = [];
let plots = [];

// numbers

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function row(place, number) {
  const key = place.at + ":" + number;
  if (!rows.has(key)) {
    const low = place.low[number], step = (place.high[number] - low) / 253;
    const from = place.at + number * place.length;
    const values = new Float64Array(place.length);
    for (let i = 0; i < place.length; i++) {
      const byte = numbers[from + i];
      const x = byte ? low + step * (byte - 1) : low;
      values[i] = byte === 255 ? NaN : place.log ? (byte ? Math.exp(x) : 0) : x;
    }
    rows.set(key, values);
  }
  return rows.get(key);
}

const REDUCE = { mean: (xs) => xs.reduce((a, b) => a + b) / xs.length, low: (xs) => Math.min(...xs), high: (xs) => Math.max(...xs) };

// the row of the chosen head, or of all heads together; `first` is where the heads of a weight begin
function ofHead(place, head, how = "mean", first = 0) {
  if (head >= 0) return row(place, first + head);
  const key = `${place.at}:all:${first}`;
  if (!rows.has(key)) {
    const heads = content.layers[chosen.layer].heads;
    const each = Array.from({ length: heads }, (_, h) => row(place, first + h));
    rows.set(key, each[0].map((_, i) => REDUCE[how](each.map((values) => values[i]))));
  }
  return rows.get(key);
}

function series(name) {
  if (name === "loss") return row(content.loss, 0);
  const layer = content.layers[chosen.layer];
  return layer.memory && layer[name] ? ofHead(layer[name], chosen.head) : null;
}

const smallest = (values) => values.reduce((a, b) => (b < a ? b : a), Infinity);
const largest = (values) => values.reduce((a, b) => (b > a ? b : a), -Infinity);

function quantiles(values, ...shares) {
  const sorted = Float64Array.from(values).filter(Number.isFinite).sort();
  return shares.map((share) => (sorted.length ? sorted[Math.round(share * (sorted.length - 1))] : NaN));
}

function format(x) {
  if (!Number.isFinite(x)) return "none";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e5 || size < 1e-3) return x.toExponential(1).replace("e+", "e");
  return size >= 100 ? x.toFixed(0) : x.toPrecision(size >= 1 ? 3 : 2);
}

const percent = (x) => (Number.isFinite(x) ? (100 * x).toFixed(x > 0 && x < 0.1 ? 1 : 0) + "%" : "none");

// alpha of a decay, with as many digits as tell it from 1
function alpha(decay) {
  if (!(decay > 0)) return "1";
  return Math.exp(-decay).toFixed(Math.min(9, Math.max(3, Math.ceil(-Math.log10(decay)) + 1)));
}

// the same on an axis, with no more digits than it takes
const marked = (x) => (Math.abs(x) >= 1e-3 && Math.abs(x) < 1e5 ? String(Number(x.toPrecision(3))) : format(x));
const markedAlpha = (decay) => Math.exp(-decay).toFixed(Math.max(2, Math.ceil(-Math.log10(decay) - 1e-9)));

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

// plots

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const LEFT = 56, RIGHT = 6;
const KEYS = ["--first", "--second", "--third", "--fourth"];

function ticks(low, high, log) {
  if (log) {
    for (const marks of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 8]]) {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
        for (const mark of marks) if (mark * 10 ** power >= low && mark * 10 ** power <= high) found.push(mark * 10 ** power);
      const every = Math.ceil(found.length / 5);
      if (found.length >= 2) return found.filter((_, i) => i % every === 0);
    }
    return [low, high];
  }
  const rough = (high - low) / 3 || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((mark) => mark * power).find((each) => each >= rough);
  const found = [];
  for (let x = Math.ceil(low / step - 1e-9) * step; x <= high + step * 1e-6; x += step) found.push(Math.abs(x) < step / 1e6 ? 0 : x);
  return found;
}

// smallest, mean and largest of a line over each pixel column, so that no peak is lost
function columns(line, width) {
  const { x, mean, low = mean, high = mean } = line;
  const found = [];
  for (let i = 0; i < mean.length; i++) {
    if (!Number.isFinite(mean[i])) continue;
    const column = Math.round((x(i) / T) * width);
    const last = found[found.length - 1];
    if (last && last.column === column) {
      last.total += mean[i]; last.count += 1; last.low = Math.min(last.low, low[i]); last.high = Math.max(last.high, high[i]);
    } else found.push({ column, total: mean[i], count: 1, low: low[i], high: high[i] });
  }
  return found;
}

function draw(plot) {
  const canvas = plot.canvas, ratio = window.devicePixelRatio || 1, height = plot.height;
  const width = canvas.clientWidth || canvas.parentElement.clientWidth;
  canvas.width = width * ratio; canvas.height = height * ratio; canvas.style.height = height + "px";
  const g = canvas.getContext("2d");
  g.scale(ratio, ratio);
  plot.width = width;
  plot.paint(g, width, height);
}

function paintLines(plot, g, width, height) {
  const inner = width - LEFT - RIGHT, top = 5, bottom = height - 5;
  const lines = plot.lines.map((line) => columns(line, inner));
  const all = lines.flat();
  if (!all.length) return;
  let low = plot.from ?? Math.min(...all.map((p) => p.low)), high = plot.to ?? Math.max(...all.map((p) => p.high));
  if (plot.log) {
    low = Math.max(low, high * 1e-9, 1e-300);
    if (!(high / low > 1.02)) { low /= 1.05; high *= 1.05; }
  } else if (!(high - low > 1e-9 * Math.abs(high))) { const room = Math.abs(high) * 0.05 || 1; low -= room; high += room; }
  const scale = plot.log ? Math.log : (x) => x;
  const share = (x) => (scale(Math.max(x, plot.log ? low : -Infinity)) - scale(low)) / (scale(high) - scale(low));
  const y = (x) => (plot.invert ? top + share(x) * (bottom - top) : bottom - share(x) * (bottom - top));
  g.font = "11px system-ui, sans-serif"; g.textAlign = "right"; g.textBaseline = "middle"; g.lineWidth = 1;
  let above = Infinity;
  for (const tick of ticks(low, high, plot.log).sort((a, b) => y(b) - y(a))) {
    const at = Math.round(y(tick)) + 0.5;
    if (above - at < 13) continue;
    above = at;
    g.strokeStyle = style("--grid"); g.beginPath(); g.moveTo(LEFT, at); g.lineTo(width - RIGHT, at); g.stroke();
    g.fillStyle = style("--soft"); g.fillText(plot.format(tick), LEFT - 6, Math.min(height - 6, Math.max(7, at)));
  }
  lines.forEach((points, number) => {
    const colour = style(KEYS[number % KEYS.length]);
    g.fillStyle = colour; g.globalAlpha = 0.2; g.beginPath();
    points.forEach((p) => g.lineTo(LEFT + p.column, y(p.high)));
    [...points].reverse().forEach((p) => g.lineTo(LEFT + p.column, y(p.low)));
    g.fill(); g.globalAlpha = 1;
    g.strokeStyle = colour; g.lineWidth = 1.4; g.lineJoin = "round"; g.beginPath();
    points.forEach((p) => g.lineTo(LEFT + p.column, y(p.total / p.count)));
    g.stroke();
    if (points.length < 40 && plot.dots) points.forEach((p) => { g.beginPath(); g.arc(LEFT + p.column, y(p.total / p.count), 2.2, 0, 7); g.fill(); });
  });
}

function addPlot(title, what, options) {
  const figure = document.createElement("figure");
  figure.innerHTML = '<figcaption><b></b><span class="value"></span><span class="what"></span></figcaption><div class="plot"><canvas></canvas><i class="cursor"></i></div>';
  figure.querySelector("b").textContent = title;
  const words = figure.querySelector(".what");
  words.textContent = what + " ";
  if (options.lines.length > 1)
    options.lines.forEach((line, i) => {
      const key = document.createElement("span");
      key.className = "key"; key.style.color = `var(${KEYS[i % KEYS.length]})`; key.textContent = "— " + line.name + " ";
      words.append(key);
    });
  $("plots").append(figure);
  const plot = { height: 84, format: marked, ...options, canvas: figure.querySelector("canvas"), cursor: figure.querySelector(".cursor"), value: figure.querySelector(".value") };
  plot.canvas.setAttribute("role", "img");
  plot.canvas.setAttribute("aria-label", `${title}: ${what}`);
  plot.paint = (g, width, height) => paintLines(plot, g, width, height);
  listen(plot);
  plots.push(plot);
}

function listen(plot) {
  const token = (event) => {
    const box = plot.canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    return Math.min(T - 1, Math.max(0, Math.floor(share * T)));
  };
  plot.canvas.onpointermove = (event) => { if (!chosen.held && event.pointerType === "mouse") point(token(event), true); };
  plot.canvas.onclick = (event) => {
    if (plot.pick) plot.pick(event);
    chosen.held = true;
    point(token(event), true);
  };
}

const byToken = (i) => i + 0.5;

function makePlots() {
  $("plots").replaceChildren();
  plots = plots.filter((plot) => plot.fixed);
  const layer = content.layers[chosen.layer], head = chosen.head;
  const thin = (i) => (i + 0.5) * content.every;
  const line = (values, x = byToken) => [{ mean: values, x }];
  const at = (values) => (t) => format(values[t]);
  if (layer.memory) {
    const surprise = series("surprise");
    addPlot("Surprise", "Norm of the gradient the memory learns by.", { lines: line(surprise), log: true, at: at(surprise) });
    for (const gate of layer.gates) {
      const [mean, low, high] = ["mean", "low", "high"].map((how) => ofHead(gate[how], head, how));
      const show = gate.decay ? alpha : format;
      const name = gate.label[0].toUpperCase() + gate.label.slice(1) + " " + gate.letter;
      const some = content.every > 1 ? ` Means of ${content.every} tokens.` : "";
      addPlot(name, gate.what + some, {
        lines: [{ mean, low, high, x: thin }], log: smallest(low) > 0, invert: gate.decay, format: gate.decay ? markedAlpha : marked,
        at: (t) => show(mean[Math.floor(t / content.every)]),
      });
      if (gate.name === "threshold" && layer.clipped) clippedPlot(line);
    }
    if (layer.clipped && !layer.gates.some((gate) => gate.name === "threshold")) clippedPlot(line);
    weightPlots(layer, head);
  }
  const loss = series("loss");
  addPlot("Loss of the model", "−log p of each token, in nats; the same for every layer.", { lines: line(loss), from: 0, at: at(loss) });
}

function clippedPlot(line) {
  const clipped = series("clipped");
  addPlot("What the threshold did", "Share of the error's coordinates that were clipped.", {
    lines: line(clipped), from: 0, to: Math.max(0.01, largest(clipped)), format: percent, at: (t) => percent(clipped[t]),
  });
}

function weightPlots(layer, head) {
  const each = (place) => Array.from({ length: layer.weights }, (_, w) => ofHead(place, head, "mean", w * layer.heads));
  const name = (w) => (layer.weights > 1 ? `W${w + 1}` : "W");
  const chunk = (t) => layer.ends.findIndex((end) => end > t) - 1;
  const lines = (place, x) => each(place).map((mean, w) => ({ mean, x, name: name(w) }));
  const words = (place, later, show) => (t) => each(place).map((values, w) => `${name(w)} ${show(values[chunk(t) + later])}`).join("  ");
  const end = (i) => layer.ends[i], next = (i) => layer.ends[i + 1];
  addPlot("Norm of the weights", "‖W‖ as the memory reads it, at the start and after each chunk.", {
    lines: lines(layer.norms, end), dots: true, at: words(layer.norms, 1, format),
  });
  addPlot("Movement", "‖change of W‖ / ‖W‖ over each chunk.", { lines: lines(layer.moved, next), dots: true, from: 0, at: words(layer.moved, 0, format) });
  if (layer.zeros)
    addPlot("What the soft threshold did", "Share of the weights held at zero after each full chunk.", {
      lines: lines(layer.zeros, next), dots: true, from: 0, to: 1, format: percent, at: words(layer.zeros, 0, percent),
    });
}

// every layer and head at once

function makeMap() {
  const all = content.layers.flatMap((layer, l) => (layer.memory ? Array.from({ length: layer.heads }, (_, h) => [l, h]) : []));
  if (!all.length) { $("map").hidden = true; return; }
  const tall = Math.max(1, Math.min(16, Math.floor(400 / all.length)));
  const plot = { fixed: true, height: all.length * tall + 4, canvas: $("map").querySelector("canvas"), cursor: $("map").querySelector(".cursor") };
  plot.paint = (g, width) => {
    const inner = width - LEFT - RIGHT, heat = style("--heat");
    g.translate(0, 2);
    g.font = "11px system-ui, sans-serif"; g.textAlign = "right"; g.textBaseline = "top";
    all.forEach(([l, h], number) => {
      const values = row(content.layers[l].surprise, h), logs = values.map((x) => Math.log(Math.max(x, 1e-300)));
      const [low, high] = quantiles(logs, 0.05, 0.995);
      for (const p of columns({ mean: logs, x: (i) => i }, inner)) {
        const next = ((p.column + Math.max(1, inner / T)) | 0) + 1;
        const share = Math.min(1, Math.max(0, (p.total / p.count - low) / (high - low || 1)));
        g.fillStyle = `rgba(${heat}, ${(share * 0.95).toFixed(3)})`;
        g.fillRect(LEFT + p.column, number * tall, next - p.column, tall - (tall > 5 ? 1 : 0));
      }
      if (h === 0 && (tall >= 10 || content.layers[l].heads * tall >= 12)) {
        g.fillStyle = style("--soft"); g.fillText(`layer ${l + 1}`, LEFT - 6, number * tall + 1);
      }
    });
    const on = all.findIndex(([l, h]) => l === chosen.layer && h === chosen.head);
    if (on >= 0) { g.strokeStyle = style("--ink"); g.strokeRect(LEFT - 1.5, on * tall - 0.5, inner + 3, tall + 0.5); }
  };
  plot.pick = (event) => {
    const [l, h] = all[Math.min(all.length - 1, Math.max(0, Math.floor((event.clientY - plot.canvas.getBoundingClientRect().top - 2) / tall)))];
    choose({ layer: l, head: h });
  };
  listen(plot);
  plots.push(plot);
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
    line(COLOURS[name].label.toLowerCase(), show(values[i]), Number.isFinite(values[i]) ? rank(values) : "no token before it");
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
