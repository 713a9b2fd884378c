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

/**
 * Make the list. `onShow(rank)` is called when the path of a candidate is asked for; `ranks` are in the tree.
 */
export function candidateList(candidates, ranks, onShow) {
  return make("ol", { class: "candidates" }, candidates.map((one) => candidateItem(one, ranks.has(one.rank), onShow)));
}

function candidateItem(candidate, isInTree, onShow) {
  const sampled = candidate.probability !== undefined;
  const logprob = number(candidate.logprob);
  const probability = sampled ? number(candidate.probability) : Math.exp(logprob);
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
      make("p", {}, make("strong", {}, percent(probability)), sampled ? " of samples" : ` log ${logText(logprob)}`),
      bar([["filled", probability]]),
      sampled ? make("p", { class: "muted" }, `log P ${logText(logprob)}`) : scoreText(candidate, logprob),
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
