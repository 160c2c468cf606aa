"use strict";
// Where the time of a run goes, what its machines do, and the signs of a healthy run.
{
  const { el, svg, number, percent, duration } = page;
  const MAX_TRUNCATED = 0.5;
  const MAX_LOGPROB_GAP = 0.1;
  const MIN_SAMPLE_SIZE = 0.9;

  const stepTime = (root, run) => {
    const found = run.time_parts;
    if (!found) return;
    // Each area covers the next one, so the values drawn are sums.
    const names = Object.keys(found.parts);
    const sums = new Array(found.step.length).fill(0);
    const stacked = names.map((name) => {
      found.parts[name].forEach((value, index) => { sums[index] += value; });
      const [hue, label] = page.timeParts[name];
      return { label, values: [...sums], shown: found.parts[name], colour: hue, kind: "area" };
    });
    charts.chart(root, {
      title: "Wall time of each step", unit: "s", height: 260, series: stacked.reverse(), include: [0],
      x: { values: found.step, label: "step" },
      note: "At each moment one part counts, so the parts add up. An evaluation belongs to the step behind it.",
    });
  };

  const waits = (run) => {
    const picture = run.waits;
    if (!picture) return null;
    const [left, width, bar, gap, ticks] = [90, 940, 20, 8, 5];
    const height = picture.tracks.length * (bar + gap);
    const nameOf = (kind) => (kind === "wait" ? "waits" : page.timeParts[kind][1]);
    const scale = (width - left) / Math.max(picture.seconds, 1e-6);
    const rows = picture.tracks.map((track, place) => {
      const y = place * (bar + gap);
      const bars = track.bars.map(([kind, step, from, to]) => {
        const text = `${kind === "wait" ? `waits for ${track.waits_for}` : nameOf(kind)}, step ${step}: ${(to - from).toFixed(2)} s`;
        return svg("rect", { x: left + from * scale, y, width: Math.max(0.5, (to - from) * scale), height: bar, style: { fill: `var(--time-${kind})` } }, svg("title", {}, text));
      });
      const ground = svg("rect", { x: left, y, width: width - left, height: bar, style: { fill: "var(--rule)", opacity: "0.5" } });
      return [svg("text", { x: 0, y: y + 14 }, track.title), ground, bars];
    });
    const axis = Array.from({ length: ticks + 1 }, (_, place) => {
      const seconds = (picture.seconds * place) / ticks;
      const anchor = place === 0 ? "start" : place === ticks ? "end" : "middle";
      return svg("text", { x: left + seconds * scale, y: height + 12, "text-anchor": anchor }, duration(seconds));
    });
    const kinds = [...new Set(picture.tracks.flatMap((track) => track.bars.map((one) => one[0])))];
    const title = `Who waited for whom: the last ${picture.steps} steps, ${duration(picture.seconds)}`;
    return el("figure", { class: "chart" }, el("figcaption", {}, title),
      el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Picture of work and waits" },
        svg("svg", { class: "waits", viewBox: `0 0 ${width} ${height + 16}`, role: "img", "aria-label": run.wait_times.join(" ") || title }, rows, axis)),
      el("div", { class: "legend" }, kinds.map((kind) =>
        el("span", { class: "entry" }, el("span", { class: "key", style: { "--key": `var(--time-${kind})` } }), nameOf(kind))),
        el("span", { class: "entry" }, el("span", { class: "key", style: { "--key": "var(--rule)" } }), "no work, as learners during an evaluation")));
  };

  const small = (root, run, title, unit, suffix, bounds = [], include = [], exact = false) => {
    const names = Object.keys(run.training.metrics).filter((name) => name === suffix || name.endsWith(`/${suffix}`));
    if (names.length === 0) return;
    const labels = names.map((name) => {
      const owner = /^(agent|policy|turn)_(\d+)\//.exec(name);
      return owner ? `${owner[1]} ${owner[2]}` : "";
    });
    const { xs, series } = charts.metricSeries(run, { exact, series: names.map((name, index) => [labels[index], name]) }, "step");
    charts.chart(root, { title, unit, series, bounds, include, height: 150, x: { values: xs, label: "step" } });
  };

  const limit = (value) => (Number.isFinite(value) ? [{ value, label: `limit ${number(value)}` }] : []);

  const health = (root, run) => {
    const { bounds } = run.setup;
    small(root, run, "Length of a completion", "tokens", "rollout/completion_tokens_mean", limit(bounds.max_new_tokens), [0]);
    small(root, run, "Completions cut off", "share", "rollout/truncated_rate", [{ value: MAX_TRUNCATED, label: "warning from here" }], [0]);
    small(root, run, "Entropy", "nats/token", "entropy", [], [0]);
    small(root, run, "Norm of the gradient", "", "grad_norm", bounds.max_grad_norm ? [{ value: bounds.max_grad_norm, label: `clipped above ${number(bounds.max_grad_norm)}` }] : [], [0]);
    skipped(root, run);
    small(root, run, "Learner and sampler differ by", "nats/token", "logprob_gap", [{ value: MAX_LOGPROB_GAP, label: "warning from here" }], [0]);
    small(root, run, "Effective sample size", "share", "effective_sample_size", [{ value: MIN_SAMPLE_SIZE, label: "warning below" }], [1]);
    small(root, run, "Staleness, maximum", "versions", "staleness_max", limit(bounds.max_staleness), [0], true);
  };

  const skipped = (root, run) => {
    if (run.training.metrics["rollout/skipped"] !== undefined) {
      small(root, run, "Episodes without a gradient", "episodes", "rollout/skipped", [], [0]);
    }
    small(root, run, "Deviation of rewards within a group", "", "group_std_mean", [{ value: 0, label: "0: no gradient" }], [0]);
  };

  const list = (title, lines) => (lines.length ? [el("h2", {}, title), el("ul", {}, lines.map((line) => el("li", {}, line)))] : null);

  page.tab("system", "System", (root, run) => {
    const notes = run.overview.warning ? [`${run.overview.warning.text}. ${run.overview.warning.remedy}`, ...run.overview.warning.others] : [];
    const time = el("div", { class: "card" });
    const others = el("section", { "aria-label": "Health" }, el("h2", {}, "Health"));
    const grid = el("div", { class: "charts" });
    root.append(time, others);
    others.append(grid);
    stepTime(time, run);
    const picture = waits(run);
    if (picture) time.append(picture);
    const words = [...run.wait_times, ...run.memory];
    if (words.length) time.append(el("ul", {}, words.map((line) => el("li", {}, line))));
    if (time.childElementCount === 0) time.append(el("p", { class: "quiet" }, "No step yet."));
    health(grid, run);
    small(grid, run, "Queue of the generators, maximum", "sequences", "sequences_in_flight_max", [], [0], true);
    small(grid, run, "Queue of the learners, maximum", "groups", "groups_waiting_max", [], [0], true);
    small(grid, run, "Queue of the sandbox, maximum", "programs", "sandbox/pending_max", [], [0], true);
    small(grid, run, "Throughput of the rollout", "tokens/s", "rollout/tokens_per_s", [], [0]);
    small(grid, run, "Throughput of the sandbox", "programs/s", "sandbox/executions_per_s", [], [0]);
    for (const one of run.charts.filter((chart) => chart.unit === "MB")) {
      const { xs, series } = charts.metricSeries(run, one, "step");
      charts.chart(grid, { title: one.title, unit: one.unit, series, include: [0], height: 150, x: { values: xs, label: "step" } });
    }
    const notesList = list("Notes", notes);
    if (notesList) root.append(el("section", { "aria-label": "Notes" }, notesList));
    page.drawPanel("all_metrics", root, run);
  });
}
