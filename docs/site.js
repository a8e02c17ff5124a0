// The theme has landmarks without names of their own, headers of tables without text, and wide tables that no key can scroll.
function nameParts() {
  for (const nav of document.querySelectorAll(".md-path")) nav.setAttribute("aria-label", "Path to this page");
  for (const nav of document.querySelectorAll(".md-code__nav")) nav.setAttribute("role", "none");
  for (const nav of document.querySelectorAll(".md-nav .md-nav[aria-labelledby]")) {
    nav.setAttribute("aria-label", `Pages: ${nav.parentElement.querySelector(".md-ellipsis")?.textContent.trim()}`);
    nav.removeAttribute("aria-labelledby");
  }
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
  }
  for (const header of document.querySelectorAll("th:empty")) header.replaceWith(document.createElement("td"));
}
nameParts();
new MutationObserver(nameParts).observe(document.body, { childList: true, subtree: true });
