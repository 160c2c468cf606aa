"use strict";
{
  page.tab("system", "System", (root, run) => {
    root.append(page.el("p", {}, run.name));
  });
}
