"use strict";
// What changed: one held-out task before and after training, as a conversation.
{
  const { el } = page;
  const { points } = episodes;
  const STATEMENT_LINES = 3;

  const testWords = (found, episode) => {
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
    const which = size > 1 ? ` (${episodes.sampleName(action)} of ${size})` : "";
    return [
      parent ? episodes.sharedFeedback(episode, parent, node) : null,
      el("h4", {}, `Turn ${node.turn}: reward ${points(found.reward)}${testWords(found, episode)}`, el("span", { class: "quiet small" }, which)),
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

  // The lines with which the prompts of all agents begin are the task; prompts without one are shown from their start.
  const statement = (episode) => {
    const [root] = episode.nodes;
    const prompts = root.prompts.map((index) => episodes.text(episode, index).split("\n"));
    const [first, ...others] = prompts;
    let end = first.findIndex((line, place) => others.some((lines) => lines[place] !== line));
    if (end <= 0) end = first.length;
    const lines = first.slice(0, end).filter((line) => line.trim() !== "");
    return el("details", {},
      el("summary", {}, el("code", { class: "statement" }, lines.slice(0, STATEMENT_LINES).join("\n"))),
      episodes.agents(root).map((agent) => [
        episodes.agentName(episode, agent), el("pre", { tabindex: "0" }, episodes.promptOf(episode, root, agent, 0))]));
  };

  const lastTurnSamples = (episode) => {
    const last = Math.max(...episode.nodes.map((node) => node.turn));
    return episode.nodes.filter((node) => node.turn === last).flatMap((node) => node.outcomes).length;
  };

  const evaluatedTasks = (run, least) => {
    const counts = (charts.column(run.evaluations, "episodes") || []).filter(Number.isFinite);
    return Math.max(least, ...counts);
  };

  const choiceWords = (changed, run, place) => {
    const count = changed.pairs.length;
    const example = `Example ${place + 1} of ${count} recorded (of ${evaluatedTasks(run, count)} held-out tasks)`;
    if (count === 1) return example;
    return `${example}, ${changed.improved} improved; by improvement, the median first`;
  };

  const gainWords = (before, after, run) => {
    const count = lastTurnSamples(after);
    const change = `${points(before.reward)} → ${points(after.reward)}`;
    if (count === 1) return `reward of the last turn ${change}`;
    const training = run.setup.generations ? ` (training draws ${run.setup.generations})` : "";
    return `mean of ${count} samples ${change}; one sample is shown${training}`;
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
      const [first, last] = pairs[place].slice(0, 2).map(episodes.find);
      title.textContent = `${page.printable(first.task)}: ${gainWords(first, last, run)}`;
      position.textContent = choiceWords(data.changed, run, place);
      task.replaceChildren(statement(first));
      body.replaceChildren(
        side(`Before training (step ${before})`, first),
        side(run.state.kind === "finished" ? `After training (step ${after})` : `At step ${after}`, last));
    };
    const title = el("b", {});
    const position = el("span", { class: "quiet small" });
    const task = el("div");
    const body = el("div", { class: "before-after" });
    const several = pairs.length > 1;
    root.append(
      el("p", { class: "steps" }, position,
        several ? el("button", { onclick: () => show(place - 1) }, "previous task") : null,
        several ? el("button", { onclick: () => show(place + 1) }, "next task") : null),
      el("p", {}, title), task, body);
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
