// Keeps the numbers current that the server has already put on the page.

import { Charts } from "./charts.js";
import { follow } from "./feed.js";
import { age, change, DAY, percent, timeOfDay, whole } from "./format.js";

const TIMEOUT = 5000; // milliseconds before an answer counts as missing
const RATE_WINDOW = 10; // seconds a rate is averaged over
const TICK = 500; // milliseconds in which a number moves to the next
const ANNOUNCE = 60000; // milliseconds between two announcements to screen readers
const RELOAD = 20000; // milliseconds between two looks for new history; mostly answered with "unchanged"

const STALE = "The store does not answer; these are the last numbers it gave.";
const LOST = "The server does not answer; these are the last numbers it gave.";

const only = document.body.dataset.embed;
const list = document.getElementById("counters");
const still = matchMedia("(prefers-reduced-motion: reduce)");
const samples = new Map(); // counter -> [seconds, number] pairs of the last seconds
const byId = (id) => document.getElementById(id);
const seconds = (moment) => Date.parse(moment) / 1000;

const charts = new Charts({
  types: only,
  onZoom: (zoomed) => { byId("reset").hidden = !zoomed; },
});

function setText(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

function cards() {
  return new Map([...list.querySelectorAll(".card")].map((card) => [card.dataset.counter, card]));
}

// Card and table row of a counter have the same fields.
function places(name) {
  return document.querySelectorAll(`[data-counter="${CSS.escape(name)}"]`);
}

function fields(place, texts) {
  for (const [name, text] of Object.entries(texts)) {
    setText(place.querySelector(`[data-field="${name}"]`), text);
  }
}

// Records per second; of a counter that no topic feeds, new values per second.
function rate(name, count) {
  const number = count.messages ?? count.value;
  if (number === null) return "–";
  const now = seconds(count.as_of);
  let seen = samples.get(name) ?? [];
  const last = seen.at(-1);
  // A smaller number is another story: a rebuilt counter or a restored store.
  if (last && number < last[1]) seen = [];
  if (!last || now > last[0]) seen.push([now, number]);
  while (seen.length > 2 && now - seen[0][0] > RATE_WINDOW) seen.shift();
  samples.set(name, seen);
  const [first, latest] = [seen[0], seen.at(-1)];
  return latest[0] > first[0] ? whole(Math.round((latest[1] - first[1]) / (latest[0] - first[0]))) : "–";
}

function growth(place, count) {
  const { since, base } = place.querySelector('[data-field="growth"]').dataset;
  if (!since || count.value === null) return "–";
  const days = (seconds(count.as_of) - since) / DAY;
  return change(Math.round((count.value - base) / (days >= 1 ? days : 1)));
}

// Moves the number that is shown to the new one, for whoever likes movement.
function moveTo(data, value) {
  const from = Number(data.dataset.shown ?? data.value);
  data.value = value;
  if (still.matches || !data.dataset.shown || from === value) {
    data.dataset.shown = value;
    setText(data, whole(value));
    return;
  }
  const began = performance.now();
  const step = (time) => {
    if (Number(data.value) !== value) return; // a newer number took over
    const part = Math.min(1, Math.max(0, (time - began) / TICK));
    data.dataset.shown = Math.round(from + (value - from) * (1 - (1 - part) ** 3));
    setText(data, whole(data.dataset.shown));
    if (part < 1) requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}

function show(place, name, count, texts) {
  const state = count.suspect ? "suspect" : count.value === null ? "unreadable" : "";
  if (state) place.dataset.state = state;
  else delete place.dataset.state;
  const data = place.querySelector("data");
  if (count.value === null) {
    data.value = "";
    setText(data, "–");
  } else if (place.matches(".card")) {
    moveTo(data, count.value);
  } else {
    data.value = count.value;
    setText(data, whole(count.value));
  }
  fields(place, { ...texts, growth: growth(place, count) });
}

function update(name, count, ageOfRead) {
  // Both by the store's clock, so that a wrong clock of the reader does not matter.
  const quiet = count.updated_at && seconds(count.as_of) - seconds(count.updated_at) + ageOfRead;
  const texts = {
    reason: count.reason ?? "",
    messages: count.messages === null ? "–" : whole(count.messages),
    rate: rate(name, count),
    updated: count.updated_at ? age(quiet) : "never",
  };
  if (count.value !== null) {
    texts.error = whole(Math.round(count.value * count.standard_error));
    texts.percent = percent(count.standard_error);
    texts.between = `${whole(count.lower)} – ${whole(count.upper)}`;
  }
  for (const place of places(name)) show(place, name, count, texts);
  if (count.value !== null && !count.suspect) charts.live(name, seconds(count.as_of), count.value, count.standard_error);
}

// Screen readers hear at most one sentence a minute.
let announcedAt = performance.now(), announcement = null, announcing;
function announce(text) {
  announcement = text;
  announcing ??= setTimeout(() => {
    announcing = undefined;
    announcedAt = performance.now();
    setText(byId("announcements"), announcement);
  }, Math.max(0, announcedAt + ANNOUNCE - performance.now()));
}

function status(state, text, problem) {
  byId("status").dataset.state = state;
  document.documentElement.dataset.connection = state === "lost" ? "lost" : "";
  setText(byId("state"), text);
  setText(byId("problem"), problem);
  if (problem) announce(problem);
}

function moment({ as_of, stale, age_seconds = 0 }) {
  if (!as_of) return;
  const old = stale && age_seconds ? `, ${age(age_seconds)}` : "";
  setText(byId("as-of"), timeOfDay(seconds(as_of)) + old);
  if (stale) status("stale", "Stale", STALE);
  else status("live", "Live", "");
}

async function page() {
  const options = { headers: { accept: "text/html" }, cache: "no-cache", signal: AbortSignal.timeout(TIMEOUT) };
  return new DOMParser().parseFromString(await (await fetch("/", options)).text(), "text/html");
}

// The server makes cards and rows; a counter that appeared needs one.
async function renew() {
  const fresh = await page();
  list.replaceChildren(...fresh.getElementById("counters").children);
  byId("rows").replaceChildren(...fresh.getElementById("rows").children);
  byId("table").hidden = fresh.getElementById("table").hidden;
  charts.adopt(cards());
  await charts.load();
}

// New points in the charts, and what growth is measured from.
async function reload() {
  if (document.hidden) return;
  await charts.load();
  if (only) return;
  const fresh = await page();
  for (const place of document.querySelectorAll("[data-counter]")) {
    const twin = fresh.querySelector(`${place.localName}[data-counter="${CSS.escape(place.dataset.counter)}"]`);
    const [mine, its] = [place, twin].map((one) => one?.querySelector('[data-field="growth"]'));
    if (!its) continue;
    Object.assign(mine.dataset, its.dataset);
    if (mine.localName === "dd") setText(mine.previousElementSibling, its.previousElementSibling.textContent);
  }
}

let told = null; // the counts of the last event

async function onCounts(body) {
  told = body;
  const names = Object.keys(body.counts);
  const shown = cards();
  const missing = names.length !== shown.size || !names.every((name) => shown.has(name));
  if (!only && (missing || (!names.length && list.querySelector("[data-unread]")))) await renew();
  for (const name of cards().keys()) {
    if (body.counts[name]) update(name, body.counts[name], body.age_seconds);
  }
  charts.reach(seconds(body.as_of) + body.age_seconds);
  moment(body);
  const [first] = cards();
  const top = first && body.counts[first[0]];
  if (top?.value != null && !body.stale) announce(`${first[0]}: ${whole(top.value)}`);
}

// The same numbers, read again: ages and charts go on.
function onUnchanged({ as_of, ...state }) {
  if (!told) return;
  const counts = Object.entries(told.counts).map(([name, count]) => [name, { ...count, as_of }]);
  onCounts({ as_of, ...state, counts: Object.fromEntries(counts) });
}

for (const button of document.querySelectorAll("[data-range]")) {
  button.addEventListener("click", () => {
    for (const other of document.querySelectorAll("[data-range]")) {
      other.setAttribute("aria-pressed", String(other === button));
    }
    charts.choose(button.dataset.range ? Number(button.dataset.range) : null);
  });
}
byId("reset").addEventListener("click", () => {
  charts.reset();
  // The button is gone now, and the keyboard must not be left nowhere.
  document.querySelector('[aria-pressed="true"], .embed .plot').focus();
});

charts.adopt(cards());
charts.load().catch(() => {});
setInterval(() => reload().catch(() => {}), RELOAD);
follow({ onCounts, onUnchanged, onLost: () => status("lost", "No connection", LOST) });
