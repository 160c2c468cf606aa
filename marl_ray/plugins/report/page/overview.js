"use strict";
// The first screen: did the run learn, how far is it, do the agents cooperate, what do they say, where does time go.
{
  page.tab("overview", "Overview", (root, run) => {
    const changed = page.el("section", { class: "card", "aria-label": "What changed" });
    root.append(changed);
    page.drawPanel("changed", changed, run);
  });
}
