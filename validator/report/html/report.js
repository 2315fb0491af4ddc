"use strict";
(() => {
  const openParents = (node) => {
    for (let at = node; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  };
  const follow = () => {
    let id = location.hash.slice(1);
    try { id = decodeURIComponent(id); } catch { /* not encoded: taken as it stands */ }
    const target = id && document.getElementById(id);
    if (target) { openParents(target); target.scrollIntoView(); }
  };
  addEventListener("hashchange", follow);
  follow();
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    const target = link && document.getElementById(link.getAttribute("href").slice(1));
    if (target) openParents(target);
  });

  const select = (node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  };
  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      let done = false;
      try { await navigator.clipboard.writeText(code.textContent); done = true; } catch { select(code); }
      button.textContent = done ? "copied" : "selected";
      setTimeout(() => { button.textContent = "copy"; }, 2000);
    });
  }

  const filter = document.getElementById("filter");
  const rows = [...document.querySelectorAll("tr.finding")];
  if (filter && rows.length) {
    filter.parentElement.hidden = false;
    const shown = document.getElementById("filtered");
    filter.addEventListener("input", () => {
      const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !wanted.every((word) => text.includes(word));
        count += row.hidden ? 0 : 1;
      }
      if (wanted.length) for (const table of document.querySelectorAll("#open,#within")) table.open = true;
      shown.textContent = wanted.length ? `${count} of ${rows.length}` : "";
    });
  }
  let folded = [];
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details:not(#within):not([open])")) {
      folded.push(details);
      details.open = true;
    }
  });
  addEventListener("afterprint", () => {
    for (const details of folded) details.open = false;
    folded = [];
  });
})();
