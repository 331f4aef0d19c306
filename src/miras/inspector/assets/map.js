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
