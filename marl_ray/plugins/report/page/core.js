"use strict";
// Tabs, panels, theme, and the helpers that all scripts of the page share.
//
// page.tab(id, title, draw): a tab of the page. `draw(root, run)` fills it when it is opened first, and may return
//   {open(rest), update(run)}: `open` receives the part of the address after `#id/` at each visit, and `update` the new
//   data of a run in progress. A tab without `update` is drawn again.
// page.panel(name, draw): a part that another tab reserves a place for, drawn by `page.drawPanel(name, root, run)`.
// page.el(tag, attributes, ...children): an element. Children are elements, or values that become text nodes.
const page = (() => {
  const tabs = new Map();
  const panels = new Map();
  const themeListeners = [];
  const state = { run: null, current: null };

  const tab = (id, title, draw) => tabs.set(id, { title, draw, root: null, view: null });
  const panel = (name, draw) => panels.set(name, draw);

  // Control characters have no glyph: pictures of them show that they are there.
  const printable = (value) =>
    String(value).replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, (character) => {
      const code = character.charCodeAt(0);
      return String.fromCharCode(code === 0x7f ? 0x2421 : 0x2400 + code);
    });

  const append = (parent, child) => {
    if (child === null || child === undefined || child === false) return;
    if (Array.isArray(child)) {
      for (const inner of child) append(parent, inner);
      return;
    }
    parent.append(child instanceof Node ? child : document.createTextNode(printable(child)));
  };

  const build = (element, attributes, children) => {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) {
        element.addEventListener(name.slice(2), value);
      } else if (name === "style") {
        // The security policy forbids the attribute, but not the properties.
        for (const [property, setting] of Object.entries(value)) element.style.setProperty(property, setting);
      } else {
        element.setAttribute(name, value === true ? "" : printable(value));
      }
    }
    append(element, children);
    return element;
  };

  const el = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
  const svg = (tag, attributes, ...children) =>
    build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  const drawPanel = (name, root, run) => {
    const draw = panels.get(name);
    if (draw) draw(root, run);
  };

  // A canvas needs a colour of the present theme; the property itself is `light-dark(...)`.
  const colours = new Map();
  const colour = (name) => {
    if (!colours.has(name)) {
      const { style } = document.body;
      style.setProperty("outline-color", `var(--${name})`);
      colours.set(name, getComputedStyle(document.body).outlineColor);
      style.removeProperty("outline-color");
    }
    return colours.get(name);
  };

  const THEMES = ["system", "light", "dark"];
  const THEME_KEY = "marl-ray-theme";
  const onTheme = (listener) => themeListeners.push(listener);
  const showTheme = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };
  const themeChanged = () => {
    colours.clear();
    for (const listener of themeListeners) listener();
  };
  const setTheme = (theme) => {
    showTheme(theme);
    themeChanged();
    try {
      localStorage.setItem(THEME_KEY, theme);
    } catch {
      // A browser may keep nothing for files: the theme lasts as long as the page.
    }
  };
  try {
    const kept = localStorage.getItem(THEME_KEY);
    if (THEMES.includes(kept)) showTheme(kept);
  } catch {
    // as above
  }

  const drawTab = (id) => {
    const one = tabs.get(id);
    one.root.replaceChildren();
    one.view = one.draw(one.root, state.run) || {};
    one.drawn = state.run;
  };

  const show = () => {
    const [id, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
    const current = tabs.has(id) ? id : tabs.keys().next().value;
    state.current = current;
    for (const [name, one] of tabs) {
      one.root.hidden = name !== current;
      if (name === current) one.link.setAttribute("aria-current", "page");
      else one.link.removeAttribute("aria-current");
    }
    refreshTab(current);
    const open = tabs.get(current).view.open;
    if (open) open(rest.join("/"));
  };

  // What a reader has opened, chosen, typed and focused in a tab, to be found again when the tab is drawn with new data.
  const CONTROLS = "a, button, input, select, summary, [tabindex]";
  const remember = (root) => {
    const open = [...root.querySelectorAll("details[open] > summary")].map((one) => one.textContent);
    const typed = [...root.querySelectorAll("input, select")].map((one) => one.value);
    const focus = [...root.querySelectorAll(CONTROLS)].indexOf(document.activeElement);
    const { scrollX, scrollY } = window;
    return () => {
      for (const summary of root.querySelectorAll("details > summary")) {
        if (open.includes(summary.textContent)) summary.parentElement.open = true;
      }
      root.querySelectorAll("input, select").forEach((one, place) => {
        if (place >= typed.length || one.value === typed[place]) return;
        one.value = typed[place];
        one.dispatchEvent(new Event(one.tagName === "SELECT" ? "change" : "input", { bubbles: true }));
      });
      const focused = root.querySelectorAll(CONTROLS)[focus];
      if (focused) focused.focus({ preventScroll: true });
      window.scrollTo(scrollX, scrollY);
    };
  };

  const refreshTab = (id) => {
    const one = tabs.get(id);
    if (one.view === null) {
      drawTab(id);
    } else if (one.drawn !== state.run) {
      if (one.view.update) {
        one.view.update(state.run);
        one.drawn = state.run;
      } else {
        const restore = remember(one.root);
        one.root.style.setProperty("min-height", `${one.root.offsetHeight}px`); // the page keeps its place meanwhile
        drawTab(id);
        one.root.style.removeProperty("min-height");
        restore();
      }
    }
  };

  const setRun = (run) => {
    state.run = run;
    drawPanel("bar", document.getElementById("bar"), run);
    refreshTab(state.current);
  };

  const start = () => {
    state.run = JSON.parse(document.getElementById("run").textContent);
    const nav = document.getElementById("tabs");
    const main = document.getElementById("main");
    for (const [id, one] of tabs) {
      one.link = el("a", { href: `#${id}` }, one.title);
      one.root = el("section", { id: `tab-${id}`, "aria-label": one.title, hidden: true });
      nav.append(one.link);
      main.append(one.root);
    }
    const { model, dataset } = state.run.setup || {};
    nav.append(el("span", { id: "about", class: "quiet small" }, [model, dataset].filter(Boolean).join(" on ")));
    drawPanel("bar", document.getElementById("bar"), state.run);
    addEventListener("hashchange", show);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);
    show();
    document.body.dataset.ready = "yes";
  };
  document.addEventListener("DOMContentLoaded", start);

  // Four significant digits, as much as a reader compares.
  const number = (value, digits = 4) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e4) return Math.round(value).toLocaleString("en");
    if (size < 1e-4) return value.toExponential(1);
    return String(Number(value.toPrecision(digits)));
  };
  const short = (value) => number(value, 3);
  const percent = (value) => (Number.isFinite(value) ? `${Math.round(100 * value)}%` : "–");
  const duration = (seconds) => {
    if (!Number.isFinite(seconds)) return "–";
    if (seconds < 10) return `${seconds.toFixed(1)} s`;
    if (seconds < 120) return `${Math.round(seconds)} s`;
    if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
    return `${(seconds / 3600).toFixed(1)} h`;
  };

  return {
    tab, panel, drawPanel, el, svg, printable, colour, onTheme, setTheme, THEMES, number, short, percent, duration, setRun,
    get run() { return state.run; },
    // Whether a server answers for single episodes and for new data.
    get live() { return document.documentElement.hasAttribute("data-live"); },
  };
})();
