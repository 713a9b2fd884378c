// What is said about a place of the token tree, for eyes and for screen readers.

import { count, logText, percent } from "./numbers.js";

const FATES = {
  expanded: "the model went on from here",
  pruned: "seen, and left for better ones",
  finished: "a title ends here",
  closed: "proven to lead to nothing better",
};

const FOLDED = {
  expanded: "searched",
  finished: "titles beyond the list",
  pruned: "left for better ones",
  closed: "proven useless",
};

/** A token as it is shown: blanks and line ends visible, nothing for nothing. */
export function tokenText(made) {
  if (made.parent === null) {
    return "query";
  }
  if (made.state === "finished") {
    return "end";
  }
  if (made.text === "") {
    return `#${made.tokenId}`;
  }
  return made.text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥");
}

/** What stands for "valid" in a sentence. */
function validWords(made) {
  if (made.validMass === undefined) {
    return "";
  }
  const among = made.numValid === undefined ? "" : `, ${count(made.numValid, "valid token")}`;
  return `${percent(made.validMass)} of what follows is valid${among}`;
}

/** The accessible name of a place. */
export function placeLabel(made) {
  const start = made.parent === null ? "End of the query" : `${made.state === "finished" ? `End of “${made.prefix}”` : `Token “${made.text || tokenText(made)}”`}, ${percent(made.probability)}`;
  const rank = made.rank === undefined ? "" : `, candidate ${made.rank}`;
  const draws = made.draws.length === 0 ? "" : `, ${count(made.draws.length, "draw")} end here`;
  const parts = [start, validWords(made), fate(made) + rank + draws].filter((part) => part !== "");
  return parts.join("; ");
}

/** What became of a place. */
export function fate(made) {
  if (made.parent === null) {
    return "the model starts here";
  }
  if (made.state === "expanded" && made.children.length > 0 && made.bestRank === Infinity && made.numDraws === 0) {
    return "the model went on from here, and no candidate came of it";
  }
  if (made.state === "finished" && made.rank === undefined && made.numDraws === 0) {
    return "a title ends here, and is not among the candidates";
  }
  return FATES[made.state];
}

/** [term, value] pairs about a place. */
export function placeFacts(made) {
  const facts = [];
  if (made.parent !== null) {
    facts.push(["Written so far", `“${made.prefix}”`]);
    facts.push([`This token (id ${made.tokenId})`, `${percent(made.probability)}, log ${logText(made.logprob, 3)}`]);
    facts.push(["All tokens so far", `${percent(Math.exp(made.totalLogprob))}, log ${logText(made.totalLogprob, 3)}`]);
  }
  if (made.validMass !== undefined) {
    facts.push(["What follows", `${percent(made.validMass)} valid, ${percent(Math.max(0, 1 - made.validMass))} invalid`]);
  }
  if (made.numValid !== undefined) {
    facts.push(["Valid tokens", made.numValid.toLocaleString("en")]);
  }
  facts.push(["What became of it", fate(made) + (made.rank === undefined ? "" : ` (candidate ${made.rank})`)]);
  if (made.numDraws > 0) {
    const accepted = made.draws.filter((draw) => draw.accepted).length;
    facts.push(["Draws", made.draws.length > 0 ? `${made.draws.length} end here, ${accepted} accepted` : `${made.numDraws} pass here`]);
  }
  return facts;
}

/** [short, long] label of places that are drawn as one. */
export function foldedLabels(places) {
  const best = percent(Math.max(...places.map((made) => made.probability)));
  const kinds = Object.entries(FOLDED).map(([state, words]) => [places.filter((made) => made.state === state).length, words]);
  const counted = kinds.filter(([many]) => many > 0).map(([many, words]) => `${many} ${words}`);
  return [`${places.length} more, at most ${best}`, `${places.length} more that gave no candidate: ${counted.join(", ")}; at most ${best}`];
}
