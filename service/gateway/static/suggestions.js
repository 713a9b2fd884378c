// Suggestions below the query: the entities that what is typed may become.

import { ApiError, complete } from "./api.js";
import { byId, make } from "./display.js";

const WAIT_MS = 120; // after the last keystroke
const NUM_SHOWN = 8;
const UNSUPPORTED = [404, 405, 501];

/** A form with its matched characters marked; spans count code points. */
function marked(completion) {
  const letters = [...completion.form];
  const parts = [];
  let at = 0;
  for (const { begin, end } of completion.spans ?? []) {
    parts.push(letters.slice(at, begin).join(""), make("mark", {}, letters.slice(begin, end).join("")));
    at = end;
  }
  return [...parts, letters.slice(at).join("")];
}

/** Suggest while somebody types: `token` and `index` are asked for at every call, `choose` gets a title. */
export function suggest(token, index, choose) {
  const input = byId("query");
  const list = byId("suggestions");
  let timer;
  let running;
  let active = -1;
  let isSupported = true;

  function close() {
    clearTimeout(timer);
    running?.abort();
    list.hidden = true;
    list.replaceChildren();
    activate(-1);
    input.setAttribute("aria-expanded", "false");
  }

  function activate(number) {
    list.children[active]?.setAttribute("aria-selected", "false");
    active = number;
    const option = list.children[active];
    option?.setAttribute("aria-selected", "true");
    option?.scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", option?.id ?? "");
  }

  function take(title) {
    input.value = title;
    close();
    choose();
  }

  function show(completions) {
    const options = completions.map((one, number) => {
      const title = one.title === one.form ? null : make("span", { class: "of" }, ` ${one.title}`);
      const option = make("li", { id: `suggestion-${number}`, role: "option", "aria-selected": "false" }, ...marked(one), title);
      option.addEventListener("mousedown", (event) => {
        event.preventDefault(); // the field keeps the focus
        take(one.title);
      });
      option.dataset.title = one.title;
      return option;
    });
    list.replaceChildren(...options);
    list.hidden = options.length === 0;
    active = -1;
    input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-expanded", String(options.length > 0));
  }

  async function ask() {
    running?.abort();
    const asked = (running = new AbortController());
    try {
      const body = { prefix: input.value, index: index(), k: NUM_SHOWN };
      const reply = await complete(token(), body, asked.signal);
      if (!asked.signal.aborted) {
        show(reply.completions ?? []);
      }
    } catch (error) {
      if (asked.signal.aborted) {
        return;
      }
      close(); // the query itself says what is wrong
      if (error instanceof ApiError && UNSUPPORTED.includes(error.httpStatus) && error.status !== "NOT_FOUND") {
        isSupported = false;
        byId("suggestions-note").hidden = false;
      }
    }
  }

  input.addEventListener("input", () => {
    close();
    if (isSupported && input.value.trim() !== "") {
      timer = setTimeout(ask, WAIT_MS);
    }
  });
  input.addEventListener("keydown", (event) => {
    const number = list.children.length;
    if (event.key === "Escape" && !list.hidden) {
      event.stopPropagation();
      close();
    } else if (number > 0 && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      activate(active < 0 && step < 0 ? number - 1 : (active + step + number) % number);
    } else if (event.key === "Enter" && active >= 0) {
      event.preventDefault();
      take(list.children[active].dataset.title);
    }
  });
  input.addEventListener("blur", close);
  input.form.addEventListener("submit", close);
}
