// Elements made in code. Text becomes text nodes only: nothing that a server says is ever read as markup.

/** Make an element; attributes that are null, undefined or false are left out. */
export function make(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/** Set attributes and append children (strings become text). */
function furnish(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Make a button that does `action`. */
export function button(label, attributes, action) {
  const element = make("button", { type: "button", ...attributes }, label);
  element.addEventListener("click", action);
  return element;
}

/** Make a definition list of [term, value] pairs; a value is text, an element or a list of them. */
export function definitions(pairs, attributes = {}) {
  const rows = pairs.map(([term, value]) => make("div", {}, make("dt", {}, term), make("dd", {}, value)));
  return make("dl", attributes, rows);
}

/** Make a bar of parts: [class, share in [0, 1]] each. For eyes only; what it says must stand beside it as text. */
export function bar(parts, attributes = {}) {
  const pieces = parts.map(([name, share]) => {
    const piece = make("span", { class: name });
    piece.style.setProperty("--share", String(Math.min(Math.max(share, 0), 1)));
    return piece;
  });
  return make("span", { ...attributes, class: `bar ${attributes.class ?? ""}`.trim(), "aria-hidden": "true" }, pieces);
}

/** The element with this id. */
export const byId = (id) => document.getElementById(id);
