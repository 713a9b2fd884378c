// The query and its options in the part of the address behind "#": shareable, and never sent to a server.

/** Read a state; an empty object when there is none. */
export function readAddress() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** Write a state as a new entry of the history, unless it is the one that is there. */
export function writeAddress(state) {
  const hash = `#${new URLSearchParams(state)}`;
  if (hash !== `#${new URLSearchParams(readAddress())}`) {
    history.pushState(null, "", hash);
  }
}
