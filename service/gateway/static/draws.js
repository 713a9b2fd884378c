// The draws of DISC: a row per sample, its draws from left to right.

import { button, make } from "./dom.js";
import { count, decimal } from "./numbers.js";

/** Make the table and the sentence above it; `onPick(draw)` is told which draw was picked. */
export function drawsTable(draws, onPick) {
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
  return [make("p", { class: "muted small", id: "draws-words" }, words(draws, samples.size)), scroll];
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

function words(draws, numSamples) {
  const second = draws.filter(isSecond).length;
  const accepted = draws.filter((draw) => draw.accepted).length;
  const rejected = draws.length - accepted - second;
  const weighed = draws.filter((draw) => draw.chosen && !draw.accepted).length;
  const rest = second === 0 ? "" : ` For ${count(weighed, "sample")} none was accepted: one of ${count(second, "further draw")} was chosen by weight.`;
  return `${count(numSamples, "sample")}: ${count(accepted, "draw")} accepted, ${rejected} rejected. The first one accepted is the sample.${rest}`;
}

/** [name, words, mark] of what became of a draw. */
function outcome(draw) {
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
  const [name, said, mark] = outcome(draw);
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
