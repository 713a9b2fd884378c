// One query by every method, side by side.

import { ApiError, retrieve } from "./api.js";
import { bar, button, make, milliseconds, number, percent } from "./display.js";
import { likelihoods, percentageWords, probabilityOf } from "./results.js";

const METHODS = [
  ["RETRIEVAL_METHOD_AUTO", "Auto"],
  ["RETRIEVAL_METHOD_BEAM", "Beam search"],
  ["RETRIEVAL_METHOD_DISC", "DISC samples"],
  ["RETRIEVAL_METHOD_SHORTLIST", "Shortlist"],
];

/** Ask by every method at once. A method that is refused has an error; where all are, the first one is thrown. */
export async function retrieveByAll(token, request, signal) {
  const ask = async ([method, name]) => {
    try {
      return { name, reply: await retrieve(token, { ...request, method }, signal) };
    } catch (error) {
      if (error instanceof ApiError) {
        return { name, error };
      }
      throw error;
    }
  };
  const answers = await Promise.all(METHODS.map(ask));
  if (answers.every((one) => one.error !== undefined)) {
    throw answers[0].error;
  }
  return answers;
}

/** The parts of the answers of all methods. */
export function comparisonParts(answers) {
  const ranks = ranksByEntity(answers);
  const columns = make("div", { class: "comparison" });
  const mark = (entityId) => {
    for (const item of columns.querySelectorAll(".compared")) {
      const isSame = item.dataset.entity === entityId;
      item.toggleAttribute("data-same", isSame);
      item.querySelector("button").setAttribute("aria-pressed", String(isSame));
    }
  };
  columns.append(...answers.map((one) => column(one, ranks, mark)));
  return [columns];
}

/** One sentence for the live region. */
export function comparisonOutcome(answers) {
  const firsts = answers.filter((one) => one.reply !== undefined).map((one) => one.reply.candidates?.[0]?.entity_id);
  const agree = new Set(firsts).size === 1 && firsts[0] !== undefined;
  return agree ? `All ${firsts.length} methods that answered name the same entity first.` : "The methods name different entities first.";
}

/** [method, rank] pairs of every entity that some method found. */
function ranksByEntity(answers) {
  const ranks = new Map();
  for (const { name, reply } of answers) {
    for (const candidate of reply?.candidates ?? []) {
      ranks.set(candidate.entity_id, [...(ranks.get(candidate.entity_id) ?? []), [name, candidate.rank]]);
    }
  }
  return ranks;
}

function column({ name, reply, error }, ranks, mark) {
  const id = `compared-${name.replaceAll(" ", "-").toLowerCase()}`;
  const heading = make("h2", { id }, name);
  if (error !== undefined) {
    return make("section", { "aria-labelledby": id }, heading, make("p", { class: "muted" }, `Not answered: ${error.message}`));
  }
  const candidates = reply.candidates ?? [];
  const { shares } = likelihoods(reply);
  const items = candidates.map((one, at) => item(one, shares[at], reply, name, ranks.get(one.entity_id), mark));
  const list = items.length > 0 ? make("ol", {}, items) : make("p", { class: "muted" }, "Nothing was found.");
  return make("section", { "aria-labelledby": id }, heading, make("p", { class: "muted small" }, headline(reply)), list);
}

/** What is said of a whole answer. */
function headline(reply) {
  const said = [milliseconds(number(reply.timings?.total_ms) ?? 0)];
  if (reply.certified !== undefined) {
    said.push(reply.certified ? "proven" : "not proven");
  }
  if (reply.nothing_fits !== undefined) {
    said.push(`none is meant: ${percent(number(reply.nothing_fits))}`);
  }
  if (reply.mass !== undefined) {
    said.push(`in the catalogue: ${percent(number(reply.mass))}`);
  }
  return said.join(" · ");
}

function item(candidate, share, reply, name, ranks, mark) {
  const others = ranks.filter(([other]) => other !== name).map(([other, rank]) => `${other} ${rank}`);
  return make(
    "li",
    { class: "compared", "data-entity": candidate.entity_id },
    button(candidate.title, { class: "link", "aria-pressed": "false" }, () => mark(candidate.entity_id)),
    make("p", { class: "small" }, make("strong", {}, percent(probabilityOf(candidate))), ` ${percentageWords(candidate, reply)}`),
    bar([["filled", share]]),
    make("p", { class: "muted small" }, others.length > 0 ? `also ${others.join(", ")}` : "by this method alone"),
  );
}
