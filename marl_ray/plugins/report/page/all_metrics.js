"use strict";
// Every metric of the run behind one search field.
{
  const { el, number } = page;

  const values = (run, group) => {
    const found = [];
    for (const [, name] of group.series) {
      for (const table of [run.training, run.evaluations]) {
        const column = table.metrics[name];
        if (Array.isArray(column)) found.push(...column.filter((value) => value !== null));
        else if (column !== undefined) found.push(column);
      }
    }
    return found;
  };

  page.panel("all_metrics", (root, run) => {
    const field = el("input", { type: "search", placeholder: "search: entropy, turn_2, tokens …", "aria-label": "Search the metrics" });
    const count = el("span", { class: "quiet small", role: "status" });
    const place = el("div");
    const section = el("section", { id: "all-metrics", "aria-label": "All metrics" }, el("h2", {}, "All metrics"), el("p", {}, field, " ", count), place);
    const { training } = run;
    if (training.rows > training.step.length) {
      section.append(el("p", { class: "quiet small" }, `The charts show ${training.step.length} of ${training.rows} steps, at equal distances.`));
    }
    root.append(section);

    const parts = [];
    const sections = new Map();
    for (const group of run.charts) {
      if (!sections.has(group.section)) {
        const grid = el("div", { class: "charts" });
        const constants = el("p", { class: "quiet small" });
        const details = el("details", {}, el("summary", {}, el("b", {}, group.section)), grid, constants);
        sections.set(group.section, { details, grid, constants });
        place.append(details);
      }
      const own = sections.get(group.section);
      const text = `${group.section} ${group.title} ${group.series.flat().join(" ")}`.toLowerCase();
      const found = values(run, group);
      if (found.length === 0) continue;
      let node;
      if (found.every((value) => value === found[0])) {
        node = el("span", {}, `${group.title}: always ${number(found[0])}${group.unit ? ` ${group.unit}` : ""}. `);
        own.constants.append(node);
      } else {
        const { xs, series } = charts.metricSeries(run, group, "step");
        node = charts.chart(own.grid, { title: group.title, unit: group.unit, series, height: 150, x: { values: xs, label: "step" } });
        node.append(el("p", { class: "quiet small name" }, group.series.map(([, name]) => name).join(", ")));
      }
      parts.push({ text, node, own });
    }

    const search = () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      const open = new Set();
      for (const { text, node, own } of parts) {
        const fits = words.every((word) => text.includes(word));
        node.hidden = !fits;
        if (fits) {
          shown += 1;
          open.add(own.details);
        }
      }
      for (const { details } of sections.values()) {
        details.hidden = !open.has(details);
        if (words.length) details.open = open.has(details);
      }
      count.textContent = words.length ? `${shown} of ${parts.length}` : `${parts.length} charts and constants`;
    };
    field.addEventListener("input", search);
    search();
  });
}
