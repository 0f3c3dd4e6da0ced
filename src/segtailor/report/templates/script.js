"use strict";
(() => {
  const tip = document.getElementById("tip");
  // Without this script the titles show as the browser's own hints; with it, at once and in our own box.
  for (const title of document.querySelectorAll("svg title")) {
    const owner = title.parentElement;
    owner.dataset.tip = title.textContent;
    owner.setAttribute("aria-label", title.textContent);
    title.remove();
  }
  let on = null;
  const hide = () => { tip.hidden = true; if (on) on.classList.remove("on"); on = null; };
  const show = (event) => {
    const owner = event.target.closest && event.target.closest("[data-tip]");
    if (!owner) { hide(); return; }
    if (owner !== on) { hide(); on = owner; on.classList.add("on"); tip.textContent = owner.dataset.tip; tip.hidden = false; }
    const box = tip.getBoundingClientRect(), gap = 14;
    const left = Math.min(event.clientX + gap, innerWidth - box.width - 8);
    const above = event.clientY + gap + box.height > innerHeight;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above ? Math.max(8, event.clientY - gap - box.height) : event.clientY + gap}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", hide, true);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
})();
