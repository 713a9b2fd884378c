// Elements, numbers and JSON text for people.

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

// Numbers. The API writes 64-bit integers as strings and numbers that JSON lacks as "NaN", "Infinity".

/** Read a number of the API; undefined where it is not there. */
export function number(value) {
  return value === undefined || value === null ? undefined : Number(value);
}

/** A probability as text: "62 %", "6.2 %", "0.062 %", "3.1e-7". */
export function percent(probability) {
  if (probability === undefined || Number.isNaN(probability)) {
    return "unknown";
  }
  const hundredths = probability * 100;
  if (hundredths === 0 || hundredths >= 99.95) {
    return hundredths === 0 ? "0 %" : "100 %";
  }
  if (hundredths >= 99) {
    return `${hundredths.toFixed(1)} %`;
  }
  if (hundredths >= 9.95) {
    return `${hundredths.toFixed(0)} %`;
  }
  if (hundredths >= 0.01) {
    return `${hundredths.toPrecision(2)} %`;
  }
  return probability.toExponential(1);
}

/** A probability as a decimal of two or three digits that count. */
export function decimal(value) {
  if (value === undefined) {
    return "unknown";
  }
  return Math.abs(value) >= 0.01 || value === 0 ? value.toFixed(2) : value.toExponential(1);
}

/** The log of a probability as text; never "-0.00". */
export function logText(value, digits = 2) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? (0).toFixed(digits) : text.replace("-", "−");
}

/** Milliseconds as text. */
export function milliseconds(value) {
  return value >= 1000 ? `${(value / 1000).toFixed(2)} s` : `${value < 10 ? value.toFixed(1) : value.toFixed(0)} ms`;
}

/** Bytes as text, in powers of 1024. */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let scaled = value;
  let unit = 0;
  while (Math.abs(scaled) >= 1024 && unit < units.length - 1) {
    scaled /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? scaled : scaled.toFixed(1)} ${units[unit]}`;
}

/** A count with its noun: "1 entity", "3,205 entities". */
export function count(value, one, many = `${one}s`) {
  return `${value.toLocaleString("en")} ${value === 1 ? one : many}`;
}

// JSON text with line breaks, character by character: numbers keep the digits they were written with.

/** Return the same JSON with two blanks per level; what is no JSON comes back changed in blanks alone. */
export function indentJson(text) {
  let out = "";
  let level = 0;
  let quoted = false;
  for (let at = 0; at < text.length; at += 1) {
    const character = text[at];
    if (quoted) {
      out += character;
      if (character === "\\") {
        at += 1;
        out += text[at] ?? "";
      } else if (character === '"') {
        quoted = false;
      }
    } else if (character === '"') {
      quoted = true;
      out += character;
    } else if (character === "{" || character === "[") {
      const close = closesAt(text, at);
      if (close > 0) {
        out += character + text[close];
        at = close;
      } else {
        level += 1;
        out += character + newLine(level);
      }
    } else if (character === "}" || character === "]") {
      level -= 1;
      out += newLine(level) + character;
    } else if (character === ",") {
      out += character + newLine(level);
    } else if (character === ":") {
      out += ": ";
    } else if (!/\s/.test(character)) {
      out += character;
    }
  }
  return out;
}

/** Position of the bracket that closes an empty pair opened at `at`; 0 where it is not empty. */
function closesAt(text, at) {
  let next = at + 1;
  while (next < text.length && /\s/.test(text[next])) {
    next += 1;
  }
  return text[next] === "}" || text[next] === "]" ? next : 0;
}

const newLine = (level) => `\n${"  ".repeat(Math.max(0, level))}`;
