"use strict";
// Charts of the page, drawn by uPlot: a crosshair with values (mouse, touch, arrow keys), bands, bounds, two themes.
const charts = (() => {
  const { el, svg, number, percent, colour } = page;
  const MIN_EVALUATIONS_OF_A_LINE = 3; // a line between two points would suggest a path
  const MIN_POINTS_SMOOTHED = 8;
  const MANY_POINTS = 300; // more of them would cover each other
  const drawn = new Set();

  page.onTheme(() => {
    for (const plot of drawn) {
      if (plot.root.isConnected) plot.redraw(true, true);
      else drawn.delete(plot);
    }
  });

  // Mean of each value and equally many neighbours on both sides. A mean of predecessors would lag behind.
  const centredMean = (values) => {
    const present = [];
    values.forEach((value, index) => { if (value !== null && value !== undefined) present.push(index); });
    const means = new Array(values.length).fill(null);
    const count = present.length;
    const width = Math.max(1, Math.min(count, Math.max(3, Math.floor(count / 10))));
    const sums = [0];
    for (const index of present) sums.push(sums[sums.length - 1] + values[index]);
    present.forEach((index, place) => {
      const beside = Math.min(Math.floor(width / 2), place, count - 1 - place);
      means[index] = (sums[place + beside + 1] - sums[place - beside]) / (2 * beside + 1);
    });
    return means;
  };

  const column = (table, name) => {
    const values = table.metrics[name];
    if (values === undefined || Array.isArray(values)) return values;
    return table.step.map(() => values);
  };

  // One sorted axis for the rows of two tables: the values of a table are null at the places of the other one.
  const joined = (first, second) => {
    const xs = [...new Set([...first, ...second])].sort((a, b) => a - b);
    const place = new Map(xs.map((x, index) => [x, index]));
    const spread = (own, values) => {
      const filled = new Array(xs.length).fill(null);
      own.forEach((x, index) => { filled[place.get(x)] = values[index]; });
      return filled;
    };
    return { xs, spread };
  };

  const tickLabels = (splits, step, share) => {
    const digits = Math.max(0, -Math.floor(Math.log10(share ? step * 100 : step) + 1e-9));
    const largest = Math.max(...splits.map(Math.abs));
    return splits.map((value) => {
      if (value === null || value === undefined) return "";
      if (share) return `${(100 * value).toFixed(digits)}%`;
      if (largest < 1e-3 && value !== 0) return value.toExponential(1);
      if (largest >= 1e6) return value.toExponential(1).replace("e+", "e");
      return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    });
  };

  // As wide as the longest label, so that none is cut off.
  const axisSize = (plot, labels, axis, cycle) => {
    if (cycle > 1) return plot.axes[axis]._size;
    const context = plot.ctx;
    context.font = plot.axes[axis].font[0];
    const widths = (labels || []).map((label) => context.measureText(label).width);
    return Math.ceil(Math.max(0, ...widths) / devicePixelRatio + 14);
  };

  const rangeOf = (low, high, included) => {
    const values = [low, high, ...included].filter((value) => Number.isFinite(value));
    if (values.length === 0) return [0, 1];
    let [bottom, top] = [Math.min(...values), Math.max(...values)];
    if (top - bottom <= 1e-9 * Math.max(Math.abs(top), Math.abs(bottom))) {
      const half = Math.abs(bottom) / 2 || 0.5;
      [bottom, top] = [bottom - half, top + half];
    }
    const room = 0.05 * (top - bottom);
    return [bottom === 0 ? 0 : bottom - room, top + room];
  };

  // Room for the marks at both ends.
  const widen = (low, high) => {
    const room = low === high ? 0.5 : 0.012 * (high - low);
    return [low - room, high + room];
  };

  const alpha = (name, share) => colour(name).replace(/^rgb\((.*)\)$/, `rgba($1, ${share})`);

  const nearest = (values, index) => {
    for (let distance = 0; distance < values.length; distance += 1) {
      for (const place of [index - distance, index + distance]) {
        if (place >= 0 && place < values.length && values[place] !== null && values[place] !== undefined) return place;
      }
    }
    return -1;
  };

  // The series of uPlot that draws one of ours.
  const plotSeries = (one) => {
    const count = one.values.filter((value) => value !== null && value !== undefined).length;
    const isLine = one.kind === "line" || one.kind === "area" ||
      (one.kind === "evaluations" && count >= MIN_EVALUATIONS_OF_A_LINE);
    const marks = one.kind === "points" || one.kind === "evaluations" || count === 1;
    const size = one.kind === "evaluations" ? 9 : count > MANY_POINTS ? 3 : 6;
    const options = {
      label: one.label,
      stroke: () => alpha(one.colour, one.faint ? 0.35 : 1),
      width: one.faint ? 1 : 2,
      spanGaps: true,
      points: { show: marks, size, width: 1, fill: () => alpha(one.colour, one.faint ? 0.6 : 1), stroke: () => (one.kind === "points" ? "transparent" : colour("ground")) },
    };
    if (one.kind === "area") {
      options.fill = () => colour(one.colour);
      options.paths = uPlot.paths.bars({ size: [1, Infinity, 1] });
      options.width = 0;
    }
    if (!isLine) options.paths = () => null;
    return options;
  };

  // Intervals as bars, and as a band between three evaluations or more.
  const drawIntervals = (plot, one) => {
    const context = plot.ctx;
    const places = [];
    one.low.forEach((low, index) => { if (low !== null && low !== undefined) places.push(index); });
    const at = (index, value) => [plot.valToPos(plot.data[0][index], "x", true), plot.valToPos(value, "y", true)];
    context.save();
    if (places.length >= MIN_EVALUATIONS_OF_A_LINE) {
      context.fillStyle = alpha(one.colour, 0.18);
      context.beginPath();
      for (const index of places) context.lineTo(...at(index, one.high[index]));
      for (const index of [...places].reverse()) context.lineTo(...at(index, one.low[index]));
      context.fill();
    }
    context.strokeStyle = colour(one.colour);
    context.lineWidth = 1.5 * devicePixelRatio;
    for (const index of places) {
      context.beginPath();
      context.moveTo(...at(index, one.low[index]));
      context.lineTo(...at(index, one.high[index]));
      context.stroke();
    }
    context.restore();
  };

  const drawBounds = (plot, bounds) => {
    const context = plot.ctx;
    context.save();
    for (const bound of bounds) {
      const y = plot.valToPos(bound.value, "y", true);
      context.strokeStyle = colour("quiet");
      context.lineWidth = devicePixelRatio;
      context.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
      context.beginPath();
      context.moveTo(plot.bbox.left, y);
      context.lineTo(plot.bbox.left + plot.bbox.width, y);
      context.stroke();
    }
    context.restore();
  };

  const followPointer = (plot, holder) => {
    const to = (left) => plot.setCursor({ left, top: plot.over.clientHeight / 2 });
    const touch = (event) => to(event.touches[0].clientX - plot.over.getBoundingClientRect().left);
    plot.over.addEventListener("touchstart", touch, { passive: true });
    plot.over.addEventListener("touchmove", touch, { passive: true });
    holder.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (move === undefined) return;
      event.preventDefault();
      const xs = plot.data[0];
      const from = plot.cursor.idx === null || plot.cursor.idx === undefined ? xs.length - 1 - move : plot.cursor.idx;
      const index = Math.max(0, Math.min(xs.length - 1, from + move));
      to(plot.valToPos(xs[index], "x"));
    });
  };

  // chart(root, {title, unit, note, beside, x: {values, label, format}, series, bounds, height, include, share})
  // series: {label, values, colour, kind: line | points | evaluations | area, faint, low, high, shown, hidden}
  // `shown` are the values of the legend where the drawn ones are sums; `hidden` series have no entry in the legend.
  const chart = (root, options) => {
    const { series, bounds = [], height = 220, include = [], share = options.unit === "share" } = options;
    const format = share ? (value) => `${number(100 * value)}%` : number;
    const xFormat = options.x.format || number;
    const holder = el("div", { class: "plot", tabindex: "0", role: "img" });
    const place = el("span", { class: "quiet" });
    const entries = series.filter((one) => !one.hidden).map((one) => {
      const value = el("b");
      const key = el("span", { class: `key ${one.kind}`, style: { "--key": `var(--${one.colour})` } });
      return { one, value, node: el("span", { class: "entry" }, key, one.label, one.label ? " " : "", value) };
    });
    if (series.some((one) => one.kind === "area")) entries.reverse(); // as the areas lie upon each other, from below
    // Labels of bounds are in the legend, because within the plot they would cover values.
    const boundKeys = bounds.map((bound) => el("span", { class: "entry quiet" }, el("span", { class: "key bound" }), bound.label));
    const legend = el("div", { class: "legend" }, place, entries.map((entry) => entry.node), boundKeys);
    const unit = options.unit && !share ? el("span", { class: "quiet" }, `, ${options.unit}`) : null;
    const title = el("figcaption", {}, el("span", {}, options.title, unit), options.beside);
    const figure = el("figure", { class: "chart" }, title, holder, legend);
    if (options.note) figure.append(el("p", { class: "quiet small" }, options.note));
    root.append(figure);
    if (series.length === 0) {
      holder.replaceWith(el("p", { class: "quiet" }, "no values yet"));
      return figure;
    }

    const xs = options.x.values;
    const describe = (index) => {
      for (const { one, value } of entries) {
        const values = one.shown || one.values;
        const at = index === null ? nearest(values, values.length - 1) : nearest(values, index);
        let text = at < 0 ? "–" : format(values[at]);
        if (at >= 0 && one.low && one.low[at] !== null && one.low[at] < one.high[at]) {
          text += ` [${format(one.low[at])}, ${format(one.high[at])}]`;
        }
        if (at >= 0 && index !== null && at !== index) text += ` at ${xFormat(xs[at])}`;
        value.textContent = text;
      }
      place.textContent = index === null ? "last:" : `${options.x.label} ${xFormat(xs[index])}:`;
    };
    describe(null);
    const newest = entries.map(({ one, value }) => `${one.label} ${value.textContent}`.trim()).join(", ");
    holder.setAttribute("aria-label", `${options.title}: ${newest}`);

    const build = () => {
      const axis = { stroke: () => colour("quiet"), grid: { stroke: () => colour("rule"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      const plot = new uPlot({
        width: Math.max(200, holder.clientWidth),
        height,
        padding: [16, 24, 0, 0],
        legend: { show: false },
        cursor: { points: { size: 7 }, drag: { setScale: true, x: true, y: false } },
        scales: {
          x: { time: false, range: (_, low, high) => (series[0].kind === "area" ? [low - 0.6, high + 0.6] : widen(low, high)) },
          y: { range: (_, low, high) => rangeOf(low, high, [...include, ...bounds.map((bound) => bound.value), ...extremes(series)]) },
        },
        axes: [
          { ...axis, label: options.x.label, labelSize: 18, labelFont: "11px system-ui, sans-serif", size: 26, values: (_, splits, _axis, _space, step) => (options.x.ticks ? splits.map(options.x.ticks) : tickLabels(splits, step, false)) },
          { ...axis, size: axisSize, values: (_, splits, _axis, _space, step) => tickLabels(splits, step, share) },
        ],
        series: [{}, ...series.map(plotSeries)],
        hooks: {
          drawAxes: [(drawing) => series.filter((one) => one.low).forEach((one) => drawIntervals(drawing, one))],
          draw: [(drawing) => drawBounds(drawing, bounds)],
          setCursor: [(drawing) => describe(drawing.cursor.idx === undefined ? null : drawing.cursor.idx)],
        },
      }, [xs, ...series.map((one) => one.values)], holder);
      drawn.add(plot);
      followPointer(plot, holder);
      new ResizeObserver(() => {
        if (holder.clientWidth > 0 && holder.clientWidth !== plot.width) plot.setSize({ width: holder.clientWidth, height });
      }).observe(holder);
    };
    holder.style.setProperty("min-height", `${height}px`);
    // A chart out of view is drawn when the reader comes near it.
    new IntersectionObserver((seen, observer) => {
      if (seen.some((one) => one.isIntersecting)) {
        observer.disconnect();
        build();
      }
    }, { rootMargin: "300px" }).observe(holder);
    return figure;
  };

  const extremes = (series) => {
    const found = [];
    for (const one of series) {
      if (!one.low) continue;
      for (const values of [one.low, one.high]) found.push(...values.filter((value) => value !== null && value !== undefined));
    }
    return found;
  };

  // Training steps and evaluations of some metrics over joint samples, steps or time.
  const metricSeries = (run, group, axis) => {
    const { training, evaluations } = run;
    const { xs, spread } = joined(training[axis], evaluations[axis]);
    const series = [];
    group.series.forEach(([label, name], index) => {
      const hue = seriesColour(label, index);
      const trained = column(training, name);
      const both = trained && evaluations.metrics[name] !== undefined;
      if (trained) {
        const values = spread(training[axis], trained);
        const smooth = !group.exact && values.filter((value) => value !== null).length >= MIN_POINTS_SMOOTHED;
        series.push({ label, values, colour: hue, kind: "line", faint: smooth, hidden: smooth });
        if (smooth) series.push({ label: both ? `${label} training`.trim() : label, values: centredMean(values), colour: hue, kind: "line" });
      }
      const held = column(evaluations, name);
      if (held) {
        const entry = { label: `${label} held-out`.trim(), values: spread(evaluations[axis], held), colour: hue, kind: "evaluations" };
        const bounds = evaluations.intervals[name];
        if (bounds) {
          entry.low = spread(evaluations[axis], bounds.map((bound) => bound[0]));
          entry.high = spread(evaluations[axis], bounds.map((bound) => bound[1]));
        }
        series.push(entry);
      }
    });
    return { xs, series };
  };

  // Turns have the shades of turns, agents their colours, and other names the palette of levels.
  const seriesColour = (label, index) => {
    const turn = /^turn (\d+)$/.exec(label);
    if (turn) return `turn-${Math.min(4, Number(turn[1]))}`;
    const agent = /^(?:agent|policy) (\d+)$/.exec(label);
    if (agent) return `agent-${Number(agent[1]) % 8}`;
    return label === "" ? "turn-2" : `level-${index % 8}`;
  };

  const AXES = {
    samples: { label: "joint samples", values: "samples" },
    steps: { label: "step", values: "step" },
    time: { label: "time", values: "time", format: page.duration, ticks: page.duration },
  };

  const sparkline = (values, hue, label) => {
    const present = values.filter((value) => value !== null && value !== undefined);
    if (present.length < 2) return null;
    const [low, high] = [Math.min(...present), Math.max(...present)];
    const span = high - low || 1;
    const points = present.map((value, index) => {
      const x = (100 * index) / (present.length - 1);
      return `${x.toFixed(2)},${(26 - (24 * (value - low)) / span).toFixed(2)}`;
    });
    return svg("svg", { class: "spark", viewBox: "0 0 100 28", preserveAspectRatio: "none", role: "img", "aria-label": label },
      svg("polyline", { points: points.join(" "), style: { stroke: `var(--${hue})` } }));
  };

  return { chart, column, joined, centredMean, metricSeries, seriesColour, sparkline, AXES };
})();
