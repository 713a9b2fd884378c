// The form: its controls carry the name of a request's field and the kind of its value; its choice of indexes.

import { button, count, make, number } from "./display.js";

/** What was typed and cannot be sent. */
export class FieldError extends Error {
  constructor(violations) {
    super(violations.map((one) => `${one.field}: ${one.description}`).join("; "));
    this.name = "FieldError";
    this.violations = violations;
  }
}

const WHOLE = /^[+-]?\d+$/;

/** The controls whose values count now: those of `parts` that are not hidden by the method. */
function activeControls(parts) {
  const found = parts.flatMap((part) => (part.matches("[name]") ? [part] : [...part.querySelectorAll("[name]")]));
  return found.filter((control) => control.closest("[data-methods][hidden]") === null);
}

/** The text of a control; "" where it has its default. */
function textOf(control) {
  if (control.type === "checkbox") {
    const standard = control.dataset.default === "true";
    return control.checked === standard ? "" : String(control.checked);
  }
  if (control.type === "radio") {
    return control.checked ? control.value : "";
  }
  return control.value.trim();
}

function valueOf(control, text) {
  const kind = control.dataset.kind;
  if (control.validity.badInput) {
    throw new FieldError([{ field: control.name, description: "must be a number" }]);
  }
  if ((kind === "integer" || kind === "int64") && text !== "" && !WHOLE.test(text)) {
    throw new FieldError([{ field: control.name, description: `must be a whole number, got ${text}` }]);
  }
  if (kind === "integer" || kind === "number") {
    return Number(text);
  }
  return kind === "flag" ? control.checked : text; // int64 stays text: a double would lose digits
}

/** Read a request out of the controls; fields without a value are left out. */
export function readRequest(parts) {
  const request = {};
  const violations = [];
  for (const control of activeControls(parts)) {
    const text = textOf(control);
    try {
      const value = valueOf(control, text);
      if (control.dataset.kind === "flag" ? value : text !== "") {
        request[control.name] = value;
      }
    } catch (error) {
      if (!(error instanceof FieldError)) {
        throw error;
      }
      violations.push(...error.violations);
    }
  }
  if (violations.length > 0) {
    throw new FieldError(violations);
  }
  return request;
}

/** Text of every control that is not at its default, by name: for the address bar. */
export function readState(parts) {
  const controls = activeControls(parts).filter((control) => textOf(control) !== "");
  return Object.fromEntries(controls.map((control) => [control.name, textOf(control)]));
}

/** Put the controls into a state; those it does not name get their defaults. */
export function writeState(parts, state) {
  for (const control of parts.flatMap((part) => (part.matches("[name]") ? [part] : [...part.querySelectorAll("[name]")]))) {
    const text = state[control.name];
    if (control.type === "radio") {
      control.checked = text === undefined ? control.defaultChecked : control.value === text;
    } else if (control.type === "checkbox") {
      control.checked = text === undefined ? control.dataset.default === "true" : text === "true";
    } else if (control.tagName === "SELECT") {
      const known = [...control.options].some((option) => option.value === text);
      control.value = known ? text : (control.options[0]?.value ?? "");
    } else {
      control.value = text ?? control.defaultValue;
    }
  }
}

/** Hide the fields that mean nothing with any of `methods`: the one that is chosen, and what decodes for it. */
export function showMethods(panel, methods) {
  for (const field of panel.querySelectorAll("[data-methods]")) {
    field.hidden = !field.dataset.methods.split(" ").some((method) => methods.includes(method));
  }
}

/** Take all complaints back. */
export function clearErrors(form) {
  for (const place of form.querySelectorAll("[data-error]")) {
    place.textContent = "";
  }
  for (const control of form.querySelectorAll("[aria-invalid]")) {
    control.removeAttribute("aria-invalid");
  }
}

/** Show complaints at their fields; returns those that have none, and puts the focus on the first field at fault. */
export function showErrors(parts, violations) {
  const homeless = [];
  let first = null;
  for (const { field = "", description = "" } of violations) {
    const control = controlOf(parts, field);
    const place = control && placeOf(control);
    if (!place) {
      homeless.push(field ? `${field}: ${description}` : description);
      continue;
    }
    place.textContent = place.textContent ? `${place.textContent}; ${description}` : description;
    control.setAttribute("aria-invalid", "true");
    first ??= control;
  }
  if (first !== null) {
    first.closest("details")?.setAttribute("open", "");
    first.focus();
  }
  return homeless;
}

function controlOf(parts, field) {
  const controls = activeControls(parts);
  const name = field.split(/[.[]/, 1)[0];
  return controls.find((control) => control.name === field) ?? controls.find((control) => control.name === name);
}

function placeOf(control) {
  const ids = (control.getAttribute("aria-describedby") ?? "").split(" ");
  return ids.map((id) => document.getElementById(id)).find((place) => place?.dataset.error !== undefined);
}

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
