// Hides the episodes that the fields above them leave out. Without it the page shows all of them.
for (const box of document.querySelectorAll(".episodes")) {
  const field = (name) => box.querySelector(`[name=${name}]`).value.trim();
  const within = (value, low, high) => (low === "" || value >= Number(low)) && (high === "" || value <= Number(high));
  const apply = () => {
    let shown = 0;
    const all = box.querySelectorAll(".episode");
    for (const episode of all) {
      const { task, kind, step, reward } = episode.dataset;
      const fits =
        task.includes(field("task")) &&
        (field("kind") === "" || kind === field("kind")) &&
        within(Number(step), field("first"), field("last")) &&
        within(Number(reward), field("low"), field("high"));
      episode.hidden = !fits;
      shown += fits;
    }
    box.querySelector("output").textContent = `${shown} of ${all.length} shown`;
  };
  box.querySelector(".filter").hidden = false;
  box.addEventListener("input", apply);
  apply();
}
// Opens the episode that the address names.
const openTarget = () => {
  const episode = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (episode !== null && episode.matches(".episode")) {
    episode.open = true;
    episode.scrollIntoView();
  }
};
window.addEventListener("hashchange", openTarget);
openTarget();
