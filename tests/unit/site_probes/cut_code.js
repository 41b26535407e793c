window.addEventListener("load", () => setTimeout(() => {
  const cut = [...document.querySelectorAll(".beside pre > code")]
    .filter(code => code.scrollWidth > code.clientWidth + 1)
    .map(code => code.textContent.slice(0, 60));
  document.getElementById("probe").textContent = JSON.stringify(cut);
}, 500));