// Answers on the page: titles with their tree, and JSON with the entities behind it.

import { candidateList, markCandidate, metadataPairs } from "./candidates.js";
import { button, definitions, make } from "./dom.js";
import { drawsTable } from "./draws.js";
import { indentJson } from "./json_text.js";
import { logText, number, percent } from "./numbers.js";
import { figures, verdict } from "./summary.js";
import { buildTree, endsOf } from "./tree_model.js";
import { TreeView } from "./tree_view.js";
import { placeFacts } from "./tree_words.js";

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
