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
  // A budget that can be moved: the best network that costs no more, and the command that exports it.
  const chooser = document.querySelector(".chooser"), rows = [...document.querySelectorAll("#offers tbody tr")];
  const costs = rows.map((row) => Number(row.dataset.cost)).filter((cost) => cost > 0);
  if (chooser && costs.length) {
    const slider = chooser.querySelector("input"), { unit, before, after } = chooser.dataset;
    const least = 0.8 * Math.min(...costs), ratio = 1.2 * Math.max(...costs) / least;
    const scales = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
    const digits = (value) => value >= 100 ? value.toFixed(0) : Number(value.toPrecision(3)).toString();
    const written = (value) => {
      const [scale, sign] = scales.find(([size]) => value >= size) || [1, ""];
      return [digits(value / scale), [sign, unit].filter(Boolean).join(" ")].join(" ");
    };
    const pick = (budget) => {
      const within = rows.filter((row) => Number(row.dataset.cost) <= budget);
      const best = within.reduce((one, row) => !one || Number(row.dataset.quality) > Number(one.dataset.quality) ? row : one, null);
      for (const row of rows) row.classList.toggle("winner", row === best);
      const cells = best ? [...best.cells].map((cell) => cell.textContent) : [];
      document.getElementById("offer").textContent = best ? `${cells[0]}: ${cells[1]} mIoU, ${cells[2]}` : `No network of this run costs as little as ${written(budget)}.`;
      document.getElementById("export").textContent = !best ? "" : before ? `${before} ${digits(budget)}${unit} ${after}` : best.dataset.command;
      document.getElementById("export").parentElement.hidden = !best;
      chooser.querySelector("output").textContent = written(budget);
      slider.setAttribute("aria-valuetext", written(budget));
    };
    const move = () => pick(Number(digits(least * ratio ** (slider.value / 1000))));
    const asked = Number(chooser.dataset.budget) || 1.01 * Math.max(...costs);
    slider.value = Math.max(0, Math.min(1000, Math.round(1000 * Math.log(asked / least) / Math.log(ratio))));
    chooser.hidden = false;
    slider.addEventListener("input", move);
    if (chooser.dataset.budget) pick(asked); else move();
  }
  addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
})();
