"use strict";
// A list of runs: a table that sorts, and the runs side by side.
{
  const { el, number } = page;
  const MAX_KEY_SETTINGS = 4;

  const rewardText = (reward) => {
    if (!reward) return "–";
    const before = reward.before === null ? "" : `${number(reward.before)} → `;
    const interval = reward.interval && reward.interval[0] < reward.interval[1] ? ` [${number(reward.interval[0])}, ${number(reward.interval[1])}]` : "";
    return `${before}${number(reward.after)}${interval}${reward.held_out ? "" : " (training)"}`;
  };

  const keySettings = (data, place) =>
    data.settings.filter((setting) => setting.is_key).slice(0, MAX_KEY_SETTINGS).map((setting) => `${setting.key} ${setting.values[place]}`);

  const columns = [
    { title: "run", key: (row) => row.run.name, cell: (row) => (row.run.link ? el("a", { href: row.run.link }, row.run.name) : row.run.name) },
    { title: "state", key: (row) => (row.run.state ? row.run.state.kind : "unreadable"), cell: (row) => stateCell(row.run) },
    { title: "reward", key: null, cell: (row) => (row.run.spark ? charts.sparkline(row.run.spark, "turn-2", "training reward over the steps") : null) },
    { title: "last held-out reward", key: (row) => (row.run.reward ? row.run.reward.after : -Infinity), cell: (row) => rewardText(row.run.reward) },
    { title: "settings that differ", key: (row) => row.settings.join(" "), cell: (row) => row.settings.map((text) => el("div", { class: "small" }, text)) },
    { title: "started", key: (row) => (row.run.state && row.run.state.started) || 0, cell: (row) => (row.run.state ? page.date(row.run.state.started) : "") },
  ];

  const stateCell = (run) => {
    if (run.problem) return el("span", { class: "bad" }, run.problem);
    const cause = run.state.cause ? el("div", { class: "small bad" }, run.state.cause) : null;
    return [el("span", { class: `chip state ${run.state.kind}` }, page.stateText(run.state)), cause];
  };

  const order = { column: null, down: false };

  page.tab("runs", "Runs", (root, data) => {
    const rows = [];
    let place = 0;
    for (const run of data.runs) {
      rows.push({ run, settings: run.problem ? [] : keySettings(data, place) });
      if (!run.problem) place += 1; // unreadable runs have no values of settings
    }
    const body = el("tbody");
    const heads = columns.map((column) => {
      const button = column.key ? el("button", { class: "sort", onclick: () => sortBy(column) }, column.title) : column.title;
      return el("th", { scope: "col" }, button);
    });
    const fill = () => {
      const sorted = [...rows];
      if (order.column) {
        const key = order.column.key;
        sorted.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (order.down ? -1 : 1));
      }
      body.replaceChildren(...sorted.map((row) => el("tr", {}, columns.map((column) => el("td", {}, column.cell(row))))));
      columns.forEach((column, index) => {
        if (column === order.column) heads[index].setAttribute("aria-sort", order.down ? "descending" : "ascending");
        else heads[index].removeAttribute("aria-sort");
      });
    };
    const sortBy = (column) => {
      order.down = order.column === column ? !order.down : false;
      order.column = column;
      fill();
    };
    root.append(el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Runs" }, el("table", { class: "runs" }, el("thead", {}, el("tr", {}, heads)), body)));
    fill();
  });

  // One window in samples for all curves, symmetric at each point: a window in steps, or of predecessors only, could
  // draw a better run lower.
  const smoothed = (points, width) => {
    const first = points[0][0];
    const last = points[points.length - 1][0];
    return points.map(([x]) => {
      const half = Math.min(width / 2, x - first, last - x) + 1e-9;
      const near = points.filter(([other]) => Math.abs(other - x) <= half);
      return [x, near.reduce((sum, [, y]) => sum + y, 0) / near.length];
    });
  };

  const drawCurves = (root, data, one) => {
    const width = Math.max(...one.curves.filter((curve) => curve.length).map((curve) => curve[curve.length - 1][0] - curve[0][0])) / 10;
    const xs = [...new Set(one.curves.flatMap((curve) => curve.map(([x]) => x)))].sort((a, b) => a - b);
    const index = new Map(xs.map((x, place) => [x, place]));
    const values = (points) => {
      const filled = new Array(xs.length).fill(null);
      for (const [x, y] of points) filled[index.get(x)] = y;
      return filled;
    };
    const series = [];
    one.curves.forEach((curve, run) => {
      if (curve.length === 0) return;
      const colour = `run-${run % 8}`;
      if (one.held_out) {
        series.push({ label: data.names[run], values: values(curve), colour, kind: "evaluations" });
        return;
      }
      series.push({ label: data.names[run], values: values(curve), colour, kind: "line", faint: true, hidden: true });
      series.push({ label: data.names[run], values: values(smoothed(curve, width)), colour, kind: "line" });
    });
    const title = `${one.title}, ${one.held_out ? "held-out" : "training"}`;
    charts.chart(root, { title, unit: one.unit, series, x: { values: xs, label: "joint samples" } });
  };

  const table = (head, rows) => el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": head[0] || "Values" },
    el("table", {}, el("thead", {}, el("tr", {}, head.map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", {}, rows.map(([title, cells]) => el("tr", {}, el("th", { scope: "row" }, title), cells.map((cell) => el("td", {}, cell)))))));

  page.tab("compare", "Compare", (root, data) => {
    const grid = el("div", { class: "charts" });
    root.append(el("p", { class: "quiet small" },
      "A chart has one quantity for all runs: held-out tasks if every run has three evaluations or more, else training tasks. Bold: centred mean over a tenth of the longest run."), grid);
    data.charts.forEach((one) => drawCurves(grid, data, one));
    root.append(el("h2", {}, "Last values"), el("p", { class: "quiet small" }, "mean of the last ten training steps; last held-out evaluation, with its 95% interval over tasks"));
    for (const [title, rows] of Object.entries(data.values)) {
      if (rows.length === 0) continue;
      const values = table([title, ...data.names], rows);
      root.append(title === "rewards" ? values : el("details", {}, el("summary", {}, title), values));
    }
    root.append(el("h2", {}, "Settings that differ"));
    root.append(data.settings.length ? table(["setting", ...data.names], data.settings.map((setting) => [setting.key, setting.values])) : el("p", {}, "none"));
  });
}
