// The walked token tree as objects: an Explanation of the API with children, paths and order.

import { number } from "./numbers.js";

// Places without a result that the model found less likely than this are folded.
const LEAST_SHOWN = 0.05;

/** Words for what became of a place. */
const STATES = {
  EXPLANATION_STATE_EXPANDED: "expanded",
  EXPLANATION_STATE_PRUNED: "pruned",
  EXPLANATION_STATE_FINISHED: "finished",
  EXPLANATION_STATE_CLOSED: "closed",
};

function place(raw, position, parent) {
  const text = raw.text ?? "";
  return {
    position,
    parent,
    depth: raw.depth ?? 0,
    text,
    tokenId: raw.token_id ?? 0,
    // The token that finishes a title is the end token, which is no part of it; tokens bring a blank before a word.
    prefix: parent === null ? "" : raw.state === "EXPLANATION_STATE_FINISHED" ? parent.prefix : (parent.prefix + text).trimStart(),
    probability: Math.exp(number(raw.logprob) ?? 0),
    logprob: number(raw.logprob) ?? 0,
    totalLogprob: number(raw.total_logprob) ?? 0,
    validMass: number(raw.valid_mass),
    numValid: raw.num_valid,
    state: STATES[raw.state] ?? "expanded",
    rank: raw.candidate_rank,
    bestRank: raw.candidate_rank ?? Infinity, // of the best candidate here or below
    draws: [], // that end here
    numDraws: 0, // that end here or below
    children: [],
  };
}

/** Build the tree; null when the answer has none. Parents stand before children in the message. */
export function buildTree(explanation) {
  const raw = explanation?.nodes ?? [];
  if (raw.length === 0) {
    return null;
  }
  const places = [];
  for (const [position, node] of raw.entries()) {
    const parent = node.parent === undefined ? null : (places[node.parent] ?? null);
    const made = place(node, position, parent);
    parent?.children.push(made);
    places.push(made);
  }
  const draws = (explanation.draws ?? []).map((draw) => readDraw(draw, places));
  for (const made of [...places].reverse()) {
    if (made.parent !== null) {
      made.parent.bestRank = Math.min(made.parent.bestRank, made.bestRank);
      made.parent.numDraws += made.numDraws;
    }
  }
  for (const made of places) {
    made.children.sort(byInterest);
  }
  return { root: places[0], places, draws, truncated: explanation.truncated === true };
}

function readDraw(raw, places) {
  const end = places[raw.node ?? 0];
  const draw = {
    sample: raw.sample ?? 0,
    draw: raw.draw ?? 0,
    end,
    validMass: number(raw.valid_mass) ?? 0,
    acceptance: number(raw.acceptance_probability) ?? 0,
    accepted: raw.accepted === true,
    chosen: raw.chosen === true,
  };
  end.draws.push(draw);
  end.numDraws += 1;
  return draw;
}

/** Likelier candidates first, then likelier tokens. */
function byInterest(one, other) {
  if (one.bestRank !== other.bestRank) {
    return one.bestRank < other.bestRank ? -1 : 1;
  }
  return other.logprob - one.logprob;
}

/**
 * Where the title of each candidate ends, by rank. Of several surface forms the best one; where entities share a
 * title, its place has the rank of the first one only, and the others are found by their text.
 */
export function endsOf(tree, candidates) {
  const finished = tree.places.filter((made) => made.state === "finished");
  const ends = new Map();
  for (const { rank, surface } of candidates) {
    const written = finished.filter((made) => made.prefix === surface);
    const end = written.find((made) => made.rank === rank) ?? finished.find((made) => made.rank === rank) ?? written[0];
    if (end !== undefined) {
      ends.set(rank, end);
    }
  }
  return ends;
}

/** The places from the end of the prompt to `end`, both included. */
export function pathTo(end) {
  const path = [];
  for (let current = end; current !== null; current = current.parent) {
    path.unshift(current);
  }
  return path;
}

/** Whether a place and others like it beside it are drawn as one: nothing came of it, and nothing much was lost. */
export function isFolded(made) {
  if (leadsSomewhere(made)) {
    return false;
  }
  const wasSearched = made.state === "expanded" || made.state === "finished";
  return !wasSearched || made.probability < LEAST_SHOWN;
}

/** Whether a place leads to something that is shown beside the tree: a candidate or a draw. */
export function leadsSomewhere(made) {
  return made.bestRank !== Infinity || made.numDraws > 0;
}
