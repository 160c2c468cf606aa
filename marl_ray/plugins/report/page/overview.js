"use strict";
// The first screen: did the run learn, how far is it, do the agents cooperate, what do they say, where does time go.
{
  const { el, svg, number, short, percent, duration } = page;
  const MIN_SHARE_NAMED = 0.05; // smaller parts of the time are one entry of the legend

  const PARTS = {
    rollout: ["time-rollout", "rollout"],
    "rollout and learn": ["time-both", "both at once"],
    learn: ["time-learn", "learners"],
    sync: ["time-sync", "weights sent"],
    evaluation: ["time-evaluation", "evaluation"],
    save: ["time-save", "checkpoint"],
    other: ["time-other", "neither"],
  };
  page.timeParts = PARTS;

  const tile = (title, value, note, picture) =>
    el("div", { class: "card tile" }, el("h2", {}, title), el("p", { class: "value" }, value), el("p", { class: "quiet small" }, note), picture);

  const change = (numbers, format) => {
    if (numbers.before === null) return format(numbers.after);
    return [el("span", { class: "quiet" }, `${format(numbers.before)} → `), format(numbers.after)];
  };

  // The interval is symmetric, so that it may end above the maximum, which no mean exceeds.
  const source = (numbers, format, most) => {
    if (!numbers.held_out) return "training tasks, first and last steps";
    const now = numbers.training_now === null ? "" : `; training, last steps: ${format(numbers.training_now)}`;
    if (numbers.before === null) return `${numbers.tasks} tasks at step ${numbers.step}${now}`;
    const { interval, tasks } = numbers;
    if (!interval || interval[0] === interval[1]) return `${tasks} held-out tasks`;
    return `95% interval ${format(interval[0])} to ${format(cut(interval[1], most))}; ${tasks} held-out tasks`;
  };

  const cut = (value, most) => (most === null || value === undefined || value === null ? value : Math.min(value, most));

  const trend = (run, metric, label) => {
    const trained = charts.column(run.training, metric);
    const values = trained || charts.column(run.evaluations, metric);
    const line = values ? charts.sparkline(charts.centredMean(values), "turn-2", label) : null;
    if (line === null) return null;
    return [line, el("p", { class: "quiet small" }, trained ? "line: training tasks" : "line: held-out tasks")];
  };

  const timeBar = (total) => {
    const names = Object.keys(PARTS).filter((name) => total[name] > 0);
    const sum = names.reduce((seconds, name) => seconds + total[name], 0);
    const shares = names.map((name) => `${PARTS[name][1]} ${percent(total[name] / sum)}`);
    const bar = el("div", { class: "timebar", role: "img", "aria-label": `Time: ${shares.join(", ")}` },
      names.map((name) => el("span", { title: `${PARTS[name][1]} ${percent(total[name] / sum)}`, style: { "flex-grow": String(total[name] / sum), background: `var(--${PARTS[name][0]})` } })));
    const entry = (keys, label, seconds) => el("span", { class: "entry" },
      keys.map((name) => el("span", { class: "key", style: { "--key": `var(--${PARTS[name][0]})` } })), `${label} ${percent(seconds / sum)} `);
    const largeFirst = [...names].sort((a, b) => total[b] - total[a]);
    const named = largeFirst.filter((name) => total[name] / sum >= MIN_SHARE_NAMED);
    const rest = largeFirst.filter((name) => !named.includes(name));
    const entries = named.map((name) => entry([name], PARTS[name][1], total[name]));
    if (rest.length === 1) entries.push(entry(rest, PARTS[rest[0]][1], total[rest[0]]));
    if (rest.length > 1) entries.push(entry(rest, "other", rest.reduce((seconds, name) => seconds + total[name], 0)));
    return [bar, el("p", { class: "small keys" }, entries)];
  };

  // What partners add over one agent asked twice; if that is not measured, whether rewards depend on the partner.
  const partnersTile = (run) => {
    const { agreement, partners } = run.overview;
    const measured = partners || agreement;
    if (!measured) {
      return run.setup.agents > 1 ? tile("Do partners help?", "–", "not measured: set output.measure_cooperation", null) : null;
    }
    const name = measured.held_out ? "evaluation" : "step";
    const rows = measured.held_out ? "held-out" : "training";
    const window = measured.recent_rows === 1 ? `last ${name}` : `mean of last ${measured.recent_rows} ${name}s`;
    const numbers = { before: measured.first, after: measured.recent };
    if (partners) {
      const signed = (value) => `${value > 0 ? "+" : ""}${short(value)}`;
      return tile("Gain over one agent asked twice", change(numbers, signed), `reward; ${rows}, first ${name} → ${window}`, trend(run, partners.metric, "gain over the steps"));
    }
    const note = `of joint answers; ${rows}, first ${name} → ${window}`;
    return tile("Same reward with a different partner's answer", change(numbers, percent), note, trend(run, agreement.metric, "unchanged rewards over the steps"));
  };

  const tiles = (run) => {
    const { reward, solved, speed } = run.overview;
    const most = run.setup.max_reward;
    const list = el("div", { class: "tiles" });
    if (reward) {
      const of = most === null ? "" : el("span", { class: "quiet unit" }, ` of ${number(most)}`);
      const title = reward.held_out ? "Held-out reward" : "Training reward";
      list.append(tile(title, [change(reward, short), of], source(reward, short, most), trend(run, reward.metric, "reward over the steps")));
    }
    if (solved) list.append(tile("Tasks solved", change(solved, percent), source(solved, percent, 1), trend(run, solved.metric, "solved tasks over the steps")));
    const partners = partnersTile(run);
    if (partners) list.append(partners);
    if (speed) {
      const whole = duration(speed.training_seconds + speed.evaluation_seconds);
      const window = speed.steps === 1 ? "last step" : `mean of last ${speed.steps} steps`;
      const note = `${window}, ${number(Math.round(speed.tokens_per_s))} tokens/s; whole run with evaluations ${whole}`;
      const value = [duration(speed.step_seconds), el("span", { class: "quiet unit" }, " per step")];
      list.append(tile("Time", value, note, run.time_parts ? timeBar(run.time_parts.total) : null));
    }
    return list;
  };

  // Evaluations are the main curve, training steps are points, and the maximum is dashed.
  const rewardSeries = (run, axis) => {
    const { training, evaluations } = run;
    const { xs, spread } = charts.joined(training[axis], evaluations[axis]);
    const points = [];
    const lines = [];
    for (let turn = 1; turn <= run.setup.turns; turn += 1) {
      const name = `turn_${turn}/reward_mean`;
      const hue = charts.seriesColour(run.setup.turns > 1 ? `turn ${turn}` : "", 0);
      const label = run.setup.turns > 1 ? `turn ${turn} ` : "";
      const trained = charts.column(training, name);
      if (trained) points.push({ label: `${label}training`, values: spread(training[axis], trained), colour: hue, kind: "points", faint: true });
      const held = charts.column(evaluations, name);
      if (held) {
        const bounds = evaluations.intervals[name] || [];
        lines.push({
          label: `${label}held-out`, values: spread(evaluations[axis], held), colour: hue, kind: "evaluations",
          low: spread(evaluations[axis], bounds.map((bound) => bound[0])),
          high: spread(evaluations[axis], bounds.map((bound) => cut(bound[1], run.setup.max_reward))),
        });
      }
    }
    const series = [...points, ...lines]; // the main curves lie upon the points
    return { xs, series };
  };

  const rewardCurve = (run) => {
    const place = el("div");
    const axes = el("select", { "aria-label": "Horizontal axis", onchange: (event) => draw(event.target.value) },
      Object.keys(charts.AXES).map((axis) => el("option", { value: axis }, `over ${axis}`)));
    const draw = (axis) => {
      const settings = charts.AXES[axis];
      const { xs, series } = rewardSeries(run, settings.values);
      const most = run.setup.max_reward;
      place.replaceChildren();
      charts.chart(place, {
        title: "Mean reward", height: 210, series, beside: axes,
        x: { ...settings, values: xs },
        bounds: most === null ? [] : [{ value: most, label: `maximum ${number(most)}` }],
      });
    };
    axes.value = "steps";
    draw("steps");
    return el("section", { class: "card", "aria-label": "Reward" }, place);
  };

  // A bar per time, divided into the levels: negative ones go to the left of zero.
  const levelBars = (levels) => {
    const after = levels.before === null ? `step ${levels.step}` : "after";
    const rows = [["before", levels.before], [after, levels.after]].filter(([, values]) => values !== null);
    const sums = (values, sign) => values.filter((value) => value * sign > 0).reduce((sum, value) => sum + value, 0);
    const low = Math.min(0, ...rows.map(([, values]) => sums(values, -1)));
    const high = Math.max(0, ...rows.map(([, values]) => sums(values, 1)));
    const scale = 100 / (high - low || 1);
    return el("div", { class: "levels" }, rows.map(([title, values]) => {
      let right = 0;
      let left = 0;
      const bars = values.map((value, index) => {
        const from = value >= 0 ? right : left + value;
        if (value >= 0) right += value;
        else left += value;
        const text = `${title}: ${levels.names[index]} ${value.toFixed(2)}`;
        return svg("rect", { x: (from - low) * scale, y: 0, width: Math.abs(value) * scale, height: 20, style: { fill: `var(--level-${index % 8})` } }, svg("title", {}, text));
      });
      const total = values.reduce((sum, value) => sum + value, 0);
      return [el("span", { class: "quiet small" }, title),
        svg("svg", { viewBox: "0 0 100 20", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${total.toFixed(2)}` }, bars),
        el("b", {}, total.toFixed(2))];
    }));
  };

  const levelCard = (run) => {
    const { levels } = run.overview;
    if (!levels) return null;
    const rows = levels.names.map((name, index) => el("tr", {},
      el("th", { scope: "row" }, el("span", { class: "key", style: { "--key": `var(--level-${index % 8})` } }), name),
      levels.before === null ? null : el("td", {}, levels.before[index].toFixed(2)), el("td", {}, levels.after[index].toFixed(2))));
    const head = el("tr", {}, el("th", { scope: "col" }, "level"), levels.before === null ? null : el("th", { scope: "col" }, "before"), el("th", { scope: "col" }, levels.before === null ? `step ${levels.step}` : "after"));
    return el("section", { class: "card", "aria-label": "Reward by level" },
      el("h2", {}, "Where the reward comes from"),
      el("p", { class: "quiet small" }, levels.held_out ? "levels of the last turn, held-out tasks" : "levels of the last turn, training"),
      levelBars(levels), el("div", { class: "scroll" }, el("table", {}, head, rows)));
  };

  const warning = (run) => {
    const { warning: found } = run.overview;
    if (!found) return null;
    return el("div", { class: "card warning", role: "note" }, el("b", {}, `${capital(found.text)}. `), found.remedy);
  };

  const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

  const failure = (run) => {
    const { state } = run;
    if (state.kind !== "failed") return null;
    return el("div", { class: "card failure" }, el("b", {}, "The run failed: "), state.cause,
      state.traceback ? el("details", {}, el("summary", {}, "traceback"), el("pre", { tabindex: "0" }, state.traceback)) : null);
  };

  const hasRows = (run) => run.training.step.length + run.evaluations.step.length > 0;

  const awaited = (run) => {
    const { state } = run;
    const title = state.kind === "starting" ? "The run is starting" : "The run has no step yet";
    // The machine is described once all actors are ready.
    const text = run.machine.length
      ? "The actors are ready. The page waits for the first evaluation or step."
      : "The page waits for the actors: generators, learners and sandbox workers.";
    return el("div", { class: "card" }, el("h2", {}, title), state.kind === "starting" ? el("p", {}, text) : null,
      el("pre", { tabindex: "0", "aria-label": "Last messages" }, state.log.join("\n") || "no message yet"));
  };

  const findings = (run) => {
    const lines = [...run.cooperation, ...run.wait_times];
    if (lines.length === 0) return null;
    return el("section", { class: "card", "aria-label": "Findings" }, el("h2", {}, "Findings"), el("ul", {}, lines.map((line) => el("li", {}, line))));
  };

  page.tab("overview", "Overview", (root, run) => {
    const failed = failure(run);
    if (failed) root.append(failed);
    if (!hasRows(run)) {
      root.append(awaited(run));
      return;
    }
    root.append(tiles(run));
    const warned = warning(run);
    if (warned) root.append(warned);
    const curves = el("div", { class: "split" }, rewardCurve(run), levelCard(run));
    root.append(curves);
    // On the first screen: what the agents say.
    const changed = el("section", { class: "card", "aria-label": "What changed" });
    root.append(changed);
    page.drawPanel("changed", changed, run);
    if (changed.childElementCount === 0) changed.remove();
    const found = findings(run);
    if (found) root.append(found);
  });
}
