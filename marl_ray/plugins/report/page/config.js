"use strict";
// The configuration of the run, its machine, and the traceback of an error.
{
  const { el } = page;

  const table = (head, rows) => el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": head.join(", ") },
    el("table", {}, el("tr", {}, head.map((title) => el("th", { scope: "col" }, title))),
      rows.map(([first, ...others]) => el("tr", {}, el("th", { scope: "row" }, first), others.map((cell) => el("td", {}, cell))))));

  const section = (title, content) => el("section", { "aria-label": title }, el("h2", {}, title), content);

  page.tab("config", "Config", (root, run) => {
    const { state } = run;
    if (state.traceback) root.append(section("Error that ended the run", el("pre", { tabindex: "0" }, state.traceback)));
    root.append(el("p", { class: "quiet small" }, run.path));
    if (run.settings.length) root.append(section("Settings that differ from their defaults", table(["setting", "value", "default"], run.settings)));
    const machine = run.machine.length ? table(["machine and versions", "value"], run.machine) : el("p", { class: "quiet" }, "The run has no machine.json: its actors have not been ready.");
    root.append(section("Machine and versions", machine));
    if (run.config_text) root.append(section("config.yaml", el("pre", { class: "whole", tabindex: "0" }, run.config_text)));
    if (state.log.length) root.append(section("Last messages of run.log", el("pre", { tabindex: "0" }, state.log.join("\n"))));
  });
}
