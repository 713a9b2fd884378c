// The token tree on the page: an ARIA tree, steps from left to right, drawn with nested lists.

import { bar, make } from "./dom.js";
import { percent } from "./numbers.js";
import { isFolded, leadsSomewhere, pathTo } from "./tree_model.js";
import { foldedLabels, placeLabel, tokenText } from "./tree_words.js";

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
