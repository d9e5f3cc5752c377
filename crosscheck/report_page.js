// The filter, copy buttons, and links that open what they lead to. The page is whole without.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  document.documentElement.classList.add("scripts");

  // The filter: all words must be in the case's id or in what is said of its verdicts that are not equal.
  const words = byId("words");
  const only = byId("only");
  const entries = [...document.querySelectorAll("[data-case]")].map((element) => ({
    element,
    text: `${element.dataset.case} ${element.dataset.bad ?? ""}`.toLowerCase(),
    bad: "bad" in element.dataset,
    row: element.tagName === "TR",
  }));
  const groups = [...document.querySelectorAll(".matrix tbody")];
  const total = entries.filter((entry) => entry.row).length;

  function filter() {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { element, text, bad, row } of entries) {
      const fits = (bad || !only.checked) && wanted.every((word) => text.includes(word));
      if (element.hidden === fits) element.hidden = !fits;
      if (row && fits) shown += 1;
    }
    for (const group of groups) group.hidden = !group.querySelector("[data-case]:not([hidden])");
    byId("shown").value = `${shown} of ${total} ${total === 1 ? "case" : "cases"}`;
    byId("nothing").hidden = shown > 0 || total === 0;
  }

  let waiting = 0;
  words.addEventListener("input", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(filter);
  });
  only.addEventListener("change", filter);
  words.form.addEventListener("submit", (event) => event.preventDefault());
  filter();

  // A link opens what it leads to, and shows it where the filter hides it.
  function reveal() {
    let id = location.hash.slice(1);
    try {
      id = decodeURIComponent(id);
    } catch {
      return; // no id of this page
    }
    const target = id && byId(id);
    if (!target) return;
    if (target.closest("[hidden]")) {
      words.value = "";
      only.checked = false;
      filter();
    }
    for (let place = target.closest("details"); place; place = place.parentElement.closest("details")) place.open = true;
    target.scrollIntoView();
  }
  addEventListener("hashchange", reveal);
  reveal();

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.hash === location.hash) reveal(); // no hashchange: the same link again
    const button = event.target.closest("button");
    if (!button) return;
    const { open, close } = button.dataset;
    if (open ?? close) {
      for (const place of byId(open ?? close).querySelectorAll(":scope > details:not([hidden])")) place.open = Boolean(open);
    }
    if ("copy" in button.dataset) copy(button, button.previousElementSibling);
  });

  async function copy(button, source) {
    const label = button.textContent;
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(source); // no clipboard here: the text is selected, for the keyboard
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = label), 1500);
  }
})();
