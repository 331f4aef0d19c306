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
