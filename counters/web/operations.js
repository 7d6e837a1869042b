// The tasks: how far they are, and buttons that stop them and let them go on.
// Names, counts and whatever else a task says are text that anybody may have written.

import { age, part, whole } from "./format.js";

const TIMEOUT = 5000; // milliseconds before an answer counts as missing
const REFRESH = 2000; // milliseconds between two questions while somebody looks
const COUNTS_SHOWN = 4; // the rest is behind the name
const TOKEN = "counters.token";
const API = "/api/v1/checkpoints";
const LOST = "The server does not answer.";

const byId = (id) => document.getElementById(id);
const views = { "#counts": byId("counts-view"), "#operations": byId("operations-view") };
const body = byId("tasks").tBodies[0];
const rows = new Map(); // name -> table row
const busy = new Set(); // names of tasks that are being changed
const seconds = (moment) => Date.parse(moment) / 1000;
const looking = () => !document.hidden && !views["#operations"].hidden;

class Refused extends Error {}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

async function ask(path = "", options = {}) {
  const answer = await fetch(API + path, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT), ...options });
  if (answer.ok) return answer.json();
  if (answer.status === 401) sessionStorage.removeItem(TOKEN);
  const { detail } = await answer.json();
  throw new Refused(detail);
}

const reason = (error) => (error instanceof Refused ? `${error.message[0].toUpperCase()}${error.message.slice(1)}.` : LOST);

function counts(task) {
  const all = Object.entries(task.counts);
  const shown = all.slice(0, COUNTS_SHOWN).map(([name, value]) => {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    return `${name} ${typeof value === "number" ? whole(value) : text}`;
  });
  return shown.join(" · ") + (all.length > shown.length ? ` · ${all.length - shown.length} more` : "");
}

function make(name) {
  const row = byId("task").content.firstElementChild.cloneNode(true);
  const link = row.querySelector("a");
  link.textContent = name;
  link.href = `${API}/${encodeURIComponent(name)}`;
  row.querySelector("progress").setAttribute("aria-label", `${name}: done`);
  row.querySelector("button").addEventListener("click", () => change(name));
  rows.set(name, row);
  return row;
}

function fill(row, task, now) {
  const paused = task.desired === "paused";
  const field = (name) => row.querySelector(`[data-field="${name}"]`);
  field("state").dataset.state = task.state;
  setText(field("state"), task.state);
  setText(field("done"), task.progress === null ? "" : part(task.progress));
  setText(field("counts"), counts(task));
  setText(field("heartbeat"), task.heartbeat_at ? age(now - seconds(task.heartbeat_at)) : "");
  setText(field("runner"), task.runner ?? "");
  const bar = row.querySelector("progress");
  bar.value = task.progress ?? 0;
  bar.hidden = task.progress === null;
  const button = row.querySelector("button");
  button.hidden = task.system || task.state === "damaged";
  button.dataset.action = paused ? "resume" : "pause";
  setText(button, paused ? "Resume" : "Pause");
  button.setAttribute("aria-label", `${button.textContent} ${task.name}`);
}

function show({ as_of, total, tasks }) {
  const names = new Set(tasks.map((task) => task.name));
  for (const [name, row] of rows) {
    if (!names.has(name)) {
      row.remove();
      rows.delete(name);
    }
  }
  // A row that stays where it is keeps the keyboard.
  tasks.forEach((task, index) => {
    const row = rows.get(task.name) ?? make(task.name);
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null);
    fill(row, task, seconds(as_of));
  });
  byId("tasks").hidden = !tasks.length;
  byId("no-tasks").hidden = tasks.length > 0;
  const more = total > tasks.length;
  setText(byId("more-tasks"), more ? `The first ${whole(tasks.length)} of ${whole(total)} tasks by name.` : "");
}

let timer, asked = 0;
async function refresh() {
  clearTimeout(timer);
  if (!looking()) return;
  const turn = ++asked;
  let found = null, problem = "";
  try {
    found = await ask();
  } catch (error) {
    problem = reason(error);
  }
  if (turn !== asked) return; // somebody asked again meanwhile, and knows more
  if (found) show(found);
  setText(byId("tasks-problem"), problem);
  if (looking()) timer = setTimeout(refresh, REFRESH);
}

// The token, from the reader where it is not known; null: they would rather not.
function token() {
  const known = sessionStorage.getItem(TOKEN);
  if (known) return known;
  const dialog = byId("token-dialog");
  byId("token").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue || null), { once: true });
  });
}

async function change(name) {
  const { action } = rows.get(name).querySelector("button").dataset;
  const given = !busy.has(name) && (await token());
  if (!given) return;
  busy.add(name);
  let problem = "";
  try {
    sessionStorage.setItem(TOKEN, given);
    const path = `/${encodeURIComponent(name)}/${action}`;
    const { state } = await ask(path, { method: "POST", headers: { authorization: `Bearer ${given}` } });
    setText(byId("announcements"), `${name}: ${state}`);
  } catch (error) {
    problem = reason(error);
    setText(byId("announcements"), problem);
  }
  busy.delete(name);
  setText(byId("action-problem"), problem);
  refresh();
}

byId("token-dialog").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  byId("token-dialog").close(byId("token").value);
});
byId("token-cancel").addEventListener("click", () => byId("token-dialog").close(""));

function turn() {
  const wanted = location.hash in views ? location.hash : "#counts";
  for (const [hash, view] of Object.entries(views)) {
    view.hidden = hash !== wanted;
    const link = document.querySelector(`nav [href="${hash}"]`);
    if (hash === wanted) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  refresh();
}

addEventListener("hashchange", turn);
document.addEventListener("visibilitychange", refresh);
turn();
