// What an answer amounts to, in words and figures.

import { bar, bytes, count, decimal, definitions, make, milliseconds, number, percent } from "./display.js";

const PHASES = [
  ["queue", "queue_ms", "waiting"],
  ["prefill", "prefill_ms", "reading the query"],
  ["decode", "decode_ms", "writing"],
];
// Only where there was something to score.
const SCORING_PHASES = [
  ["shortlist", "shortlist_ms", "asking the evidence"],
  ["score", "score_ms", "scoring titles"],
];

const UNPROVEN =
  "Not proven: an entity that the search left aside could belong in this list. “Prove the list” or a larger beam may settle it.";
const UNPROVEN_SIMILARITY =
  "Not proven: similarity counts in this order, and nothing bounds that of what was not looked at. “Prove the list” orders by probability alone.";

/** One sentence for the live region. */
export function outcome(reply) {
  const found = (reply.candidates ?? []).length;
  const time = milliseconds(number(reply.timings?.total_ms) ?? 0);
  if (found > 0) {
    return `${count(found, "candidate")} in ${time}.`;
  }
  return reply.abstained ? `The answer was withheld, after ${time}.` : `Nothing in the catalogue matches, after ${time}.`;
}

/** Paragraphs that say how sure the answer is. */
export function verdict(reply) {
  const lines = [...nothing(reply), ...proof(reply)];
  return make("div", { class: "verdict" }, lines.map(([name, text]) => make("p", { "data-verdict": name }, text)), massScale(reply));
}

function nothing(reply) {
  if (reply.finish_reason !== "FINISH_REASON_NO_MATCH") {
    return [];
  }
  if (reply.abstained) {
    return [["abstained", "Withheld: the model's answer is less likely to be in the catalogue than was asked for (abstained, NO_MATCH)."]];
  }
  return [["no-match", "No match: nothing in the catalogue answers this query (NO_MATCH)."]];
}

/** Whether a weight of similarity takes part in the scores of a list that was put together by `auto`. */
function isOrderedBySimilarity(reply) {
  return reply.method === "RETRIEVAL_METHOD_AUTO" && (reply.candidates ?? []).some((one) => Math.abs(number(one.score) - number(one.logprob)) > 1e-6);
}

function proof(reply) {
  const lines = [];
  if (reply.certified === true) {
    lines.push(["certified", "Proven: these are the most probable entities of the catalogue, in this order."]);
  } else if (reply.certified === false) {
    lines.push(["uncertified", isOrderedBySimilarity(reply) ? UNPROVEN_SIMILARITY : UNPROVEN]);
  }
  if (reply.nothing_fits !== undefined) {
    lines.push(["nothing-fits", `With probability ${percent(number(reply.nothing_fits))} nothing in the catalogue is meant.`]);
  }
  if ((reply.missing_evidence ?? []).length > 0) {
    lines.push(["missing-evidence", `Answered without its ${reply.missing_evidence.join(", ")}, which cannot be used.`]);
  }
  if (reply.num_scored > 0) {
    const mass = number(reply.mass_lower_bound);
    const written = reply.method === "RETRIEVAL_METHOD_SHORTLIST" ? "" : " and of what was written";
    const share = mass === undefined ? "" : `; together the model gives them ${percent(mass)} of its probability`;
    lines.push(["scored", `${count(reply.num_scored, "title")} scored, of ${count(reply.shortlist_size ?? 0, "entity", "entities")} proposed${written}${share}.`]);
  }
  if (reply.num_draws > 0) {
    lines.push(["draws", `${count(reply.num_draws, "draw")}; ${count(reply.num_accepted ?? 0, "sample")} came from an accepted one.`]);
  }
  return lines;
}

/** The mass of DISC on a scale from 0 to 1: the estimate, its error, and what it is at least and at most. */
function massScale(reply) {
  const mass = number(reply.mass);
  if (mass === undefined) {
    return null;
  }
  const error = number(reply.mass_stderr);
  const isBounded = reply.mass_lower_bound !== undefined && reply.mass_upper_bound !== undefined;
  const [low, high] = isBounded ? [number(reply.mass_lower_bound), number(reply.mass_upper_bound)] : [0, 0];
  const what = reply.json === undefined ? "in the catalogue" : "valid under the schema";
  const scale = bar([["beyond", low], ["between", Math.max(0, high - low)]], { class: "mass-scale" });
  const estimate = make("span", { class: "estimate" });
  estimate.style.setProperty("--at", String(Math.min(Math.max(mass, 0), 1)));
  scale.append(estimate);
  return make(
    "div",
    { class: "mass-box" },
    make(
      "p",
      { "data-verdict": "mass" },
      `The model's own answer is ${what} with probability `,
      make("strong", {}, decimal(mass)),
      error === undefined ? "" : ` ± ${decimal(error)}`,
      isBounded ? `, and surely between ${decimal(low)} and ${decimal(high)}.` : ".",
    ),
    make("div", { class: "scale-row", "aria-hidden": "true" }, "0", scale, "1"),
  );
}

/** Times, index and work. */
export function figures(reply) {
  const pairs = [
    ["Time", timeValue(reply.timings ?? {})],
    ["Index", indexValue(reply.index ?? {})],
    ["Work", workText(reply)],
  ];
  if (reply.seed !== undefined) {
    pairs.push(["Seed", make("code", {}, String(reply.seed))]);
  }
  if (reply.kv_usage !== undefined) {
    pairs.push(["Memory", memoryText(reply.kv_usage)]);
  }
  return definitions(pairs, { class: "figures" });
}

function timeValue(timings) {
  const total = number(timings.total_ms) ?? 0;
  const phases = [...PHASES, ...SCORING_PHASES.filter(([, field]) => (number(timings[field]) ?? 0) > 0)];
  const parts = phases.map(([name, field]) => [name, total > 0 ? (number(timings[field]) ?? 0) / total : 0]);
  const words = phases.map(([name, field, meaning]) =>
    make("span", { class: `phase ${name}`, title: meaning }, `${name} ${milliseconds(number(timings[field]) ?? 0)}`),
  );
  const rest = Math.max(0, total - phases.reduce((sum, [, field]) => sum + (number(timings[field]) ?? 0), 0));
  words.push(make("span", { class: "phase rest", title: "checking, and writing the reply" }, `rest ${milliseconds(rest)}`));
  return [make("strong", {}, milliseconds(total)), bar(parts, { class: "times" }), make("span", { class: "phases" }, words)];
}

function indexValue(index) {
  const digest = index.digest ?? "";
  return [
    make("strong", {}, index.name ?? ""),
    make("span", { class: "block" }, "version ", make("code", {}, index.version ?? "")),
    make("span", { class: "block" }, "digest ", make("code", { class: "digest" }, digest)),
  ];
}

function workText(reply) {
  const parts = [];
  if (reply.num_steps !== undefined) {
    parts.push(count(reply.num_steps, "decode step"));
  }
  if (reply.num_nodes !== undefined) {
    parts.push(`${count(reply.num_nodes, "token")} computed`);
  }
  if (reply.num_exact_nodes > 0) {
    parts.push(`${count(reply.num_exact_nodes, "token")} of them for the proof`);
  }
  if (reply.num_scored > 0) {
    parts.push(`${count(reply.num_scored, "title")} scored`);
  }
  if (reply.num_tokens !== undefined) {
    parts.push(`${count(reply.num_tokens, "token")} written, ${reply.num_forced ?? 0} of them forced`, count(reply.num_forwards ?? 0, "forward pass", "forward passes"));
  }
  return parts.join(", ");
}

function memoryText(kv) {
  const saved = number(kv.saved_bytes) ?? 0;
  const words = saved >= 0 ? `${bytes(saved)} saved by sharing` : `${bytes(-saved)} more than one cache per branch`;
  return `${bytes(number(kv.peak_bytes) ?? 0)} of keys and values, ${words}`;
}
