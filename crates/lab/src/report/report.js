// Convenience only: the page is complete without it.
(() => {
  "use strict";
  // A click on a column's heading sorts by it.
  const value = (row, column) => {
    const cell = row.cells[column];
    if (!cell) return "";
    return cell.dataset.v !== undefined ? Number(cell.dataset.v) : cell.textContent.trim();
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === "number") return -1;
    if (typeof b === "number") return 1;
    return a.localeCompare(b, undefined, { numeric: true });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    if (!table.tHead || !body) continue;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows];
        rows.sort((a, b) => (down ? -1 : 1) * compare(value(a, column), value(b, column)));
        body.append(...rows);
      });
    });
  }
  // A mark's figure appears as soon as one points at it, or touches it.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  let shown = null;
  const hide = () => {
    if (shown) shown.mark.prepend(shown.title);
    shown = null;
    tip.hidden = true;
  };
  document.addEventListener("pointerover", (event) => {
    const mark = event.target.closest && event.target.closest("svg.plot > *");
    if (shown && mark === shown.mark) return;
    hide();
    const title = mark && mark.querySelector("title");
    if (!title) return;
    // The browser would show it once more.
    title.remove();
    shown = { mark, title };
    tip.textContent = title.textContent;
    tip.hidden = false;
    const box = mark.getBoundingClientRect();
    const left = box.left + box.width / 2 - tip.offsetWidth / 2;
    tip.style.left = `${Math.max(4, Math.min(left, innerWidth - tip.offsetWidth - 4))}px`;
    const above = box.top - tip.offsetHeight - 6;
    tip.style.top = `${above > 4 ? above : box.bottom + 6}px`;
  });
  document.addEventListener("scroll", hide, true);
  // The contents show where one is.
  const links = new Map();
  for (const link of document.querySelectorAll("nav a")) links.set(link.hash.slice(1), link);
  if ("IntersectionObserver" in window) {
    const seen = new Set();
    const observer = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          if (entry.isIntersecting) seen.add(entry.target.id);
          else seen.delete(entry.target.id);
        }
        let current = null;
        for (const [id, link] of links) {
          link.removeAttribute("aria-current");
          if (seen.has(id)) current = current || link;
        }
        if (!current) return;
        current.setAttribute("aria-current", "true");
        const nav = current.closest("nav");
        const box = current.getBoundingClientRect();
        const frame = nav.getBoundingClientRect();
        if (box.left < frame.left || box.right > frame.right) {
          nav.scrollLeft += box.left - frame.left - 40;
        }
        if (box.top < frame.top || box.bottom > frame.bottom) {
          nav.scrollTop += box.top - frame.top - frame.height / 3;
        }
      },
      { rootMargin: "-10% 0px -60% 0px" },
    );
    for (const section of document.querySelectorAll("main section[id]")) observer.observe(section);
  }
})();
