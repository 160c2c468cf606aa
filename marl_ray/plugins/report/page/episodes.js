"use strict";
// What the tabs of episodes share: tables of texts, names of agents, verdicts, differences, colours of advantages.
const episodes = (() => {
  const { el, number } = page;

  // Rewards of one run stand below each other, so all have two decimals where these say enough.
  const points = (value) => {
    const size = Math.abs(value);
    const fitsTwoDecimals = value === 0 || (size >= 0.01 && size < 1e4);
    return fitsTwoDecimals ? value.toFixed(2) : number(value);
  };
  const signed = (value) => `${value > 0 ? "+" : ""}${points(value)}`;

  // "mean reward 2.75 (max. 4) over 8 samples, 0.50 to 4.00": a sample is a joint action.
  const rewardWords = (all, most = null) => {
    const limit = Number.isFinite(most) ? ` (max. ${number(most)})` : "";
    if (all.length === 1) return `reward ${points(all[0])}${limit}`;
    const low = Math.min(...all);
    const high = Math.max(...all);
    const range = low === high ? "all equal" : `${points(low)} to ${points(high)}`;
    return `mean reward ${points(mean(all))}${limit} over ${all.length} samples, ${range}`;
  };
  // People count from 1.
  const sampleName = (action) => `sample ${action + 1}`;

  const LOG_LEVELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  // A difference of more lines takes too long to compute while a reader waits.
  const MAX_DIFF_LINES = 600;

  const data = () => page.run.episodes || { episodes: [], texts: [], tests: [], reports: [], outcomes: [], rewards: [0, 1], total: 0, note: "" };

  // An episode that came from the server has tables of its own.
  const tables = (episode) => episode.tables || data();
  const text = (episode, index) => tables(episode).texts[index];
  const outcome = (episode, node, action) => tables(episode).outcomes[node.outcomes[action]];
  const find = (id) => data().episodes.find((episode) => episode.id === id);

  const role = (episode, agent) => (episode.roles ? episode.roles[agent] : `agent ${agent}`);
  const agents = (node) => node.responses.map((_, agent) => agent);
  const hue = (agent) => agent % 8;
  const kindName = (kind) => (kind === "eval" ? "held-out" : "training");

  const indices = (node, action) => (node.indices ? node.indices[action] : node.responses.map(() => action));
  const responseIndex = (node, agent, action) => indices(node, action)[agent];
  const answer = (episode, node, agent, action) =>
    text(episode, node.responses[agent][responseIndex(node, agent, action)]);
  const promptOf = (episode, node, agent, index) => {
    const own = node.own_prompts;
    return text(episode, own ? own[agent][index] : node.prompts[agent]);
  };
  // In a run of a program an agent may answer several calls, of which the last one is its answer.
  const calls = (node, agent, action) => {
    const answered = responseIndex(node, agent, action);
    if (!node.callers) return [answered];
    const numbers = [];
    node.callers[agent].forEach((caller, index) => { if (caller === action) numbers.push(index); });
    return numbers.includes(answered) ? numbers : [answered];
  };

  const samePath = (left, right) => left.length === right.length && left.every((step, place) => step === right[place]);
  const nodeAt = (episode, path) => episode.nodes.find((node) => samePath(node.path, path));
  // Neumaier's sum: rounded as the means of Python, so that equal numbers look equal.
  const mean = (values) => {
    let sum = 0;
    let rest = 0;
    for (const value of values) {
      const next = sum + value;
      rest += Math.abs(sum) >= Math.abs(value) ? sum - next + value : value - next + sum;
      sum = next;
    }
    return (sum + rest) / values.length;
  };
  const rewards = (episode, node) => node.outcomes.map((_, action) => outcome(episode, node, action).reward);

  // The joint action that a reader sees first: the one that was continued, else the best one.
  const firstAction = (episode, node) => {
    if (node.expanded.length > 0) return node.expanded[0];
    const all = rewards(episode, node);
    return all.indexOf(Math.max(...all));
  };

  // Each node on the branch that is continued first, from the root.
  const branch = (episode, path = null) => {
    const nodes = [];
    let node = nodeAt(episode, []);
    while (node) {
      nodes.push(node);
      const wanted = path ? path[nodes.length - 1] : undefined;
      const next = wanted === undefined ? firstAction(episode, node) : wanted;
      node = nodeAt(episode, [...node.path, next]);
    }
    return nodes;
  };

  // Advantages: above 0 in one colour, below 0 in the other, as strong as the largest one of the group.
  const advantageColour = (value, largest) => {
    if (!Number.isFinite(value) || largest === 0 || value === 0) return "var(--panel)";
    const share = Math.round(10 + 40 * Math.min(Math.abs(value) / largest, 1));
    return `color-mix(in srgb, var(--${value > 0 ? "above" : "below"}) ${share}%, var(--panel))`;
  };
  const rewardColour = (value) => {
    const [low, high] = data().rewards;
    const share = Math.round(45 * Math.min(Math.max((value - low) / (high - low), 0), 1));
    return `color-mix(in srgb, var(--good) ${share}%, var(--panel))`;
  };

  const isSolved = (report) => report.total > 0 && report.passed === report.total;

  // The verdicts on a joint action: tests, then the levels of its reward.
  const chips = (episode, found) => {
    const row = el("p", { class: "chips" });
    if (found.report !== undefined) {
      const report = tables(episode).reports[found.report];
      const solved = isSolved(report);
      const words = report.error === undefined ? `${report.passed} of ${report.total} tests passed` : "syntax error";
      row.append(el("span", { class: `chip ${solved ? "good" : "bad"}` }, `${solved ? "✓" : "✗"} ${words}`));
      if (!report.trusted) row.append(el("span", { class: "chip", title: "a program could have forged a verdict" }, "not all trusted"));
    }
    if (found.solved !== undefined) {
      row.append(el("span", { class: `chip ${found.solved ? "good" : "bad"}` }, found.solved ? "✓ solved" : "✗ not solved"));
    }
    // A level that earned nothing is no verdict of the environment: it may not have been reached.
    if (found.levels.length > 0) row.append(el("span", { class: "small quiet" }, "points:"));
    for (const [name, value] of found.levels) {
      const title = text(episode, name).replaceAll("_", " ");
      row.append(el("span", { class: value === 0 ? "chip level unearned" : "chip level" }, `${title} ${signed(value)}`));
    }
    if (found.rewards) {
      found.rewards.forEach((reward, agent) => {
        row.append(el("span", { class: "chip" }, `${role(episode, agent)}: own reward ${points(reward)}`));
      });
    }
    return row;
  };

  const testTable = (episode, found) => {
    if (found.report === undefined) return null;
    const report = tables(episode).reports[found.report];
    const rows = report.tests.map((index) => {
      const [status, error, message, source] = tables(episode).tests[index].map((place) => (place === null ? "" : text(episode, place)));
      return el("tr", {},
        el("td", { class: status === "pass" ? "good" : "bad" }, status),
        el("td", {}, el("code", {}, source)),
        el("td", {}, `${error} ${message}`));
    });
    const output = report.stdout === undefined ? null : [el("h4", {}, "output"), el("pre", {}, text(episode, report.stdout))];
    const error = report.error === undefined ? null : el("p", { class: "alert" }, text(episode, report.error));
    return el("details", { open: rows.length > 0 && !isSolved(report) },
      el("summary", {}, `${report.passed} of ${report.total} tests passed`),
      error, el("div", { class: "scroll" }, el("table", {}, rows)), output);
  };

  const evidence = (episode, found) =>
    found.evidence === undefined ? null : el("details", {}, el("summary", {}, "what the environment recorded"), el("pre", {}, text(episode, found.evidence)));

  // Lines of both texts in order: [mark, line], mark "-", "+" or " ". The longest common subsequence stays.
  const differences = (before, after) => {
    const old = before.split("\n");
    const fresh = after.split("\n");
    if (old.length + fresh.length > MAX_DIFF_LINES) return null;
    const lengths = Array.from({ length: old.length + 1 }, () => new Uint16Array(fresh.length + 1));
    for (let i = old.length - 1; i >= 0; i -= 1) {
      for (let j = fresh.length - 1; j >= 0; j -= 1) {
        lengths[i][j] = old[i] === fresh[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
      }
    }
    const lines = [];
    let i = 0;
    let j = 0;
    while (i < old.length || j < fresh.length) {
      if (i < old.length && j < fresh.length && old[i] === fresh[j]) {
        lines.push([" ", fresh[j]]);
        i += 1;
        j += 1;
      } else if (j === fresh.length || (i < old.length && lengths[i + 1][j] >= lengths[i][j + 1])) {
        lines.push(["-", old[i]]);
        i += 1;
      } else {
        lines.push(["+", fresh[j]]);
        j += 1;
      }
    }
    return lines;
  };

  const CLASSES = { "-": "removed", "+": "added", " ": "kept" };
  const WORDS = { "-": "removed: ", "+": "added: ", " ": "" };
  // An answer with the lines that changed since `before`; plain if none did, or if there is too much of it.
  const changes = (before, after) => {
    const isNew = before === null || before === after;
    const lines = isNew ? null : differences(before, after);
    if (lines === null) return el("pre", { class: "answer", tabindex: "0" }, after);
    return el("pre", { class: "answer diff", tabindex: "0" }, lines.map(([mark, line]) =>
      el("span", { class: CLASSES[mark] }, el("span", { class: "mark", "aria-hidden": "true" }, mark), el("span", { class: "hear" }, WORDS[mark]), `${line}\n`)));
  };
  const changeCount = (before, after) => {
    if (before === after) return "same as in the turn before";
    const lines = differences(before, after);
    if (lines === null) return "changed";
    const added = lines.filter(([mark]) => mark === "+").length;
    const removed = lines.filter(([mark]) => mark === "-").length;
    return `since the turn before: +${added} −${removed} ${added + removed === 1 ? "line" : "lines"}`;
  };

  // Feedback may be about fewer tests than the verdict beside it.
  const visibleTests = (episode, parent, node) => {
    const slice = page.run.setup.feedback_tests;
    const found = outcome(episode, parent, node.path[node.path.length - 1]);
    if (!slice || found.report === undefined) return null;
    const { total } = tables(episode).reports[found.report];
    const visible = Math.abs(slice);
    if (visible >= total) return null;
    return el("p", { class: "quiet small" }, `Feedback is about ${visible} of the ${total} tests.`);
  };
  const feedbackBox = (episode, parent, node, agent) => el("div", { class: "bubble environment" },
    el("span", { class: "quiet small" }, `environment to ${role(episode, agent)}`),
    el("pre", { class: "answer", tabindex: "0" }, text(episode, node.told[agent])),
    visibleTests(episode, parent, node));

  // What the environment tells every agent between two turns.
  const sharedFeedback = (episode, parent, node) => {
    const shared = text(episode, node.told_all);
    const boxes = el("details", {}, el("summary", { class: "small" }, "what each agent reads"),
      el("div", { class: "bubbles" }, agents(node).map((agent) => feedbackBox(episode, parent, node, agent))));
    return el("div", { class: "bubble environment" }, el("span", { class: "role quiet" }, "environment"),
      shared ? el("pre", { class: "answer", tabindex: "0" }, shared) : null,
      visibleTests(episode, parent, node), agents(node).length > 1 ? boxes : null);
  };

  const agentName = (episode, agent) => el("span", { class: "role", style: { color: `var(--agent-${hue(agent)})` } }, role(episode, agent));

  // The token heat map: `shade` returns [colour, title] of a token from its level of log-probability and its version.
  const heat = (words, tokens, shade) => {
    const pieces = [];
    let place = 0;
    const spans = tokens.spans.map(([version, count]) => ({ version, count }));
    let span = 0;
    let used = 0;
    tokens.lengths.forEach((length, index) => {
      while (span < spans.length - 1 && used >= spans[span].count) {
        span += 1;
        used = 0;
      }
      used += 1;
      const piece = words.slice(place, place + length);
      place += length;
      const level = LOG_LEVELS.indexOf(tokens.levels[index]);
      const [colour, title] = shade(level, spans.length > 0 ? spans[span].version : null);
      // The token that ends an answer has no text.
      const shown = piece === "" && index === tokens.lengths.length - 1 ? "■" : piece;
      pieces.push(el("span", { title, style: { background: colour } }, shown));
    });
    return el("pre", { class: "answer heat", tabindex: "0" }, pieces);
  };
  const probability = (level) => Math.exp(-level / 8);
  const byProbability = (level) => {
    // Square root: a step from 1 to 0.8 is as visible as one from 0.3 to 0.1.
    const share = Math.round(60 * Math.sqrt(Math.min(level / 32, 1)));
    return [`color-mix(in srgb, var(--below) ${share}%, transparent)`, `probability ${number(Number(probability(level).toPrecision(2)))}`];
  };
  const byVersion = (level, version) => [`color-mix(in srgb, var(--level-${Math.abs(version) % 8}) 30%, transparent)`, `weights of step ${version}`];

  return {
    points, rewardWords, sampleName, data, tables, text, outcome, find, role, agents, hue, kindName, indices, responseIndex, answer, promptOf, calls, nodeAt, samePath,
    mean, rewards, firstAction, branch, advantageColour, rewardColour, isSolved, chips, testTable, evidence, changes, changeCount,
    feedbackBox, sharedFeedback, agentName, heat, byProbability, byVersion,
  };
})();
