"use strict";
// The bar that stays in view: name and state of the run, its setup, the theme, and the age of a served page's data.
{
  const { el, duration } = page;
  const POLL_MS = 3000;
  const live = { version: null, lost: null, note: null };

  page.stateText = (state) => {
    const steps = state.total === null ? `step ${state.step}` : `step ${state.step} of ${state.total}`;
    if (state.kind === "running") {
      const left = state.seconds_left === null ? "" : `, about ${duration(state.seconds_left)} left`;
      return `running: ${steps}${left}`;
    }
    if (state.kind === "starting") return "starting";
    if (state.kind === "failed") return `failed at ${steps}`;
    if (state.kind === "stopped") return `stopped at ${steps}`;
    return state.total === null ? `finished: ${state.step} steps` : `finished: ${state.step} of ${state.total} steps`;
  };

  const setupText = (setup) => {
    const parts = [];
    if (setup.algorithm) parts.push(setup.algorithm);
    const agents = setup.agents === 1 ? "1 agent" : `${setup.agents} agents`;
    parts.push(`${agents} × ${setup.turns === 1 ? "1 turn" : `${setup.turns} turns`}`);
    if (setup.generations) parts.push(`${setup.generations} samples per task`);
    if (setup.device) parts.push(setup.device);
    return parts;
  };

  page.date = (seconds) => (seconds === null ? null : new Date(1000 * seconds).toLocaleString("sv").slice(0, 16));

  const themeSwitch = () => {
    const choice = el("select", { "aria-label": "Theme", onchange: (event) => page.setTheme(event.target.value) },
      page.THEMES.map((theme) => el("option", { value: theme }, `theme: ${theme === "system" ? "auto" : theme}`)));
    choice.value = document.documentElement.dataset.theme || "system";
    return choice;
  };

  const age = (seconds) => (seconds < 120 ? `${Math.max(0, Math.round(seconds))} s` : duration(seconds));

  const showAge = () => {
    if (live.note === null) return;
    if (live.lost !== null) {
      live.note.setAttribute("role", "alert");
      live.note.className = "alert small";
      live.note.textContent = `The server has not answered for ${age((Date.now() - live.lost) / 1000)}: this is its last answer.`;
      return;
    }
    live.note.removeAttribute("role");
    live.note.className = "quiet small";
    const { updated, kind } = page.run.state || {};
    const inProgress = kind === "running" || kind === "starting";
    live.note.textContent = !updated || !inProgress ? "live" : `updated ${age(Date.now() / 1000 - updated)} ago`;
  };

  const poll = async () => {
    try {
      const reply = await fetch("version", { cache: "no-store" });
      if (!reply.ok) throw new Error(`status ${reply.status}`);
      const version = await reply.text();
      if (live.version !== null && version !== live.version) {
        const data = await fetch("data", { cache: "no-store" });
        if (!data.ok) throw new Error(`status ${data.status}`);
        page.setRun(await data.json());
      }
      live.version = version;
      live.lost = null;
      document.body.dataset.version = version;
    } catch {
      if (live.lost === null) live.lost = Date.now();
    }
    showAge();
    setTimeout(poll, POLL_MS);
  };

  page.panel("bar", (root, run) => {
    const { state } = run; // a list of runs has none
    const parts = [];
    if (state) {
      const started = state.started === null ? null : `started ${page.date(state.started)}`;
      const facts = [started, ...setupText(run.setup)].filter(Boolean);
      parts.push(el("span", { class: `chip state ${state.kind}` }, page.stateText(state)), el("span", { class: "facts quiet small" }, facts.join(" · ")));
    }
    live.note = page.live ? el("span") : null;
    root.replaceChildren(el("h1", {}, run.name), ...parts, el("span", { class: "right" }, live.note, themeSwitch()));
    document.title = state ? `${run.name}: ${state.kind}` : run.name;
    showAge();
    if (page.live && live.version === null && !live.started) {
      live.started = true;
      poll();
      setInterval(showAge, 1000);
    }
  });
}
