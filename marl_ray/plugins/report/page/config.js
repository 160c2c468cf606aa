"use strict";
{
  page.tab("config", "Config", (root, run) => {
    root.append(page.el("p", {}, run.name));
  });
}
