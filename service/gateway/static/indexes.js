// What is served: the choice of indexes, and what is known of the one that is chosen.

import { button, make } from "./dom.js";
import { count, number } from "./numbers.js";

// Columns that every index has.
const COMMON_COLUMNS = [
  { name: "title", type: "string" },
  { name: "entity_id", type: "string" },
];
const PLAIN_NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;

/** Fill the choice; the default index stands first and stays chosen where nothing else was. */
export function indexOptions(indexes, select) {
  const before = select.value;
  const options = indexes.map((index) => make("option", { value: index.name }, index.is_default ? `${index.name} (default)` : index.name));
  select.replaceChildren(...options);
  if (indexes.some((index) => index.name === before)) {
    select.value = before;
  }
}

/** Say what `index` is, and which columns its filters know; a column's button writes its name into the filter. */
export function indexFacts(index, place, columnsPlace, filter) {
  if (index === undefined) {
    place.replaceChildren();
    return;
  }
  const facts = [
    count(number(index.num_entities) ?? 0, "entity", "entities"),
    count(number(index.num_rows) ?? 0, "surface form"),
    `${index.model} on ${index.device}`,
    ...evidenceFacts(index),
  ];
  place.textContent = facts.join(" · ");
  const columns = [...COMMON_COLUMNS, ...(index.columns ?? [])];
  columnsPlace.replaceChildren(...columns.map((column) => columnButton(column, filter)));
}

function evidenceFacts(index) {
  const evidence = index.evidence ?? [];
  const problems = [...evidence, { kind: "ranking", ...index.ranking }].filter((one) => one.problem);
  const usable = evidence.filter((one) => !one.problem).map((one) => one.kind);
  const facts = usable.length > 0 ? [`evidence: ${usable.join(", ")}`] : [];
  return [...facts, ...problems.map((one) => `${one.kind} cannot be used: ${one.problem}`)];
}

function columnButton(column, filter) {
  const name = PLAIN_NAME.test(column.name) ? column.name : `"${column.name.replaceAll('"', '""')}"`;
  const label = `Put the column ${column.name} (${column.type}) into the filter`;
  return button([column.name, make("span", { class: "muted" }, ` ${column.type}`)], { class: "column", "aria-label": label }, () => {
    filter.setRangeText(name, filter.selectionStart, filter.selectionEnd, "end");
    filter.focus();
  });
}
