// Replaces the summary and the curves when the run has new rows. Episodes stay as they are until the page is loaded again.
const POLL_MS = 3000;
let version = null;
const refresh = async () => {
  try {
    const found = await (await fetch("version")).text();
    if (version !== null && found !== version) {
      const page = new DOMParser().parseFromString(await (await fetch("./")).text(), "text/html");
      const fresh = page.querySelectorAll(".live");
      document.querySelectorAll(".live").forEach((old, index) => {
        const open = [...old.querySelectorAll("details")].map((one) => one.open);
        old.replaceChildren(...fresh[index].childNodes);
        old.querySelectorAll("details").forEach((one, place) => { if (place < open.length) one.open = open[place]; });
      });
    }
    version = found;
    document.body.dataset.live = version;
  } catch { /* the server has stopped: the page keeps its last content */ }
  setTimeout(refresh, POLL_MS);
};
refresh();
