// The page: what is asked, when, and what happens with the answer.

import { ApiError, UnreachableError, answer, listIndexes, retrieve } from "./api.js";
import { comparisonOutcome, comparisonParts, retrieveByAll } from "./comparison.js";
import { byId, make } from "./display.js";
import { FieldError, clearErrors, indexFacts, indexOptions, readRequest, readState, showErrors, showMethods, writeState } from "./form.js";
import { answerParts, retrievalParts } from "./results.js";
import { suggest } from "./suggestions.js";
import { outcome } from "./summary.js";

const EXAMPLE_SCHEMA = `{
  "type": "object",
  "properties": {
    "best": {"type": "string", "x-genret-index": "titles"},
    "others": {
      "type": "array", "maxItems": 2, "uniqueItems": true,
      "items": {"type": "string", "x-genret-index": "titles"}
    }
  },
  "required": ["best", "others"]
}`;
const TABS = {
  search: { tab: byId("tab-search"), panel: byId("panel-search"), submit: "Search", ask: retrieve, parts: retrievalParts, outcome },
  compare: {
    tab: byId("tab-compare"), panel: byId("panel-compare"), submit: "Compare", ask: retrieveByAll, parts: comparisonParts, outcome: comparisonOutcome,
  },
  json: { tab: byId("tab-json"), panel: byId("panel-json"), submit: "Answer", ask: answer, parts: answerParts, outcome: () => "An answer is there." },
};
const form = byId("ask");
const shared = [byId("query"), byId("index")];
const results = byId("results");

let mode = "search";
let running = null; // the AbortController of the query that runs
let indexes = [];

const controls = () => [...shared, TABS[mode].panel];
const token = () => byId("token").value.trim();

/** The method that is chosen and, of auto, the one that decodes for it. */
function methods() {
  const panel = TABS[mode].panel;
  const method = (panel.querySelector("[name=method]:checked") ?? panel.querySelector("select[name=method]"))?.value;
  return method === "RETRIEVAL_METHOD_AUTO" ? [method, byId("decoder").value || "RETRIEVAL_METHOD_BEAM"] : [method];
}

function say(text) {
  byId("status").textContent = text;
}

function showMode(name) {
  mode = TABS[name] === undefined ? "search" : name;
  for (const [other, { tab, panel }] of Object.entries(TABS)) {
    tab.setAttribute("aria-selected", String(other === mode));
    tab.tabIndex = other === mode ? 0 : -1;
    panel.hidden = other !== mode;
  }
  byId("submit").textContent = TABS[mode].submit;
  showMethods(TABS[mode].panel, methods());
}

/** Say how many options are set where they may be out of sight. */
function showCount() {
  const numSet = Object.keys(readState([byId("more-search")])).length;
  byId("more-count").textContent = numSet === 0 ? "" : ` (${numSet} set)`;
}

function showIndex() {
  const index = indexes.find((one) => one.name === byId("index").value);
  indexFacts(index, byId("index-facts"), byId("filter-columns"), byId("filter"));
}

/** Show an answer, or nothing. */
function show(parts) {
  results.replaceChildren(...parts);
  results.hidden = parts.length === 0;
  byId("intro").hidden = parts.length > 0;
}

function setBusy(busy) {
  byId("stop").hidden = !busy;
  results.classList.toggle("stale", busy);
  results.setAttribute("aria-busy", String(busy));
  document.body.classList.toggle("busy", busy);
}

function clearFailure() {
  clearErrors(form);
  byId("failure").replaceChildren();
}

/** Say why there is no answer: at the fields at fault, and below the form. */
function fail(error) {
  const violations = error.violations ?? [];
  const homeless = showErrors(controls(), violations);
  const lines = violations.length > 0 ? homeless : [error.message];
  if (error instanceof ApiError && (error.httpStatus === 401 || error.httpStatus === 403)) {
    showTokenError(error.message);
  }
  if (error.retrySeconds !== undefined) {
    lines.push(`Worth another try in ${error.retrySeconds.toLocaleString("en")} s.`);
  }
  const kind = error.status ? make("strong", {}, error.status) : null;
  byId("failure").replaceChildren(...(lines.length > 0 ? [make("p", {}, kind, kind && ": ", lines.join(" "))] : []));
  say(violations.length > homeless.length ? "A field needs a look." : "That did not work.");
}

function showTokenError(message) {
  byId("access").open = true;
  byId("token-error").textContent = message;
  byId("token").setAttribute("aria-invalid", "true");
  byId("token").focus();
}

function abort() {
  running?.abort();
  running = null;
}

/** Ask what the form says; the query that runs is given up. */
async function ask() {
  abort();
  clearFailure();
  const asked = new AbortController();
  const { ask: send, parts, outcome: words } = TABS[mode];
  try {
    const request = readRequest(controls());
    running = asked;
    setBusy(true);
    say("Asking…");
    const reply = await send(token(), request, asked.signal);
    show(parts(reply));
    say(words(reply));
  } catch (error) {
    if (asked.signal.aborted) {
      return; // whoever aborted it has said so
    }
    show([]);
    fail(described(error));
  } finally {
    if (running === asked || running === null) {
      running = null;
      setBusy(false);
    }
  }
}

/** An error in words for people; what nobody foresaw goes to the browser's console as well. */
function described(error) {
  if (error instanceof ApiError || error instanceof FieldError || error instanceof UnreachableError) {
    return error;
  }
  reportError(error);
  return new Error(`The page could not show the answer: ${error.message}`);
}

function stop() {
  if (running !== null) {
    abort();
    setBusy(false);
    say("Stopped.");
  }
}

// The query and its options stand in the part of the address behind "#": shareable, and never sent to a server.

/** Read a state; an empty object when there is none. */
function readAddress() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** Write a state as a new entry of the history, unless it is the one that is there. */
function writeAddress(state) {
  const hash = `#${new URLSearchParams(state)}`;
  if (hash !== `#${new URLSearchParams(readAddress())}`) {
    history.pushState(null, "", hash);
  }
}

/** Put the form into the state that the address names, and ask. */
async function follow() {
  const state = readAddress();
  stop();
  clearFailure();
  showMode(state.tab ?? "search");
  writeState(controls(), state);
  showMethods(TABS[mode].panel, methods());
  showIndex();
  showCount();
  if (state.index && byId("index").value !== state.index) {
    fail(new FieldError([{ field: "index", description: `this server has no index “${state.index}”` }]));
  } else if (state.query) {
    await ask();
  } else {
    show([]);
    say("");
  }
}

async function submit(event) {
  event.preventDefault();
  const state = readState(controls());
  writeAddress(mode === "search" ? state : { tab: mode, ...state });
  if (indexes.length === 0) {
    await begin(); // which follows the address
  } else {
    await ask();
  }
}

/** Learn what is served, then do what the address says. */
async function begin() {
  try {
    indexes = await listIndexes(token());
  } catch (error) {
    fail(described(error));
    return;
  }
  clearFailure();
  indexOptions(indexes, byId("index"));
  await follow();
}

function switchTab(event) {
  const names = Object.keys(TABS);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const target = event.key === "Home" ? 0 : event.key === "End" ? names.length - 1 : names.indexOf(mode) + (step ?? NaN);
  if (Number.isNaN(target)) {
    return;
  }
  event.preventDefault();
  chooseTab(names[(target + names.length) % names.length]);
  TABS[mode].tab.focus();
}

function chooseTab(name) {
  if (name !== mode) {
    stop();
    clearFailure();
    show([]);
    say("");
    showMode(name);
  }
}

function start() {
  byId("schema_json").defaultValue = EXAMPLE_SCHEMA;
  form.addEventListener("submit", submit);
  form.addEventListener("change", () => {
    showMethods(TABS[mode].panel, methods());
    showIndex();
    showCount();
  });
  for (const [name, { tab }] of Object.entries(TABS)) {
    tab.addEventListener("click", () => chooseTab(name));
    tab.addEventListener("keydown", switchTab);
  }
  byId("schema_json").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  byId("stop").addEventListener("click", stop);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      stop();
    }
  });
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address is ours
    byId("query").focus();
  });
  suggest(token, () => byId("index").value, () => form.requestSubmit());
  window.addEventListener("popstate", follow);
  showMode("search");
  begin();
}

start();
