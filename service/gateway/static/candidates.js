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

// What the percentage of a candidate is of, by the method that was used; of the others the entity's own probability.
const SHARE_OF = {
  RETRIEVAL_METHOD_DISC: "of samples",
  RETRIEVAL_METHOD_AUTO: "among the scored",
  RETRIEVAL_METHOD_SHORTLIST: "among the scored",
};

/**
 * Make the list of a reply. `onShow(rank)` is called when the path of a candidate is asked for; `ranks` are in the
 * tree, which is null where there is none.
 */
export function candidateList(reply, ranks, onShow) {
  const candidates = reply.candidates ?? [];
  return make("ol", { class: "candidates" }, candidates.map((one) => candidateItem(one, reply.method, ranks, onShow)));
}

function candidateItem(candidate, method, ranks, onShow) {
  const isInTree = ranks?.has(candidate.rank) ?? false;
  const isShare = candidate.probability !== undefined;
  const logprob = number(candidate.logprob);
  const probability = isShare ? number(candidate.probability) : Math.exp(logprob);
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
      make("p", {}, make("strong", {}, percent(probability)), ` ${isShare ? (SHARE_OF[method] ?? "") : "probability of this entity"}`),
      bar([["filled", probability]]),
      make("p", { class: "muted" }, `log P ${logText(logprob)}`),
      method === "RETRIEVAL_METHOD_DISC" ? null : scoreText(candidate, logprob),
      similarityText(candidate),
      method === "RETRIEVAL_METHOD_AUTO" && ranks !== null && !isInTree ? make("p", { class: "proposed" }, "from the shortlist alone") : null,
      isInTree ? showButton(candidate, onShow) : null,
    ),
  );
}

function metadata(values) {
  const pairs = metadataPairs(values);
  return pairs.length === 0 ? null : definitions(pairs, { class: "metadata" });
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
