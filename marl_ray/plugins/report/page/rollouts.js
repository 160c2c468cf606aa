"use strict";
// The browser of recorded episodes: a list with filters, and the turns of one episode.
{
  const { el } = page;
  const { points, sampleName } = episodes;
  const WIDE = "(min-width: 801px)"; // as in episodes.css
  const VIEWS = { changes: "changes", plain: "plain text", probability: "token probability", version: "weight version" };
  const SORTS = {
    latest: ["latest first", (a, b) => b.step - a.step],
    earliest: ["earliest first", (a, b) => a.step - b.step],
    best: ["highest reward", (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity)],
    worst: ["lowest reward", (a, b) => (a.reward ?? Infinity) - (b.reward ?? Infinity)],
    task: ["task", (a, b) => a.task.localeCompare(b.task, "en", { numeric: true }) || a.step - b.step],
  };
  const SEARCH_DELAY_MS = 250;

  const lastSolved = (episode) => (episode.solved.length > 0 ? episode.solved[episode.solved.length - 1] : null);

  page.tab("rollouts", "Rollouts", (root) => {
    // `all` are the listed episodes, `loaded` those that the server has sent, `found` the ids that a search matched.
    const state = { all: [], loaded: new Map(), shown: [], id: "", path: null, actions: [], view: "changes", found: null };

    // ---- data ----
    const merge = () => {
      const known = new Map((state.listed || []).map((one) => [one.id, one]));
      for (const episode of episodes.data().episodes) known.set(episode.id, episode);
      state.all = [...known.values()];
    };
    // The server's episode has all texts and tokens.
    const loaded = (id) => state.loaded.get(id) || episodes.find(id);
    const fetchList = async () => {
      if (!page.live) return;
      try {
        state.listed = await (await fetch("episodes")).json();
        merge();
        listEpisodes();
        if (state.wanted) select(state.wanted);
      } catch { /* the server is gone: the page has its own episodes */ }
    };
    const fetchEpisode = async (id) => {
      const answer = await fetch(`episode/${encodeURIComponent(id)}`);
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const { episode, ...own } = await answer.json();
      state.loaded.set(id, { ...episode, tables: own });
    };

    // ---- filters ----
    const fields = {
      task: el("input", { type: "search", name: "task", placeholder: "task" }),
      words: el("input", { type: "search", name: "words", placeholder: "in answers" }),
      kind: el("select", { name: "kind" },
        el("option", { value: "" }, "training and held-out"), el("option", { value: "train" }, "training"), el("option", { value: "eval" }, "held-out")),
      solved: el("select", { name: "solved" },
        el("option", { value: "" }, "any result"), el("option", { value: "all" }, "all solve it"),
        el("option", { value: "some" }, "some solve it"), el("option", { value: "none" }, "none solves it")),
      sort: el("select", { name: "sort" }, Object.entries(SORTS).map(([value, [title]]) => el("option", { value }, title))),
      first: el("input", { type: "number", name: "first", placeholder: "first" }),
      last: el("input", { type: "number", name: "last", placeholder: "last" }),
      low: el("input", { type: "number", name: "low", step: "any", placeholder: "low" }),
      high: el("input", { type: "number", name: "high", step: "any", placeholder: "high" }),
    };
    const value = (name) => fields[name].value.trim();
    const within = (amount, low, high) =>
      (value(low) === "" || amount >= Number(value(low))) && (value(high) === "" || amount <= Number(value(high)));
    const solves = (episode) => {
      const share = lastSolved(episode);
      const wanted = value("solved");
      if (wanted === "") return true;
      if (share === null) return false;
      if (wanted === "all") return share === 1;
      return wanted === "none" ? share === 0 : share > 0 && share < 1;
    };
    const fits = (episode) =>
      episode.task.toLowerCase().includes(value("task").toLowerCase()) &&
      (value("kind") === "" || episode.kind === value("kind")) &&
      within(episode.step, "first", "last") &&
      ((value("low") === "" && value("high") === "") || (episode.reward !== null && within(episode.reward, "low", "high"))) &&
      solves(episode) &&
      (state.found === null || state.found.has(episode.id));

    const search = () => {
      const wanted = value("words").toLowerCase();
      if (wanted === "") {
        state.found = null;
        return;
      }
      // A text occurs in many episodes: each is searched once.
      const texts = episodes.data().texts;
      const hits = new Set();
      texts.forEach((one, index) => { if (one.toLowerCase().includes(wanted)) hits.add(index); });
      state.found = new Set();
      for (const episode of episodes.data().episodes) {
        const found = episode.nodes.some((node) => node.responses.some((group) => group.some((index) => hits.has(index))));
        if (found) state.found.add(episode.id);
      }
    };
    const searchServer = async () => {
      const wanted = value("words");
      if (!page.live || wanted === "") return;
      try {
        const ids = await (await fetch(`episodes?text=${encodeURIComponent(wanted)}`)).json();
        if (value("words") !== wanted) return;
        for (const id of ids) state.found.add(id);
        listEpisodes();
      } catch { /* the server is gone: the page searches its own episodes */ }
    };
    let waiting = null;
    const onFilter = (event) => {
      search();
      listEpisodes();
      if (event.target === fields.words) {
        clearTimeout(waiting);
        waiting = setTimeout(searchServer, SEARCH_DELAY_MS);
      }
    };

    // ---- the list ----
    const list = el("ol", { class: "rollout-list", "aria-label": "Episodes" });
    const count = el("output", { class: "quiet small" });
    const dots = (episode) => el("span", { class: "dots" }, episode.solved.map((share, turn) => {
      const title = share === null ? `turn ${turn + 1}: no verdict` : `turn ${turn + 1}: ${page.percent(share)} of samples solve it`;
      const fill = share === null ? 0 : Math.round(100 * share);
      return el("span", { class: share === null ? "dot unknown" : "dot", title, style: { "--fill": `${fill}%` } });
    }));
    const bar = (reward) => {
      const [low, high] = episodes.data().rewards;
      const share = reward === null ? 0 : Math.round((100 * (reward - low)) / (high - low));
      return el("span", { class: "reward-bar", style: { "--share": `${share}%` } });
    };
    const item = (episode) => el("li", {},
      el("a", { href: `#rollouts/${episode.id}`, "data-id": episode.id, "aria-current": episode.id === state.id ? "true" : null },
        el("span", { class: "task" }, episode.task),
        el("span", { class: "quiet small" }, `${episodes.kindName(episode.kind)}, step ${episode.step}`),
        dots(episode), bar(episode.reward),
        el("span", { class: "reward" }, episode.reward === null ? "none" : points(episode.reward))));
    const listEpisodes = () => {
      state.shown = state.all.filter(fits).sort(SORTS[value("sort")][1]);
      list.replaceChildren(...state.shown.map(item));
      count.textContent = `${state.shown.length.toLocaleString("en")} of ${state.all.length.toLocaleString("en")}`;
      note.textContent = noteText();
    };
    const noteText = () => {
      const data = episodes.data();
      const isComplete = state.listed || data.episodes.length === data.total;
      if (isComplete) return "";
      const note = data.note.charAt(0).toUpperCase() + data.note.slice(1);
      return `${note}; marl-ray report --serve shows all.`;
    };
    const mark = () => {
      for (const link of list.querySelectorAll("a")) {
        if (link.dataset.id === state.id) {
          link.setAttribute("aria-current", "true");
          // Only the list scrolls, not the page.
          const box = list.getBoundingClientRect();
          const own = link.getBoundingClientRect();
          if (own.top < box.top) list.scrollTop += own.top - box.top;
          else if (own.bottom > box.bottom) list.scrollTop += own.bottom - box.bottom;
        } else {
          link.removeAttribute("aria-current");
        }
      }
    };

    // ---- one episode ----
    const detail = el("article", { class: "episode", "aria-live": "polite" });
    const step = (direction) => {
      const place = state.shown.findIndex((episode) => episode.id === state.id);
      const next = state.shown[Math.min(Math.max(place + direction, 0), state.shown.length - 1)];
      if (!next || next.id === state.id) return;
      history.replaceState(null, "", `#rollouts/${next.id}`);
      const inList = list.contains(document.activeElement);
      select(next.id);
      if (inList) list.querySelector("[aria-current]")?.focus({ preventScroll: true });
    };

    const select = async (id) => {
      state.id = id;
      state.path = null;
      state.actions = [];
      state.wanted = "";
      mark();
      const isListed = state.all.some((episode) => episode.id === id);
      if (!isListed) {
        // The list of the server may still be on its way.
        if (page.live && !state.listed) state.wanted = id;
        detail.replaceChildren(el("p", { class: "alert" }, `Episode ${id} is not on this page.`), el("p", {}, noteText()));
        return;
      }
      if (page.live && !state.loaded.has(id)) {
        if (!loaded(id)) detail.replaceChildren(el("p", { class: "quiet" }, "loading"));
        try {
          await fetchEpisode(id);
        } catch (error) {
          if (state.id === id && !loaded(id)) detail.replaceChildren(el("p", { class: "alert" }, `The episode cannot be loaded: ${error.message}`));
        }
        if (state.id !== id || !loaded(id)) return;
      }
      drawEpisode();
    };

    const lastTurnWords = (episode) => {
      const nodes = episode.nodes.filter((node) => node.turn === Math.max(...episode.nodes.map((one) => one.turn)));
      const all = nodes.flatMap((node) => episodes.rewards(episode, node));
      if (all.length === 0) return "no sample";
      return `last turn: ${episodes.rewardWords(all, page.run.setup.max_reward)}`;
    };
    const stopWords = (episode, stop) => {
      const where = stop.path.length === 0 ? "at the first turn" : `after ${stop.path.map(sampleName).join(", then ")}`;
      const detailText = episodes.text(episode, stop.detail);
      return `ended ${where}: ${stop.reason.replaceAll("_", " ")}${detailText ? `: ${detailText}` : ""}`;
    };

    const sameTask = (episode) => {
      const others = state.all.filter((one) => one.task === episode.task).sort((a, b) => a.step - b.step);
      if (others.length < 2) return el("p", { class: "quiet small" }, "No other recorded episode of this task.");
      return el("nav", { class: "strip", "aria-label": "The same task over steps" },
        el("span", { class: "quiet small" }, "this task over steps"),
        others.map((one) => el("a", {
          href: `#rollouts/${one.id}`, class: "cell", "aria-current": one.id === episode.id ? "true" : null,
          title: `${episodes.kindName(one.kind)}, step ${one.step}: reward ${points(one.reward)}`,
          style: { background: one.reward === null ? "var(--panel)" : episodes.rewardColour(one.reward) },
        }, el("span", { class: "small" }, `step ${one.step}`), el("b", {}, points(one.reward)))));
    };

    const tree = (episode) => {
      const turns = episode.nodes.map((node) => node.turn);
      if (new Set(turns).size === turns.length) return null;
      return el("details", { class: "tree" }, el("summary", {}, `tree of ${episode.nodes.length} nodes`),
        el("ul", {}, episode.nodes.map((node) => el("li", { style: { "margin-left": `${1.2 * node.path.length}rem` } },
          el("button", { class: "small", onclick: () => { state.path = [...node.path]; state.actions = [...node.path]; drawEpisode(); } },
            `turn ${node.turn}${node.path.length > 0 ? ` after ${sampleName(node.path[node.path.length - 1])}` : ""}`),
          ` ${episodes.rewards(episode, node).map(points).join("  ")}`))));
    };

    const viewButtons = (episode) => {
      const hasTokens = episode.nodes.some((node) => node.tokens);
      const names = Object.keys(VIEWS).filter((view) => hasTokens || view === "changes" || view === "plain");
      if (!names.includes(state.view)) state.view = "changes";
      const buttons = names.map((view) => el("button", {
        "aria-pressed": String(view === state.view), onclick: () => { state.view = view; drawEpisode(view); }, "data-view": view,
      }, VIEWS[view]));
      const legend = { probability: "The stronger the colour, the less probable was the token when it was sampled.", version: "A colour per version of the weights that sampled the token." }[state.view];
      const missing = hasTokens ? null : episodes.data().tokens_note || "the batch log has no tokens of this episode";
      return el("div", { class: "views", role: "group", "aria-label": "How answers are shown" }, buttons,
        legend ? el("span", { class: "quiet small" }, legend) : null,
        missing ? el("span", { class: "quiet small" }, `No token view: ${missing}.`) : null);
    };

    const drawEpisode = (focusView = null) => {
      const episode = loaded(state.id);
      const branch = episodes.branch(episode, state.path);
      detail.replaceChildren(
        el("header", {},
          el("h2", {}, episode.task, " ",
            el("button", { class: "small", onclick: () => step(-1), title: "key k" }, "previous"), " ",
            el("button", { class: "small", onclick: () => step(1), title: "key j" }, "next")),
          el("p", {}, el("span", { class: "chip" }, episodes.kindName(episode.kind)), ` step ${episode.step} · ${lastTurnWords(episode)} · `,
            el("a", { href: `#rollouts/${episode.id}` }, "link to this episode"), " · ",
            el("a", { href: `#cooperation/${episode.id}` }, "matrix of rewards"))),
        ...episode.stops.map((stop) => el("p", { class: "alert" }, stopWords(episode, stop))),
        sameTask(episode), viewButtons(episode), tree(episode) || "", stripLegend(branch.map((node) => episodes.rewards(episode, node))) || "",
        ...branch.map((node, turn) => turnSection(episode, branch, node, turn)));
      if (focusView) detail.querySelector(`[data-view="${focusView}"]`)?.focus();
    };

    const chooseAction = (episode, node, turn, action) => {
      state.actions[turn] = action;
      state.actions.length = turn + 1;
      if (node.expanded.includes(action) && episodes.nodeAt(episode, [...node.path, action])) state.path = [...node.path, action];
      drawEpisode();
      // Drawing replaces the cell that had the focus.
      detail.querySelectorAll("section.turn")[turn]?.querySelector(`[data-action="${action}"]`)?.focus({ preventScroll: true });
    };

    const moveInStrip = (event) => {
      const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!direction) return;
      const cells = [...event.currentTarget.querySelectorAll("button")];
      const next = cells[cells.indexOf(document.activeElement) + direction];
      if (!next) return;
      event.preventDefault();
      event.stopPropagation();
      next.click();
    };

    const isUniform = (all) => all.every((reward) => reward === all[0]);

    const stripLegend = (groups) => {
      if (groups.every(isUniform)) return null;
      const key = (name) => el("span", { class: "key", style: { "--key": `var(--${name})` } });
      return el("p", { class: "quiet small" }, key("above"), "above and ", key("below"), "below the group's mean reward. ▸ was continued.");
    };

    // Weights of the loss come from the batch log. Groups of held-out tasks and of older steps are not in it.
    const creditWords = (episode, node, all) => {
      if (node.credit === "weights") return "The loss weights in the batch log are not proportional to these rewards: see the cards.";
      const name = `all ${all.length} equal`;
      if (!isUniform(all)) return node.credit ? "The loss weights in the batch log are proportional to the distances from the mean." : null;
      return node.credit ? `${name}: no learning signal from this group` : name;
    };

    const actionStrip = (episode, node, turn, action) => {
      const all = episodes.rewards(episode, node);
      if (all.length < 2) return null;
      const centre = episodes.mean(all);
      const largest = Math.max(...all.map((reward) => Math.abs(reward - centre)));
      const cells = all.map((reward, index) => el("button", {
        class: "cell", "data-action": index, "aria-pressed": String(index === action),
        title: `${sampleName(index)}: reward ${points(reward)}, ${points(reward - centre)} from the mean`,
        style: { background: episodes.advantageColour(reward - centre, largest) },
        onclick: () => chooseAction(episode, node, turn, index),
      }, el("span", { class: "small" }, `${index + 1}${node.expanded.includes(index) ? " ▸" : ""}`), el("b", {}, points(reward))));
      const credit = creditWords(episode, node, all);
      return el("div", {}, el("div", { class: "strip", role: "group", "aria-label": `Samples of turn ${node.turn}`, onkeydown: moveInStrip }, cells),
        credit ? el("p", { class: "quiet small" }, credit) : null);
    };

    const weightStrip = (episode, node, turn, agent, action) => {
      if (!node.weights) return null;
      const weights = node.weights[agent];
      const largest = Math.max(...weights.map(Math.abs));
      const shown = episodes.responseIndex(node, agent, action);
      return el("div", { class: "strip", role: "group", "aria-label": `Loss weights of ${episodes.role(episode, agent)}`, onkeydown: moveInStrip },
        el("span", { class: "quiet small" }, "loss weights"),
        weights.map((weight, index) => {
          const target = node.outcomes.findIndex((_, one) => episodes.responseIndex(node, agent, one) === index);
          return el("button", {
            class: "cell small", "aria-pressed": String(index === shown), title: `answer ${index + 1}: loss weight ${points(weight)}`,
            style: { background: episodes.advantageColour(weight, largest) },
            onclick: () => { if (target >= 0) chooseAction(episode, node, turn, target); },
          }, points(weight));
        }));
    };

    const turnSection = (episode, branch, node, turn) => {
      const wanted = state.actions[turn];
      const next = branch[turn + 1];
      const usual = next ? next.path[turn] : episodes.firstAction(episode, node);
      const action = wanted === undefined ? usual : wanted;
      const found = episodes.outcome(episode, node, action);
      const all = episodes.rewards(episode, node);
      const isOnly = all.length === 1;
      const parent = branch[turn - 1];
      const isOneOfSeveral = parent && parent.outcomes.length > 1;
      const from = isOneOfSeveral ? `, continues ${sampleName(node.path[turn - 1])}` : "";
      const summary = `${episodes.rewardWords(all)}${from}`;
      return el("section", { class: "turn", "aria-label": `Turn ${node.turn}` },
        el("h3", {}, `Turn ${node.turn}`, el("span", { class: "quiet small" }, ` ${summary}`)),
        actionStrip(episode, node, turn, action),
        isOnly ? null : el("p", { class: "shown" }, el("b", {}, `${sampleName(action)} of ${all.length}`), `: reward ${points(found.reward)}`),
        episodes.chips(episode, found),
        el("div", { class: "columns" }, episodes.agents(node).map((agent) => agentCard(episode, node, parent, agent, action, turn))),
        episodes.testTable(episode, found), episodes.evidence(episode, found), greedy(episode, node));
    };

    const greedy = (episode, node) => (node.greedy ? el("details", {},
      el("summary", {}, `greedy answers: reward ${points(node.greedy.reward)}`),
      node.greedy.responses.map((index, agent) => el("div", {}, episodes.agentName(episode, agent), el("pre", {}, episodes.text(episode, index))))) : null);

    const folded = (title, words) => el("details", {}, el("summary", {}, title), el("pre", { tabindex: "0" }, words));

    const agentCard = (episode, node, parent, agent, action, turn) => {
      const numbers = episodes.calls(node, agent, action);
      const last = numbers[numbers.length - 1];
      const words = episodes.answer(episode, node, agent, action);
      const before = parent ? episodes.answer(episode, parent, agent, node.path[node.path.length - 1]) : null;
      const tokens = node.tokens ? node.tokens[agent][last] : null;
      const facts = [];
      if (tokens) facts.push(`${tokens.lengths.length} tokens`);
      if (node.versions[agent].length > 0) facts.push(`weights of step ${node.versions[agent].join(", ")}`);
      const contribution = node.counterfactuals && node.counterfactuals[agent] ? node.counterfactuals[agent][action] : null;
      if (Number.isFinite(contribution)) facts.push(`without this answer: reward ${points(contribution)}`);
      if (before !== null) facts.push(episodes.changeCount(before, words));
      const earlier = numbers.slice(0, -1).map((index, call) => [
        folded(`prompt of call ${call + 1}`, episodes.promptOf(episode, node, agent, index)),
        el("pre", { class: "answer", tabindex: "0" }, episodes.text(episode, node.responses[agent][index]))]);
      const title = numbers.length > 1 ? `prompt of call ${numbers.length}` : "prompt";
      return el("div", { class: "card agent", style: { "border-color": `var(--agent-${episodes.hue(agent)})` } },
        el("h4", {}, episodes.agentName(episode, agent)),
        facts.length > 0 ? el("p", { class: "quiet small" }, facts.join(" · ")) : null,
        weightStrip(episode, node, turn, agent, action),
        parent ? episodes.feedbackBox(episode, parent, node, agent) : null,
        earlier, folded(title, episodes.promptOf(episode, node, agent, last)),
        answerView(words, before, tokens));
    };

    const answerView = (words, before, tokens) => {
      if (state.view === "changes") return episodes.changes(before, words);
      if (tokens && state.view !== "plain") {
        return episodes.heat(words, tokens, state.view === "version" ? episodes.byVersion : episodes.byProbability);
      }
      return el("pre", { class: "answer", tabindex: "0" }, words);
    };

    // ---- keys ----
    const onKey = (event) => {
      if (root.hidden || event.ctrlKey || event.metaKey || event.altKey) return;
      const typing = event.target.closest("input, select, textarea");
      if (typing) return;
      if (event.key === "j") step(1);
      else if (event.key === "k") step(-1);
      else if (list.contains(event.target) && event.key === "ArrowDown") step(1);
      else if (list.contains(event.target) && event.key === "ArrowUp") step(-1);
      else if (event.key === "/") fields.words.focus();
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", onKey);

    // ---- the tab ----
    const note = el("p", { class: "quiet small" });
    const labelled = (title, field) => el("label", {}, el("span", { class: "small quiet" }, title), field);
    const filters = el("form", { class: "filters", role: "search", oninput: onFilter, onsubmit: (event) => event.preventDefault() },
      labelled("task", fields.task), labelled("answers contain", fields.words), labelled("set", fields.kind),
      labelled("last turn", fields.solved), labelled("sort", fields.sort),
      el("fieldset", {}, el("legend", { class: "small quiet" }, "step"), fields.first, fields.last),
      el("fieldset", {}, el("legend", { class: "small quiet" }, "reward"), fields.low, fields.high));
    for (const [name, title] of [["first", "first step"], ["last", "last step"], ["low", "lowest reward"], ["high", "highest reward"]]) {
      fields[name].setAttribute("aria-label", title);
    }
    // On a phone the filters would fill the screen.
    const fold = el("details", { open: matchMedia(WIDE).matches }, el("summary", {}, "Filters"), filters);
    const [low, high] = episodes.data().rewards;
    const legend = el("p", { class: "list-legend small quiet" },
      el("span", { class: "dot", style: { "--fill": "50%" } }), el("span", {}, "share of samples that solve the task, per turn"),
      el("span", { class: "reward-bar", style: { "--share": "50%" } }), el("span", {}, `mean reward of the last turn, ${points(low)} to ${points(high)}`));
    root.append(el("div", { class: "rollouts" },
      el("div", { class: "rollout-side" }, fold,
        el("p", { class: "small quiet" }, count, " episodes", el("span", { class: "keys-hint" }, " · keys j and k, / searches")), note, legend, list),
      detail));

    merge();
    listEpisodes();
    fetchList();
    return {
      open: (id) => {
        const first = state.shown[0];
        if (id !== "") select(id);
        else if (state.id === "" && first) select(first.id);
        else if (state.id === "") detail.replaceChildren(el("p", { class: "quiet" }, episodes.data().note));
      },
      update: () => {
        merge();
        search();
        listEpisodes();
        fetchList();
        if (state.id === "" && state.shown.length > 0) select(state.shown[0].id);
      },
    };
  });
}
