"use strict";
// What changed: one held-out task before and after training, as a conversation.
{
  const { el, number } = page;

  const percentage = (found, episode) => {
    if (found.report === undefined) return "";
    const report = episodes.tables(episode).reports[found.report];
    return `, ${report.passed} of ${report.total} tests`;
  };

  const bubble = (episode, node, parent, agent, action) => {
    const words = episodes.answer(episode, node, agent, action);
    const before = parent ? episodes.answer(episode, parent, agent, node.path[node.path.length - 1]) : null;
    return el("div", { class: "bubble", style: { background: `var(--agent-${episodes.hue(agent)}-ground)` } },
      episodes.agentName(episode, agent),
      before === null ? null : el("span", { class: "quiet small" }, ` ${episodes.changeCount(before, words)}`),
      episodes.changes(before, words));
  };

  const turn = (episode, node, parent) => {
    const action = episodes.firstAction(episode, node);
    const found = episodes.outcome(episode, node, action);
    const agents = episodes.agents(node);
    const size = node.outcomes.length;
    const which = size > 1 ? ` (joint action ${action} of ${size})` : "";
    return [
      parent ? episodes.sharedFeedback(episode, parent, node) : null,
      el("h4", {}, `Turn ${node.turn}: reward ${number(found.reward)}${percentage(found, episode)}`, el("span", { class: "quiet small" }, which)),
      el("div", { class: "bubbles" }, agents.map((agent) => bubble(episode, node, parent, agent, action))),
      episodes.chips(episode, found),
    ];
  };

  const side = (title, episode) => {
    const branch = episodes.branch(episode);
    return el("div", { class: "side" },
      el("h3", {}, title, " ", el("a", { class: "small", href: `#rollouts/${episode.id}` }, "all of it")),
      episode.stops.length > 0 ? el("p", { class: "alert small" }, `ended: ${episode.stops[0].reason.replaceAll("_", " ")}`) : null,
      branch.map((node, place) => turn(episode, node, branch[place - 1] || null)));
  };

  const choiceWords = (changed, run) => {
    const count = changed.pairs.length;
    const evaluated = charts.column(run.evaluations, "episodes");
    const all = evaluated && evaluated.length > 0 ? Math.max(...evaluated.filter(Number.isFinite)) : count;
    const recorded = `${count} of ${Math.max(all, count)} held-out tasks ${count === 1 ? "is" : "are"} recorded before and after training`;
    if (changed.improved === 0) return `${recorded}. None has improved; the median is shown first.`;
    return `${recorded}, and ${changed.improved} improved. The median of these is shown first, not the best.`;
  };

  page.panel("changed", (root, run) => {
    const data = run.episodes || { total: 0, changed: null };
    root.replaceChildren(el("h2", {}, "What changed"));
    if (!data.changed) {
      root.append(...single(data));
      return;
    }
    const { pairs, before, after, start } = data.changed;
    let place = start;
    const show = (next) => {
      place = (next + pairs.length) % pairs.length;
      const [first, last, gain] = pairs[place];
      const task = episodes.find(first).task;
      title.textContent = `${page.printable(task)}: mean reward of the last turn ${gain >= 0 ? "+" : "−"}${number(Math.abs(gain))}`;
      position.textContent = `task ${place + 1} of ${pairs.length}, by improvement`;
      body.replaceChildren(
        side(`Before training (step ${before})`, episodes.find(first)),
        side(run.state.kind === "finished" ? `After training (step ${after})` : `At step ${after}`, episodes.find(last)));
    };
    const title = el("b", {});
    const position = el("span", { class: "quiet small" });
    const body = el("div", { class: "before-after" });
    const several = pairs.length > 1;
    root.append(
      el("p", { class: "quiet small" }, choiceWords(data.changed, run)),
      el("p", { class: "steps" }, title, position,
        several ? el("button", { onclick: () => show(place - 1) }, "previous task") : null,
        several ? el("button", { onclick: () => show(place + 1) }, "next task") : null),
      body);
    show(place);
  });

  // Without two evaluations of a task: the latest episode, held-out if there is one.
  const single = (data) => {
    const all = data.episodes || [];
    const heldOut = all.filter((episode) => episode.kind === "eval");
    const latest = (heldOut.length > 0 ? heldOut : all).at(-1);
    if (!latest) return [el("p", { class: "quiet" }, data.note || "The run has recorded no episode yet.")];
    const why = heldOut.length > 0
      ? "No held-out task is recorded twice yet, before and after training."
      : "The run has recorded no held-out task; this is its latest training task.";
    return [el("p", { class: "quiet small" }, why), side(`${latest.task}, step ${latest.step}`, latest)];
  };
}
