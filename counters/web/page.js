// Keeps the numbers current that the server has already put on the page, and writes them as the reader does.

const EVERY = 1000; // milliseconds between refreshes
const TIMEOUT = 5000; // milliseconds before an answer counts as missing
const RATE_WINDOW = 10; // seconds a rate is averaged over

const whole = new Intl.NumberFormat();
const percent = new Intl.NumberFormat(undefined, { style: "percent", minimumFractionDigits: 2 });
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const ago = new Intl.RelativeTimeFormat(undefined, { numeric: "always", style: "narrow" });

const list = document.getElementById("counters");
const samples = new Map(); // counter -> [seconds, number] pairs of the last seconds
let timer;
let asOf = null;

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function field(card, name, text) {
  setText(card.querySelector(`[data-field="${name}"]`), text);
}

function age(seconds) {
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    if (seconds >= size) return ago.format(-Math.floor(seconds / size), unit);
  }
  return ago.format(-Math.max(0, Math.floor(seconds)), "second");
}

// Records per second; of a counter that no topic feeds, new values per second.
function rate(name, count) {
  const number = count.messages ?? count.value;
  if (number === null) return "–";
  const now = Date.parse(count.as_of) / 1000;
  let seen = samples.get(name) ?? [];
  const last = seen.at(-1);
  // A smaller number is another story: a rebuilt counter or a restored store.
  if (last && number < last[1]) seen = [];
  if (!last || now > last[0]) seen.push([now, number]);
  while (seen.length > 2 && now - seen[0][0] > RATE_WINDOW) seen.shift();
  samples.set(name, seen);
  const [first, latest] = [seen[0], seen.at(-1)];
  return latest[0] > first[0] ? whole.format(Math.round((latest[1] - first[1]) / (latest[0] - first[0]))) : "–";
}

function show(card, name, count, ageOfRead) {
  const state = count.suspect ? "suspect" : count.value === null ? "unreadable" : "";
  if (state) card.dataset.state = state;
  else delete card.dataset.state;
  const data = card.querySelector("data");
  data.value = count.value ?? "";
  setText(data, count.value === null ? "–" : whole.format(count.value));
  if (count.value !== null) {
    field(card, "error", whole.format(Math.round(count.value * count.standard_error)));
    field(card, "percent", percent.format(count.standard_error));
  }
  field(card, "reason", count.reason ?? "");
  field(card, "messages", count.messages === null ? "–" : whole.format(count.messages));
  const rated = card.querySelector('[data-field="rate"]');
  rated.parentElement.hidden = false;
  setText(rated, rate(name, count));
  // Both by the store's clock, so that a wrong clock of the reader does not matter.
  const quiet = count.updated_at && (Date.parse(count.as_of) - Date.parse(count.updated_at)) / 1000 + ageOfRead;
  field(card, "updated", count.updated_at ? age(quiet) : "never");
}

function status(state, text, problem) {
  document.getElementById("status").dataset.state = state;
  document.documentElement.dataset.connection = state === "lost" ? "lost" : "";
  setText(document.getElementById("state"), text); // announced, hence only when it changes
  setText(document.getElementById("problem"), problem);
}

// The server makes the cards; a counter that appeared needs one.
async function renewCards() {
  const answer = await fetch("/", { signal: AbortSignal.timeout(TIMEOUT) });
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("counters");
  list.replaceChildren(...fresh.children);
}

function cards() {
  return new Map([...list.querySelectorAll(".card")].map((card) => [card.dataset.counter, card]));
}

async function refresh() {
  const answer = await fetch("/api/v1/counts", { cache: "no-cache", signal: AbortSignal.timeout(TIMEOUT) });
  const body = await answer.json();
  if (!answer.ok) {
    status("stale", "Waiting", "");
    return;
  }
  const names = Object.keys(body.counts);
  const shown = cards();
  if (names.length !== shown.size || !names.every((name) => shown.has(name)) || (!names.length && asOf === null)) {
    await renewCards();
  }
  for (const [name, card] of cards()) {
    if (body.counts[name]) show(card, name, body.counts[name], body.age_seconds);
  }
  asOf = new Date(body.as_of);
  const old = body.stale ? `, ${age(body.age_seconds)}` : "";
  setText(document.getElementById("as-of"), clock.format(asOf) + old);
  if (body.stale) status("stale", "Stale", "The store does not answer; these are the last numbers it gave.");
  else status("live", "Live", "");
}

async function run() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    await refresh();
  } catch {
    status("lost", "No connection", "The server does not answer; these are the last numbers it gave.");
  }
  clearTimeout(timer);
  timer = setTimeout(run, EVERY);
}

document.addEventListener("visibilitychange", run);
run();
