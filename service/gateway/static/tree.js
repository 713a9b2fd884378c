// The walked token tree: its places as objects, the words about them, and the tree on the page.

import { bar, count, logText, make, number, percent } from "./display.js";

// An Explanation of the API as objects with children, paths and order.

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
function pathTo(end) {
  const path = [];
  for (let current = end; current !== null; current = current.parent) {
    path.unshift(current);
  }
  return path;
}

/** Whether a place and others like it beside it are drawn as one: nothing came of it, and nothing much was lost. */
function isFolded(made) {
  if (leadsSomewhere(made)) {
    return false;
  }
  const wasSearched = made.state === "expanded" || made.state === "finished";
  return !wasSearched || made.probability < LEAST_SHOWN;
}

/** Whether a place leads to something that is shown beside the tree: a candidate or a draw. */
function leadsSomewhere(made) {
  return made.bestRank !== Infinity || made.numDraws > 0;
}

// Words about a place, for eyes and for screen readers.

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
function tokenText(made) {
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
function placeLabel(made) {
  const start = made.parent === null ? "End of the query" : `${made.state === "finished" ? `End of “${made.prefix}”` : `Token “${made.text || tokenText(made)}”`}, ${percent(made.probability)}`;
  const rank = made.rank === undefined ? "" : `, candidate ${made.rank}`;
  const draws = made.draws.length === 0 ? "" : `, ${count(made.draws.length, "draw")} end here`;
  const parts = [start, validWords(made), fate(made) + rank + draws].filter((part) => part !== "");
  return parts.join("; ");
}

/** What became of a place. */
function fate(made) {
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
function foldedLabels(places) {
  const best = percent(Math.max(...places.map((made) => made.probability)));
  const kinds = Object.entries(FOLDED).map(([state, words]) => [places.filter((made) => made.state === state).length, words]);
  const counted = kinds.filter(([many]) => many > 0).map(([many, words]) => `${many} ${words}`);
  return [`${places.length} more, at most ${best}`, `${places.length} more that gave no candidate: ${counted.join(", ")}; at most ${best}`];
}

// An ARIA tree, steps from left to right, drawn with nested lists.

// So many places are open at first; what is behind the others opens on demand.
const MAX_OPEN_AT_FIRST = 150;

/**
 * A tree that is drawn as it is opened.
 *
 * `onShow(place)` is told which place has the focus or the pointer, `onMark(place)` which path was marked.
 */
export class TreeView {
  #items = new Map(); // place -> its list item
  #places = new WeakMap(); // list item -> place, or array of places that are folded
  #root;
  #current;
  #onShow;
  #onMark;

  constructor(tree, { onShow, onMark }) {
    this.#onShow = onShow;
    this.#onMark = onMark;
    this.element = make("ul", { role: "tree", class: "tree", "aria-label": "Token tree" });
    this.#root = this.#item(tree.root);
    this.element.append(this.#root);
    this.#setCurrent(this.#root);
    this.#openAtFirst(tree.root);
    this.element.addEventListener("keydown", (event) => this.#onKey(event));
    this.element.addEventListener("click", (event) => this.#onClick(event));
    this.element.addEventListener("pointerover", (event) => this.#tell(event.target));
    this.element.addEventListener("focusin", (event) => this.#tell(event.target));
  }

  /** Open the way to `place`, mark it and bring it into view. */
  mark(place) {
    const path = pathTo(place);
    const item = this.#itemOf(place);
    for (let above = itemAbove(item); above !== null; above = itemAbove(above)) {
      this.#open(above);
    }
    for (const old of this.element.querySelectorAll("[data-marked]")) {
      delete old.dataset.marked;
      old.removeAttribute("aria-selected");
    }
    for (const step of path) {
      this.#itemOf(step).dataset.marked = "path";
    }
    item.dataset.marked = "end";
    item.setAttribute("aria-selected", "true");
    this.#setCurrent(item);
    item.firstElementChild.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.#onShow(place);
  }

  /** Open every place that leads to another, up to the bound of the first drawing times ten. */
  openAll(tree) {
    for (const place of tree.places.slice(0, MAX_OPEN_AT_FIRST * 10)) {
      if (place.children.length > 0) {
        this.#open(this.#itemOf(place));
      }
    }
    for (const item of this.element.querySelectorAll(".folded")) {
      this.#open(item);
    }
  }

  /** Close all but what leads to candidates and draws. */
  closeRest(tree) {
    for (const place of tree.places) {
      const item = this.#items.get(place);
      if (item !== undefined && place.children.length > 0 && !leadsSomewhere(place) && place.parent !== null) {
        this.#close(item);
      }
    }
    for (const item of this.element.querySelectorAll(".folded")) {
      this.#close(item);
    }
    if (this.#current.closest("[role=group][hidden]") !== null) {
      this.#setCurrent(this.#root);
    }
  }

  #openAtFirst(root) {
    const queue = [root];
    for (let opened = 0; queue.length > 0 && opened < MAX_OPEN_AT_FIRST; ) {
      const place = queue.shift();
      if (place.children.length > 0 && (leadsSomewhere(place) || place.parent === null)) {
        this.#open(this.#itemOf(place));
        opened += place.children.length;
        queue.push(...place.children);
      }
    }
  }

  /** The item of a place; one that is not drawn yet is drawn first. */
  #itemOf(place) {
    if (!this.#items.has(place)) {
      this.#open(this.#itemOf(place.parent));
    }
    if (!this.#items.has(place)) {
      const group = this.#itemOf(place.parent).lastElementChild;
      this.#open(group.querySelector(":scope > .folded"));
    }
    return this.#items.get(place);
  }

  #item(place) {
    const item = make("li", { role: "treeitem", tabindex: "-1", "aria-label": placeLabel(place) }, card(place));
    item.dataset.state = place.state;
    if (place.parent !== null && !leadsSomewhere(place)) {
      item.dataset.fruitless = "";
    }
    if (place.children.length > 0) {
      item.setAttribute("aria-expanded", "false");
    }
    this.#items.set(place, item);
    this.#places.set(item, place);
    return item;
  }

  #foldedItem(places) {
    const [label, name] = foldedLabels(places);
    const item = make(
      "li",
      { role: "treeitem", tabindex: "-1", "aria-label": name, "aria-expanded": "false", class: "folded" },
      make("div", { class: "card bundle" }, make("span", { class: "twist", "aria-hidden": "true" }), label),
    );
    this.#places.set(item, places);
    return item;
  }

  #open(item) {
    if (item.getAttribute("aria-expanded") !== "false") {
      return;
    }
    item.setAttribute("aria-expanded", "true");
    const drawn = item.querySelector(":scope > [role=group]");
    if (drawn !== null) {
      drawn.hidden = false;
      return;
    }
    item.append(make("ul", { role: "group" }, this.#childItems(this.#places.get(item))));
  }

  #childItems(shown) {
    if (Array.isArray(shown)) {
      return shown.map((place) => this.#item(place));
    }
    const kept = shown.children.filter((child) => !isFolded(child));
    const folded = shown.children.filter(isFolded);
    return [...kept.map((child) => this.#item(child)), ...(folded.length > 0 ? [this.#foldedItem(folded)] : [])];
  }

  #close(item) {
    if (item.getAttribute("aria-expanded") === "true") {
      item.setAttribute("aria-expanded", "false");
      item.querySelector(":scope > [role=group]").hidden = true;
    }
  }

  #toggle(item) {
    if (item.getAttribute("aria-expanded") === "true") {
      this.#close(item);
    } else {
      this.#open(item);
    }
  }

  #setCurrent(item) {
    this.#current?.setAttribute("tabindex", "-1");
    item.setAttribute("tabindex", "0");
    this.#current = item;
  }

  #focus(item) {
    if (item) {
      this.#setCurrent(item);
      item.focus({ preventScroll: true });
      item.firstElementChild.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
  }

  #tell(target) {
    const place = this.#places.get(target.closest("[role=treeitem]"));
    if (place !== undefined && !Array.isArray(place)) {
      this.#onShow(place);
    }
  }

  #choose(item) {
    const place = this.#places.get(item);
    if (Array.isArray(place)) {
      this.#toggle(item);
    } else {
      this.mark(place);
      this.#onMark(place);
    }
  }

  #onClick(event) {
    const item = event.target.closest("[role=treeitem]");
    if (item === null || event.target.closest(".card") === null) {
      return;
    }
    this.#focus(item);
    if (event.target.closest(".twist") !== null) {
      this.#toggle(item);
    } else {
      this.#choose(item);
    }
  }

  /** Items that can be seen, in reading order. */
  #visible() {
    return [...this.element.querySelectorAll("[role=treeitem]")].filter(
      (item) => item.parentElement.closest("[role=group][hidden]") === null,
    );
  }

  #onKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) {
      return;
    }
    const handled = this.#move(event.key) || this.#act(event.key);
    if (handled) {
      event.preventDefault();
      event.stopPropagation();
    }
  }

  #move(key) {
    const item = this.#current;
    const visible = this.#visible();
    const here = visible.indexOf(item);
    const targets = {
      ArrowDown: () => visible[here + 1],
      ArrowUp: () => visible[here - 1],
      Home: () => visible[0],
      End: () => visible.at(-1),
    };
    if (targets[key] === undefined) {
      return false;
    }
    this.#focus(targets[key]());
    return true;
  }

  #act(key) {
    const item = this.#current;
    const expanded = item.getAttribute("aria-expanded");
    if (key === "ArrowRight") {
      if (expanded === "true") {
        this.#focus(item.querySelector("[role=treeitem]"));
      } else {
        this.#open(item);
      }
    } else if (key === "ArrowLeft") {
      if (expanded === "true") {
        this.#close(item);
      } else {
        this.#focus(itemAbove(item));
      }
    } else if (key === "Enter" || key === " ") {
      this.#choose(item);
    } else if (key === "*") {
      for (const sibling of item.parentElement.children) {
        this.#open(sibling);
      }
    } else {
      return false;
    }
    return true;
  }
}

/** The tree item that another one lies in; null for the root. */
function itemAbove(item) {
  return item.parentElement.closest("[role=treeitem]");
}

/** The visible part of a place: its token, its probability, and how much of what follows is valid. */
function card(place) {
  const parts = [make("span", { class: "token" }, tokenText(place))];
  if (place.children.length > 0) {
    parts.push(make("span", { class: "twist", "aria-hidden": "true" }));
  }
  if (place.parent !== null) {
    parts.push(make("span", { class: "chance" }, percent(place.probability)));
  }
  if (place.rank !== undefined) {
    parts.push(make("span", { class: "badge" }, `№ ${place.rank}`));
  } else if (place.state === "closed") {
    parts.push(make("span", { class: "badge quiet" }, "closed"));
  }
  if (place.draws.length > 0) {
    const accepted = place.draws.filter((draw) => draw.accepted).length;
    parts.push(make("span", { class: "drawn" }, `${accepted} ✓ ${place.draws.length - accepted} ✗`));
  }
  if (place.validMass !== undefined && place.state !== "finished") {
    const invalid = Math.max(0, 1 - place.validMass);
    parts.push(bar([["valid", place.validMass], ["invalid", invalid]], { class: "mass" }));
    parts.push(make("span", { class: "mass-text" }, `${percent(place.validMass)} valid`));
  }
  return make("div", { class: "card" }, parts);
}
