const errors = [];
window.addEventListener("error", e => errors.push(String(e.message)));
window.addEventListener("load", () => setTimeout(() => {
  const wide = () => document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const all = selector => [...document.querySelectorAll(selector)];
  const labels = name => all(".plot ." + name).map(node => node.textContent);
  const choose = (id, value) => {
    const menu = document.getElementById(id);
    menu.value = value;
    menu.dispatchEvent(new Event("change"));
  };
  const cut = () => all(".plot text").filter(text => {
    const a = text.getBoundingClientRect(), b = text.closest("svg").getBoundingClientRect();
    return a.left < b.left - 1 || a.right > b.right + 1
      || a.top < b.top - 1 || a.bottom > b.bottom + 1;
  }).map(text => text.textContent);
  const fonts = () => Math.min(...all(".plot text").map(t => t.getBoundingClientRect().height));
  const colours = () => all(".plot .median").map(path => path.getAttribute("stroke"));
  const seen = {overflow: wide(), x: labels("xlabel"), y: labels("ylabel"), colours: colours(),
    cut: cut(), font: fonts(), ink: getComputedStyle(document.body).color,
    paper: getComputedStyle(document.body).backgroundColor, cuts: []};
  for (const option of [...document.getElementById("x").options].map(o => o.value)) {
    choose("x", option);
    seen.cuts.push(...cut());
  }
  choose("x", "round");
  const count = selector => all(selector).length;
  const costs = all(".costs").map(node => node.textContent);
  seen.target = [count(".plot .target"), count(".plot .reached"), costs];
  seen.bands = count(".plot .band");
  if (document.getElementById("seeds")) {
    document.getElementById("seeds").click();
    seen.seeds = [count(".plot .seed"), count(".plot .band")];
    document.getElementById("seeds").click();
  }
  const ticks = () => all(".plot svg")[0].textContent, before = ticks();
  choose("yscale", "linear");
  const linear = ticks();
  choose("xscale", "log");
  seen.scales = [before !== linear, linear !== ticks()];
  seen.cuts.push(...cut());
  choose("yscale", ""); choose("xscale", "linear");
  const file = figureSvg(report.figures[0]), host = document.createElement("div");
  host.append(file); document.body.append(host);
  const edge = file.getBoundingClientRect(), titles = [...file.querySelectorAll(".title")];
  seen.file = {title: titles.map(t => t.textContent).join(" "), xml: file.outerHTML,
    whole: [...file.querySelectorAll("text")].every(t => {
      const box = t.getBoundingClientRect();
      return box.left >= edge.left && box.right <= edge.right + 1 && box.bottom <= edge.bottom;
    })};
  host.remove();
  seen.csv = csv(report.figures[0]).split(/\s+/).length;
  const svg = document.querySelector(".plot svg"), box = svg.getBoundingClientRect();
  svg.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + box.width / 2}));
  seen.hover = document.querySelector(".values").textContent;
  const paper = theme().paper, contrast = colour => {
    const pair = [luminance(colour), luminance(paper)].sort((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  };
  seen.contrast = Math.min(...[...colours(), visible("#882255", paper)].map(contrast));
  seen.text = contrast(theme().soft);
  choose("x", "bytes");
  choose("y", "loss");
  seen.xAfter = labels("xlabel"); seen.yAfter = labels("ylabel");
  document.querySelector(".legend button").click();
  seen.coloursAfter = colours();
  all("details").forEach(d => d.open = true);
  seen.overflowOpen = wide(); seen.errors = errors;
  document.getElementById("probe").textContent = JSON.stringify(seen);
}, 300));
