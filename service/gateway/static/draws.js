// The draws of DISC: a row per sample, its draws from left to right.

import { button, make } from "./dom.js";
import { count, decimal } from "./numbers.js";

/** Make the table; `onPick(draw)` is told which draw was picked. */
export function drawsTable(draws, onPick) {
  const samples = Map.groupBy ? Map.groupBy(draws, (draw) => draw.sample) : grouped(draws);
  const width = Math.max(...[...samples.values()].map((row) => row.length));
  const buttons = [];
  const body = [...samples].map(([sample, row]) => {
    const cells = row.map((draw) => make("td", {}, drawButton(draw, buttons, onPick)));
    const rest = width - row.length;
    return make("tr", {}, make("th", { scope: "row" }, String(sample + 1)), cells, rest > 0 ? make("td", { colspan: rest }) : null);
  });
  const head = make(
    "tr",
    {},
    make("th", { scope: "col" }, "Sample"),
    Array.from({ length: width }, (_, draw) => make("th", { scope: "col" }, `Draw ${draw + 1}`)),
  );
  const table = make("table", { class: "draws" }, make("caption", {}, caption(draws, samples.size)), make("thead", {}, head), make("tbody", {}, body));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Draws of every sample" }, table);
}

function grouped(draws) {
  const samples = new Map();
  for (const draw of draws) {
    samples.set(draw.sample, [...(samples.get(draw.sample) ?? []), draw]);
  }
  return samples;
}

function caption(draws, numSamples) {
  const accepted = draws.filter((draw) => draw.accepted).length;
  const weighed = draws.filter((draw) => draw.chosen && !draw.accepted).length;
  const rest = weighed === 0 ? "" : ` For ${count(weighed, "sample")} no draw was accepted, and one was chosen by weight.`;
  return `${count(numSamples, "sample")}, ${count(draws.length, "draw")}: ${accepted} accepted, ${draws.length - accepted} rejected.${rest}`;
}

function outcome(draw) {
  if (draw.accepted) {
    return ["accepted", "✓"];
  }
  return draw.chosen ? ["chosen by weight", "◆"] : ["rejected", "✗"];
}

function drawButton(draw, buttons, onPick) {
  const [words, mark] = outcome(draw);
  const made = button(
    [
      make("span", { class: "mark", "aria-hidden": "true" }, mark),
      make("span", { class: "drawn-title" }, draw.end.prefix || "nothing"),
      make("span", { class: "drawn-chance" }, `${words}, accepted with ${decimal(draw.acceptance)}`),
    ],
    { class: "draw", "data-outcome": draw.accepted ? "accepted" : draw.chosen ? "weighed" : "rejected", "aria-pressed": "false" },
    () => {
      for (const other of buttons) {
        other.setAttribute("aria-pressed", String(other === made));
      }
      onPick(draw);
    },
  );
  buttons.push(made);
  return made;
}
