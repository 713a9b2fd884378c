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
