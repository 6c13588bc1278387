// The only script of the viewer. Pages work without it; it saves reloads and makes tokens clickable.
"use strict";

async function load(address, push) {
  const answer = await fetch(address, { credentials: "same-origin" });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const main = page.querySelector("main");
  if (!main) { location.reload(); return; }
  const focused = document.activeElement && document.activeElement.id;
  document.querySelector("main").replaceWith(document.adoptNode(main));
  document.title = page.title;
  if (push) history.replaceState(null, "", address);
  if (focused && document.getElementById(focused)) document.getElementById(focused).focus();
  refresh();
}

// <form data-live>: changing a field shows the answer at once.
document.addEventListener("change", (event) => {
  const form = event.target.form;
  if (!form || !form.hasAttribute("data-live")) return;
  const fields = new URLSearchParams(new FormData(form));
  load((form.getAttribute("action") || location.pathname) + "?" + fields, true);
});

// A slider shows its number while it moves: <input type=range> <output for=its-id>.
document.addEventListener("input", (event) => {
  if (event.target.type !== "range") return;
  for (const output of document.querySelectorAll(`output[for="${CSS.escape(event.target.id)}"]`))
    output.value = Number(event.target.value).toLocaleString("en");
  const field = event.target.dataset.sets && document.getElementById(event.target.dataset.sets);
  if (field) field.value = event.target.value;
});

// <div id=x data-refresh=2>: renewed every 2 seconds while the page is visible.
let timers = [];
function refresh() {
  timers.forEach(clearInterval);
  timers = [...document.querySelectorAll("[id][data-refresh]")].map((part) => setInterval(async () => {
    if (document.hidden) return;
    const answer = await fetch(location.href, { credentials: "same-origin" }).catch(() => null);
    if (!answer || !answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById(part.id), old = document.getElementById(part.id);
    if (fresh && old) old.replaceChildren(...[...fresh.childNodes].map((node) => document.adoptNode(node)));
  }, Math.max(0.5, Number(part.dataset.refresh)) * 1000));
}

// Tokens: a click, or the arrow keys inside <div class=tokens tabindex=0>, shows the token in the next <output>.
function choose(token) {
  const box = token.closest(".tokens");
  for (const old of box.querySelectorAll(".chosen")) old.classList.remove("chosen");
  token.classList.add("chosen");
  token.scrollIntoView({ block: "nearest" });
  const output = box.parentElement.querySelector("output.token");
  if (output) output.value = token.title;
  explain(token);
}

// The document that a token is from, in the row's `why`: opened and marked.
function explain(token) {
  const row = token.closest("article"), at = Number(token.dataset.at);
  if (!row || !token.dataset.at) return;
  for (const one of row.querySelectorAll(".documents li[data-at]")) {
    const mine = at >= Number(one.dataset.at) && (!one.dataset.to || at < Number(one.dataset.to));
    one.classList.toggle("chosen", mine);
    if (mine) one.closest("details").open = true;
  }
}
document.addEventListener("click", (event) => {
  const token = event.target.closest(".tokens .tok");
  if (token) choose(token);
});
document.addEventListener("keydown", (event) => {
  const box = event.target;
  if (!(box instanceof Element) || !box.matches(".tokens") || !["ArrowRight", "ArrowLeft"].includes(event.key)) return;
  const tokens = [...box.querySelectorAll(".tok")];
  const at = tokens.findIndex((token) => token.classList.contains("chosen"));
  const next = tokens[event.key === "ArrowRight" ? at + 1 : at - 1] || (at < 0 ? tokens[0] : null);
  if (next) { choose(next); event.preventDefault(); }
});

refresh();
