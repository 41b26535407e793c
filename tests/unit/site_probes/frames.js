const seen = {wide: {}, loaded: [], dark: null};
const done = () => { document.getElementById("probe").textContent = JSON.stringify(seen); };
let waiting = 0;
for (const page of PAGES) {
  const frame = document.createElement("iframe");
  frame.style = "width: WIDTHpx; height: 800px; border: 0";
  frame.src = page;
  waiting += 1;
  frame.onload = () => setTimeout(() => {
    const inside = frame.contentDocument, root = inside.documentElement;
    seen.wide[page] = root.scrollWidth - root.clientWidth;
    const entries = frame.contentWindow.performance.getEntriesByType("resource");
    seen.loaded.push(...entries.map(entry => entry.name));
    seen.paper = getComputedStyle(inside.body).backgroundColor;
    if (--waiting === 0) done();
  }, 300);
  document.body.appendChild(frame);
}
