const find = (root, selector) => [...root.querySelectorAll("*")]
  .filter(element => element.shadowRoot)
  .flatMap(element => [...element.shadowRoot.querySelectorAll(selector)]);
window.addEventListener("load", () => setTimeout(() => {
  document.querySelector(".md-search__button").click();
  setTimeout(() => {
    const [field] = find(document, "input[role=combobox]");
    field.value = "leak-free";
    field.dispatchEvent(new Event("input", {bubbles: true}));
    const wait = setInterval(() => {
      const hits = find(document, "a").map(link => link.getAttribute("href"));
      if (!hits.length) return;
      clearInterval(wait);
      document.getElementById("probe").textContent = JSON.stringify(hits);
    }, 200);
  }, 500);
}, 500));