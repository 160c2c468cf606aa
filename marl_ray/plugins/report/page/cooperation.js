"use strict";
// How the agents work together: rewards of pairs of answers, contributions, second turns, tokens.
{
  const { el, number } = page;
  const { points } = episodes;
  const OUTCOMES = [
    ["right → right", "good", (passing, keep) => passing * keep],
    ["wrong → right", "plus", (passing, keep, fix) => (1 - passing) * fix],
    ["right → wrong", "minus", (passing, keep) => passing * (1 - keep)],
    ["wrong → wrong", "zero", (passing, keep, fix) => (1 - passing) * (1 - fix)],
  ];

  // Parts of the names of metrics, in the order of their charts. The tab System has all metrics.
  const MEASURES = ["cooperation/agreement", "_contribution", "cooperation/", "/influence", "/difference_mean", "/keep_rate", "/fix_rate", "tokens/", "reward_per_token/"];

  const card = (title, ...children) => el("section", { class: "card", "aria-label": title }, el("h2", {}, title), children);

  // ---- the matrix ----
  // Equal answers share a row or a column: each entry is [text, numbers of the answers].
  const distinct = (node, agent) => {
    const numbers = new Map();
    node.responses[agent].forEach((text, index) => {
      const isPlayed = node.outcomes.some((_, action) => episodes.responseIndex(node, agent, action) === index);
      if (!isPlayed) return;
      if (!numbers.has(text)) numbers.set(text, []);
      numbers.get(text).push(index);
    });
    return [...numbers.entries()];
  };

  const pairRewards = (episode, node, first, second) => {
    const cells = new Map();
    node.outcomes.forEach((_, action) => {
      const row = node.responses[first][episodes.responseIndex(node, first, action)];
      const column = node.responses[second][episodes.responseIndex(node, second, action)];
      const key = `${row} ${column}`;
      if (!cells.has(key)) cells.set(key, []);
      cells.get(key).push(episodes.outcome(episode, node, action).reward);
    });
    return cells;
  };

  const answersTitle = (numbers) => `${numbers.length === 1 ? "answer" : "answers"} ${numbers.map((number) => number + 1).join(", ")}`;

  const matrix = (place, episode, node, first, second) => {
    const rows = distinct(node, first);
    const columns = distinct(node, second);
    const cells = pairRewards(episode, node, first, second);
    const below = el("div", { class: "columns" });
    const show = (button, row, column) => {
      for (const one of table.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one === button));
      below.replaceChildren(...[[first, row], [second, column]].map(([agent, [text, numbers]]) =>
        el("div", { class: "card agent", style: { "border-color": `var(--agent-${episodes.hue(agent)})` } },
          el("h3", {}, episodes.agentName(episode, agent), el("span", { class: "quiet small" }, ` ${answersTitle(numbers)}`)),
          el("pre", { class: "answer", tabindex: "0" }, episodes.text(episode, text)))));
    };
    const cell = (row, column) => {
      const found = cells.get(`${row[0]} ${column[0]}`);
      if (!found) return el("td", { class: "absent", title: "these answers were not drawn together" }, "·");
      const mean = episodes.mean(found);
      const title = `${answersTitle(row[1])} with ${answersTitle(column[1])}: ${found.length === 1 ? "reward" : `mean of ${found.length} rewards`} ${points(mean)}`;
      const button = el("button", { title, "aria-pressed": "false", style: { background: episodes.rewardColour(mean) } }, points(mean));
      button.addEventListener("click", () => show(button, row, column));
      return el("td", {}, button);
    };
    const head = ([, numbers]) => `${numbers[0] + 1}${numbers.length > 1 ? ` ×${numbers.length}` : ""}`;
    const table = el("table", { class: "matrix" },
      el("tr", {}, el("td"), el("th", { colspan: columns.length, scope: "colgroup" }, episodes.agentName(episode, second))),
      el("tr", {}, el("th", { scope: "col" }, episodes.agentName(episode, first)), columns.map((column) => el("th", { scope: "col", title: answersTitle(column[1]) }, head(column)))),
      rows.map((row) => el("tr", {}, el("th", { scope: "row", title: answersTitle(row[1]) }, head(row)), columns.map((column) => cell(row, column)))));
    const others = episodes.agents(node).length > 2 ? " A cell is the mean over the answers of the other agents." : "";
    const pairs = rows.length * columns.length;
    const drawn = cells.size < pairs ? ` Only samples drawn together have a reward: ${cells.size} of ${pairs} pairs.` : "";
    const isMerged = [...rows, ...columns].some(([, numbers]) => numbers.length > 1);
    const merged = isMerged ? " Identical answers are merged under their first number, ×n: given n times." : "";
    place.replaceChildren(
      el("div", { class: "scroll" }, table),
      el("p", { class: "quiet small" }, `Rows and columns are the numbers of the samples.${merged}${drawn}${others} Choose a cell to read its answers.`),
      below);
  };

  const option = (value, title, isSelected) => el("option", { value, selected: isSelected }, title);

  const matrixCard = (run, state) => {
    const all = episodes.data().episodes.filter((episode) => episode.nodes.length > 0 && episodes.agents(episode.nodes[0]).length > 1);
    if (all.length === 0) return card("Rewards of pairs of answers", el("p", { class: "quiet" }, "No episode with several agents is recorded yet."));
    const place = el("div");
    const turns = el("select", { "aria-label": "Turn" });
    const agents = el("span");
    const draw = () => {
      const episode = episodes.find(state.id);
      const branch = episodes.branch(episode);
      const turn = Math.min(state.turn, branch.length - 1);
      turns.replaceChildren(...branch.map((node, index) => option(index, `turn ${node.turn}`, index === turn)));
      const count = episodes.agents(branch[turn]).length;
      const choose = (name) => el("select", { "aria-label": `${name} agent`, onchange: (event) => { state[name] = Number(event.target.value); draw(); } },
        episodes.agents(branch[turn]).map((agent) => option(agent, `${name}: ${episodes.role(episode, agent)}`, agent === state[name])));
      agents.replaceChildren(...(count > 2 ? [choose("rows"), choose("columns")] : []));
      link.href = `#rollouts/${episode.id}`;
      matrix(place, episode, branch[turn], state.rows, state.columns);
    };
    const choice = el("select", { "aria-label": "Episode", onchange: (event) => { state.id = event.target.value; draw(); } });
    const choices = (kind) => {
      const own = all.filter((episode) => episode.kind === kind).reverse();
      return own.length === 0 ? null : el("optgroup", { label: episodes.kindName(kind) }, own.map((episode) => option(episode.id, `${episode.task}, step ${episode.step}`, episode.id === state.id)));
    };
    if (!all.some((episode) => episode.id === state.id)) Object.assign(state, latestDifferent(all));
    for (const group of [choices("eval"), choices("train")]) if (group) choice.append(group);
    turns.addEventListener("change", () => { state.turn = Number(turns.value); draw(); });
    const link = el("a", { href: "#rollouts" }, "read the episode");
    const own = card("Rewards of pairs of answers", el("p", { class: "steps" }, choice, turns, agents, link), place);
    draw();
    return own;
  };

  // A group of equal rewards shows nothing, so a reader sees the latest one of different rewards first.
  const latestDifferent = (all) => {
    for (const episode of [...all].reverse()) {
      const turn = episodes.branch(episode).findIndex((node) => new Set(episodes.rewards(episode, node)).size > 1);
      if (turn >= 0) return { id: episode.id, turn };
    }
    return { id: all[all.length - 1].id, turn: 0 };
  };

  // ---- second turns ----
  // Whole percentages that add up to 100: the largest remainders are rounded up.
  const percentages = (shares) => {
    const whole = shares.map((share) => Math.floor(100 * share));
    const byRemainder = shares.map((share, place) => [100 * share - whole[place], place]).sort((a, b) => b[0] - a[0]);
    const missing = 100 - whole.reduce((sum, value) => sum + value, 0);
    for (const [, place] of byRemainder.slice(0, missing)) whole[place] += 1;
    return whole;
  };

  // The share of right answers among those that turn `turn` continues. Not all answers of the turn before are
  // continued, but solved = right · keep + (1 - right) · fix.
  const continuedRight = (at, turn) => {
    const keep = at(`turn_${turn}/keep_rate`);
    const fix = at(`turn_${turn}/fix_rate`);
    // A missing rate means that no answer of this kind was continued.
    if (keep === null) return 0;
    if (fix === null) return 1;
    const before = at(`turn_${turn - 1}/all_passed`);
    const solved = at(`turn_${turn}/all_passed`);
    // Branches that ended early count in `solved` but are not continued.
    const isSolvable = solved !== null && keep !== fix && !(at(`turn_${turn}/ended_early`) > 0);
    if (!isSolvable) return before;
    const right = (solved - fix) / (keep - fix);
    // Rounding may leave the interval a little.
    return right > -1e-9 && right < 1 + 1e-9 ? Math.min(Math.max(right, 0), 1) : before;
  };

  const flowRow = (title, table, index, turn) => {
    const at = (name) => {
      const values = charts.column(table, name);
      return values && Number.isFinite(values[index]) ? values[index] : null;
    };
    const keep = at(`turn_${turn}/keep_rate`);
    const fix = at(`turn_${turn}/fix_rate`);
    if (keep === null && fix === null) return null;
    const passing = continuedRight(at, turn);
    if (passing === null) return null;
    const shares = OUTCOMES.map(([, , share]) => share(passing, keep ?? 0, fix ?? 0));
    const parts = percentages(shares).map((value, place) => [OUTCOMES[place][0], OUTCOMES[place][1], value]);
    const words = parts.map(([name, , value]) => `${name} ${value} %`).join(", ");
    return el("div", { class: "flow-row" }, el("span", { class: "quiet small" }, title),
      el("div", { class: "flow-bar", role: "img", "aria-label": `${title}: ${words}` }, parts.filter(([, , value]) => value > 0).map(([name, hue, value]) =>
        el("span", { title: `${name} ${value} %`, style: { "flex-grow": String(value), background: `color-mix(in srgb, var(--${hue}) 40%, var(--ground))` } }))),
      el("span", { class: "words quiet small" }, words));
  };

  const flowRows = (run, turn) => {
    const rows = [];
    const name = `turn_${turn}`;
    for (const [kind, table] of [["held-out", run.evaluations], ["training", run.training]]) {
      const places = table.step.map((_, index) => index).filter((index) => flowRow("", table, index, turn) !== null);
      if (places.length === 0) continue;
      for (const index of new Set([places[0], places[places.length - 1]])) {
        rows.push(flowRow(`${kind}, step ${table.step[index]}`, table, index, turn));
      }
      if (kind === "held-out") break;
    }
    return rows.length === 0 ? null : [el("h3", {}, `Turn ${turn - 1} to turn ${turn}`), el("div", { class: "flow", "data-turn": name }, rows)];
  };

  const flowCard = (run) => {
    const title = "What a second turn does";
    if (run.setup.turns < 2) return card(title, el("p", { class: "quiet" }, "Not applicable: the agents answer once."));
    const turns = [];
    for (let turn = 2; turn <= run.setup.turns; turn += 1) turns.push(flowRows(run, turn));
    if (turns.every((rows) => rows === null)) {
      return card(title, el("p", { class: "quiet" }, "Not measured: the environment does not report whether an answer passes all tests."));
    }
    const keys = el("p", { class: "keys small" }, OUTCOMES.map(([name, hue]) =>
      el("span", { class: "entry" }, el("span", { class: "key", style: { "--key": `color-mix(in srgb, var(--${hue}) 40%, var(--ground))` } }), `${name} `)));
    const isEarly = (table) => Object.keys(table.metrics).some((name) => name.endsWith("/ended_early") && charts.column(table, name).some((value) => value > 0));
    const solved = isEarly(run.evaluations) || isEarly(run.training)
      ? "Branches that ended early are in the share of tasks solved, but not in a bar."
      : "“Right → right” and “wrong → right” together are the share solved in the turn.";
    return card(title, keys, turns,
      el("p", { class: "quiet small" }, `Right: the task is solved. A bar has the samples of a turn, by the sample of the turn before that each continues. ${solved}`));
  };

  // ---- tokens ----
  const lengths = (all, agent) => {
    const characters = [];
    const tokens = [];
    for (const episode of all) {
      for (const node of episode.nodes) {
        if (agent >= node.responses.length) continue;
        node.responses[agent].forEach((text, index) => {
          characters.push(episodes.text(episode, text).length);
          if (node.tokens) tokens.push(node.tokens[agent][index].lengths.length);
        });
      }
    }
    return [characters, tokens].map((values) => (values.length > 0 ? episodes.mean(values) : null));
  };

  const lengthCard = (run) => {
    const all = episodes.data().episodes.filter((episode) => episode.kind === "train");
    if (all.length === 0) return null;
    const part = Math.max(1, Math.floor(all.length / 4));
    const early = all.slice(0, part);
    const late = all.slice(-part);
    const rows = [];
    for (let agent = 0; agent < run.setup.agents; agent += 1) {
      const [before] = lengths(early, agent);
      const [after, tokens] = lengths(late, agent);
      rows.push(el("tr", {}, el("th", { scope: "row" }, episodes.agentName(commonRoles(all), agent)), [before, after, tokens].map((value) => el("td", {}, number(value)))));
    }
    const last = late[late.length - 1].step;
    const lateSteps = `steps ${late[0].step} to ${last}`;
    const heads = ["agent", `characters per answer, steps ${early[0].step} to ${early[early.length - 1].step}`, `characters per answer, ${lateSteps}`, `tokens per answer, ${lateSteps}`];
    return card("Length of the answers", el("div", { class: "scroll" }, el("table", {}, el("tr", {}, heads.map((title) => el("th", { scope: "col" }, title))), rows)),
      el("p", { class: "quiet small" }, "Recorded training answers of all turns; tokens where the batch log still has them."));
  };

  // The name of an agent in a table over all tasks: its role if it is the same in each.
  const commonRoles = (all) => {
    const [first] = all;
    if (!first.roles) return first;
    return { roles: first.roles.map((role, agent) => (all.every((episode) => episode.roles && episode.roles[agent] === role) ? role : `agent ${agent}`)) };
  };

  // ---- measures over steps ----
  const measures = (run) => {
    const isChosen = (group) => MEASURES.some((part) => group.series.some(([, name]) => name.includes(part)));
    const rank = (group) => MEASURES.findIndex((part) => group.series.some(([, name]) => name.includes(part)));
    const groups = run.charts.filter(isChosen).sort((a, b) => rank(a) - rank(b));
    const place = el("div", { class: "charts" });
    const names = new Set();
    for (const group of groups) {
      const { xs, series } = charts.metricSeries(run, group, "step");
      for (const [, name] of group.series) names.add(name);
      if (series.length > 0) charts.chart(place, { title: group.title, unit: group.unit, series, height: 150, x: { values: xs, label: "step" } });
    }
    const isMeasured = [...names].some((name) => name.includes("_contribution"));
    const hint = run.setup.agents < 2 || isMeasured ? null : el("p", { class: "quiet small" },
      "To measure each agent's contribution, set output.measure_cooperation: eval (slower).");
    return card("Measures over the steps", hint, place);
  };

  page.tab("cooperation", "Cooperation", (root) => {
    const state = { id: "", turn: 0, rows: 0, columns: 1 };
    const draw = () => {
      const { run } = page;
      const recorded = episodes.data().episodes.flatMap((episode) => episode.nodes.map((node) => node.responses.length));
      const isAlone = Math.max(run.setup.agents, ...recorded) < 2;
      const lines = run.cooperation || [];
      root.replaceChildren(el("div", { class: "stack" }, [
        isAlone ? el("p", { class: "quiet" }, "One agent: pairs of answers, contributions and agreement do not apply.") : null,
        lines.length > 0 ? card("Findings", el("ul", {}, lines.map((line) => el("li", {}, line)))) : null,
        isAlone ? null : matrixCard(run, state),
        flowCard(run), lengthCard(run), measures(run)]));
    };
    return {
      open: (id) => {
        if (id !== "" && episodes.find(id)) state.id = id;
        draw();
      },
      update: draw,
    };
  });
}
