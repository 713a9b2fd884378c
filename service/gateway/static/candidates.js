// The list of candidates.

import { bar, button, definitions, make } from "./dom.js";
import { logText, number, percent } from "./numbers.js";

/** Text of a metadata value of the API; empty for a missing one. */
export function metadataText(value) {
  const found = Object.values(value ?? {})[0];
  return found === undefined || found === null ? "" : String(found);
}

/** [column, text] pairs of the metadata that is there. */
export function metadataPairs(metadata) {
  return Object.entries(metadata ?? {})
    .map(([column, value]) => [column, metadataText(value)])
    .filter(([, text]) => text !== "")
    .sort(([one], [other]) => one.localeCompare(other)); // a map of the wire has no order
}

// What each kind of evidence is.
const KINDS = {
  names: "titles and aliases",
  texts: "descriptions and other texts",
  queries: "past queries",
  vectors: "similarity of vectors",
  model: "what the model says",
  weight: "the entity's weight in the catalogue",
};

/** Say what the percentage of a candidate is. */
function percentageWords(candidate, reply) {
  if (candidate.probability === undefined) {
    return "probability of this entity";
  }
  if (reply.method === "RETRIEVAL_METHOD_DISC") {
    return "of samples";
  }
  return reply.nothing_fits === undefined ? "among the scored" : "probability that this one is meant";
}

/**
 * Make the list of a reply. `onShow(rank)` is called when the path of a candidate is asked for; `ranks` are in the
 * tree, which is null where there is none.
 */
export function candidateList(reply, ranks, onShow) {
  const candidates = reply.candidates ?? [];
  return make("ol", { class: "candidates" }, candidates.map((one) => candidateItem(one, reply, ranks, onShow)));
}

function candidateItem(candidate, reply, ranks, onShow) {
  const { method } = reply;
  const isInTree = ranks?.has(candidate.rank) ?? false;
  const logprob = number(candidate.logprob);
  const probability = number(candidate.probability) ?? Math.exp(logprob);
  const shares = sharesOf(candidate);
  const ids = make("p", { class: "ids" }, make("code", {}, candidate.entity_id));
  if (candidate.surface && candidate.surface !== candidate.title) {
    ids.append(" written as ", make("q", {}, candidate.surface));
  }
  return make(
    "li",
    { class: "candidate", "data-rank": candidate.rank },
    make("span", { class: "rank", "aria-hidden": "true" }, String(candidate.rank)),
    make("div", { class: "what" }, make("h3", {}, candidate.title), ids, metadata(candidate.metadata)),
    make(
      "div",
      { class: "how-likely" },
      make("p", {}, make("strong", {}, percent(probability)), ` ${percentageWords(candidate, reply)}`),
      bar([["filled", probability]]),
      make("p", { class: "muted" }, `log P ${logText(logprob)}`),
      shares.length > 0 ? sharesPart(candidate, shares) : null,
      shares.length > 0 || method === "RETRIEVAL_METHOD_DISC" ? null : scoreText(candidate, logprob),
      shares.length > 0 ? null : similarityText(candidate),
      method === "RETRIEVAL_METHOD_AUTO" && ranks !== null && !isInTree ? make("p", { class: "proposed" }, "from the shortlist alone") : null,
      isInTree ? showButton(candidate, onShow) : null,
    ),
  );
}

function metadata(values) {
  const pairs = metadataPairs(values);
  return pairs.length === 0 ? null : definitions(pairs, { class: "metadata" });
}

/** [kind, share] pairs of what each kind of evidence adds to the score, the largest first. */
function sharesOf(candidate) {
  const pairs = Object.entries(candidate.shares ?? {}).map(([kind, share]) => [kind, number(share)]);
  return pairs.sort(([, one], [, other]) => Math.abs(other) - Math.abs(one));
}

function sharesPart(candidate, shares) {
  const most = Math.abs(shares[0][1]);
  const rows = shares.map(([kind, share]) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", title: KINDS[kind] }, kind),
      make("td", {}, bar([[share < 0 ? "invalid" : "filled", Math.abs(share) / most]])),
      make("td", {}, `${share < 0 ? "" : "+"}${logText(share)}`),
    ),
  );
  const summary = make("summary", {}, `score ${logText(number(candidate.score))}, most by ${shares[0][0]}`);
  return make("details", { class: "shares" }, summary, make("table", { "aria-label": "What the score is made of" }, make("tbody", {}, rows)));
}

function scoreText(candidate, logprob) {
  const score = number(candidate.score);
  const same = score === undefined || Math.abs(score - logprob) < 1e-9;
  return same ? null : make("p", { class: "muted" }, `score ${logText(score)}`);
}

function similarityText(candidate) {
  const similarity = number(candidate.similarity);
  return similarity === undefined ? null : make("p", { class: "muted" }, `similarity ${logText(similarity)}`);
}

function showButton(candidate, onShow) {
  return button("Show in tree", { class: "link", "aria-label": `Show ${candidate.title} in the tree` }, () => onShow(candidate.rank));
}

/** Mark one candidate of a list, or none. */
export function markCandidate(list, rank) {
  for (const item of list.children) {
    if (rank !== undefined && item.dataset.rank === String(rank)) {
      item.setAttribute("aria-current", "true");
    } else {
      item.removeAttribute("aria-current");
    }
  }
}
