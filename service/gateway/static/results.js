// Answers on the page: titles with their tree and draws, and JSON with the entities behind it.

import { bar, button, count, decimal, definitions, indentJson, logText, make, number, percent } from "./display.js";
import { figures, verdict } from "./summary.js";
import { TreeView, buildTree, endsOf, placeFacts } from "./tree.js";

const LEGEND = [
  ["valid", "valid: continues a title"],
  ["invalid", "invalid: leads out of the catalogue"],
  ["finished", "a title ends here"],
  ["fruitless", "nothing came of it"],
];

/** The parts of an answer to a RetrieveRequest. */
export function retrievalParts(reply) {
  const tree = buildTree(reply.explanation);
  const candidates = reply.candidates ?? [];
  const ends = tree === null ? null : endsOf(tree, candidates);
  let view = null;
  const list = candidateList(reply, ends, (rank) => {
    view.mark(ends.get(rank));
    markCandidate(list, rank);
  });
  const answer = section("Candidates", "answer", verdict(reply), candidates.length > 0 ? list : null);
  const parts = [make("div", { class: "columns" }, answer, section("Figures", "aside", figures(reply)))];
  if (tree !== null) {
    const drawn = treeSection(tree, list);
    view = drawn.view;
    parts.push(drawn.element);
  }
  return parts;
}

function section(title, name, ...children) {
  const id = `heading-${name}`;
  return make("section", { class: name, "aria-labelledby": id }, make("h2", { id }, title), ...children);
}

function treeSection(tree, list) {
  const detail = make("div", { class: "detail" });
  const view = new TreeView(tree, {
    onShow: (place) => detail.replaceChildren(definitions(placeFacts(place))),
    onMark: (place) => markCandidate(list, place.rank),
  });
  detail.replaceChildren(definitions(placeFacts(tree.root)));
  const element = section(
    "Walked token tree",
    "walk",
    make(
      "div",
      { class: "tree-tools" },
      legend(),
      button("Open all", { class: "quiet" }, () => view.openAll(tree)),
      button("Close what led nowhere", { class: "quiet" }, () => view.closeRest(tree)),
    ),
    make("div", { class: "scroll tree-scroll" }, view.element),
    detail,
    tree.truncated ? make("p", { class: "muted" }, "The tree was too large to be sent whole: places or draws were left out.") : null,
    tree.draws.length > 0 ? drawsPart(tree, view, list) : null,
  );
  return { element, view };
}

function drawsPart(tree, view, list) {
  const pick = (draw) => {
    view.mark(draw.end);
    markCandidate(list, draw.end.rank);
  };
  return make("div", { class: "draws-part" }, make("h3", {}, "Draws"), drawsTable(tree.draws, pick));
}

function legend() {
  const entries = LEGEND.map(([name, words]) => make("li", {}, make("span", { class: `swatch ${name}`, "aria-hidden": "true" }), words));
  return make("ul", { class: "legend", "aria-label": "What the marks mean" }, entries);
}

/** The parts of an answer to an AnswerRequest. */
export function answerParts(reply) {
  const text = make("pre", { class: "json", tabindex: "0", "aria-label": "JSON answer" }, make("code", {}, indentJson(reply.json ?? "")));
  const logprob = Number(reply.logprob ?? 0);
  const probability = make("p", { class: "muted small" }, `log P of the text, without the schema: ${logText(logprob)}`);
  const answer = section("Answer", "answer", text, probability, verdict(reply), entities(reply.entities ?? []));
  return [make("div", { class: "columns" }, answer, section("Figures", "aside", figures(reply)))];
}

function entities(found) {
  if (found.length === 0) {
    return make("p", { class: "muted" }, "No string of this answer is a title.");
  }
  const rows = found.flatMap((one) =>
    one.entities.map((entity, at) =>
      make(
        "tr",
        {},
        make("td", {}, make("code", {}, one.pointer)),
        make("td", {}, make("strong", {}, one.title), entity.title === one.title ? "" : ` (${entity.title})`),
        make("td", {}, make("code", {}, entity.entity_id)),
        make("td", {}, percent(number(one.shares[at]))),
        make("td", {}, metadataPairs(entity.metadata).map(([column, text]) => `${column}: ${text}`).join("; ")),
        make("td", {}, one.index),
      ),
    ),
  );
  const head = make("tr", {}, ["Place", "Title", "Entity", "Share", "Metadata", "Index"].map((title) => make("th", { scope: "col" }, title)));
  const table = make("table", { class: "entities" }, make("caption", {}, "Entities behind its titles"), make("thead", {}, head), make("tbody", {}, rows));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Entities behind the titles" }, table);
}

// The list of candidates.

/** Text of a metadata value of the API; empty for a missing one. */
function metadataText(value) {
  const found = Object.values(value ?? {})[0];
  return found === undefined || found === null ? "" : String(found);
}

/** [column, text] pairs of the metadata that is there. */
function metadataPairs(metadata) {
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
export function percentageWords(candidate, reply) {
  if (candidate.probability === undefined) {
    return "probability of this entity";
  }
  if (reply.method === "RETRIEVAL_METHOD_DISC") {
    return "of samples";
  }
  return reply.nothing_fits === undefined ? "among the scored" : "probability that this one is meant";
}

/** The probability that stands beside a candidate: its own, or where it has none the model's of the entity. */
export function probabilityOf(candidate) {
  return number(candidate.probability) ?? Math.exp(number(candidate.logprob));
}

/**
 * Lengths of the bars of a reply's candidates, in [0, 1]: their probabilities, unless the list has another order.
 * Then `isByScore` is true, and the first one's score is the whole length: bars never contradict the list.
 */
export function likelihoods(reply) {
  const candidates = reply.candidates ?? [];
  const shares = candidates.map(probabilityOf);
  const isByScore = shares.some((share, at) => share > shares[at - 1] + 1e-9);
  return { isByScore, shares: isByScore ? candidates.map((one) => Math.exp(number(one.score) - number(candidates[0].score))) : shares };
}

/**
 * Make the list of a reply. `onShow(rank)` is called when the path of a candidate is asked for; `ranks` are in the
 * tree, which is null where there is none.
 */
function candidateList(reply, ranks, onShow) {
  const { isByScore, shares } = likelihoods(reply);
  const items = (reply.candidates ?? []).map((one, at) => candidateItem(one, reply, shares[at], isByScore, ranks, onShow));
  return make("ol", { class: "candidates" }, items);
}

function candidateItem(candidate, reply, length, isByScore, ranks, onShow) {
  const { method } = reply;
  const isInTree = ranks?.has(candidate.rank) ?? false;
  const logprob = number(candidate.logprob);
  const probability = probabilityOf(candidate);
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
      bar([["filled", length]], { class: isByScore ? "by-score" : "" }),
      make("p", { class: "muted" }, `log P ${logText(logprob)}${isByScore ? "; the bar is by score" : ""}`),
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
function markCandidate(list, rank) {
  for (const item of list.children) {
    if (rank !== undefined && item.dataset.rank === String(rank)) {
      item.setAttribute("aria-current", "true");
    } else {
      item.removeAttribute("aria-current");
    }
  }
}

// The draws of DISC: a row per sample, its draws from left to right.

/** Make the table and the sentence above it; `onPick(draw)` is told which draw was picked. */
function drawsTable(draws, onPick) {
  const samples = bySample(draws);
  const width = Math.max(...[...samples.values()].map((row) => row.length));
  const pressed = { button: null };
  const body = [...samples].map(([sample, row]) => {
    const cells = row.map((draw) => make("td", {}, drawButton(draw, pressed, onPick)));
    const rest = width - row.length;
    return make("tr", {}, make("th", { scope: "row" }, String(sample + 1)), cells, rest > 0 ? make("td", { colspan: rest }) : null);
  });
  const head = make(
    "tr",
    {},
    make("th", { scope: "col" }, "Sample"),
    Array.from({ length: width }, (_, draw) => make("th", { scope: "col" }, `Draw ${draw + 1}`)),
  );
  const table = make("table", { class: "draws", "aria-describedby": "draws-words" }, make("thead", {}, head), make("tbody", {}, body));
  const scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Draws of every sample" }, table);
  return [make("p", { class: "muted small", id: "draws-words" }, drawsWords(draws, samples.size)), scroll];
}

function bySample(draws) {
  const samples = new Map();
  for (const draw of draws) {
    samples.set(draw.sample, [...(samples.get(draw.sample) ?? []), draw]);
  }
  return samples;
}

/** Whether a draw is of the second phase, which accepts nothing and chooses by weight. */
function isSecond(draw) {
  return draw.chosen ? !draw.accepted : draw.acceptance === 0 && draw.validMass > 0;
}

function drawsWords(draws, numSamples) {
  const second = draws.filter(isSecond).length;
  const accepted = draws.filter((draw) => draw.accepted).length;
  const rejected = draws.length - accepted - second;
  const weighed = draws.filter((draw) => draw.chosen && !draw.accepted).length;
  const rest = second === 0 ? "" : ` For ${count(weighed, "sample")} none was accepted: one of ${count(second, "further draw")} was chosen by weight.`;
  return `${count(numSamples, "sample")}: ${count(accepted, "draw")} accepted, ${rejected} rejected. The first one accepted is the sample.${rest}`;
}

/** [name, words, mark] of what became of a draw. */
function outcomeOf(draw) {
  if (draw.accepted) {
    const chance = `chance ${decimal(draw.acceptance)}`;
    return draw.chosen ? ["accepted", `accepted, ${chance}`, "✓"] : ["spare", `accepted, not needed, ${chance}`, "✓"];
  }
  if (isSecond(draw)) {
    const weight = `weight ${decimal(draw.validMass)}`;
    return draw.chosen ? ["weighed", `chosen by weight, ${weight}`, "◆"] : ["rejected", `not chosen, ${weight}`, "◇"];
  }
  return ["rejected", `rejected, chance ${decimal(draw.acceptance)}`, "✗"];
}

function drawButton(draw, pressed, onPick) {
  const [name, said, mark] = outcomeOf(draw);
  const made = button(
    [
      make("span", { class: "mark", "aria-hidden": "true" }, mark),
      make("span", { class: "drawn-title" }, draw.end.prefix || "nothing"),
      make("span", { class: "drawn-chance" }, said),
    ],
    { class: "draw", "data-outcome": name, "aria-pressed": "false" },
    () => {
      pressed.button?.setAttribute("aria-pressed", "false");
      pressed.button = made;
      made.setAttribute("aria-pressed", "true");
      onPick(draw);
    },
  );
  return made;
}
