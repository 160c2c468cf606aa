"use strict";
// The bar that stays in view: the name of the run and its state.
{
  page.panel("bar", (root, run) => {
    root.replaceChildren(page.el("h1", {}, run.name));
  });
}
