let plots = [];

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
  if (!all.length) {
    g.font = "12px system-ui, sans-serif"; g.fillStyle = style("--soft");
    g.fillText(plot.empty ?? "no values", LEFT, height / 2);
    return;
  }
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
  addPlot("Movement", "‖change of W‖ / ‖W‖ over each chunk.", { lines: lines(layer.moved, next), dots: true, from: 0, empty: "none: the weights are zero", at: words(layer.moved, 0, format) });
  if (layer.zeros)
    addPlot("What the soft threshold did", "Share of the weights held at zero after each full chunk.", {
      lines: lines(layer.zeros, next), dots: true, from: 0, to: 1, format: percent, at: words(layer.zeros, 0, percent),
    });
}
