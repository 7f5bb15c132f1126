/** Elements from templates, and small pieces that several parts of the page use. */
import { h, htm } from "./vendor.js";
import { WORDS } from "./state.js";

export const html = htm.bind(h);

/** A token's text with its spaces and line ends visible. */
export const visible = (text) => text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";
export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;
export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
/** The glyph and the name of a strategy, such as "▲ fork". */
export const named = (strategy) => `${WORDS.strategies[strategy].glyph} ${WORDS.strategies[strategy].name}`;
/** A bar that is filled to a share of its length. */
export const bar = (share) => html`<span class="bar"><i style=${{ width: percent(share, 1).replace(" ", "") }}></i></span>`;

/** A button that shows a glyph, with a name for screen readers. */
export function Icon({ glyph, name, ...rest }) {
  return html`<button type="button" class="icon" title=${name} aria-label=${name} ...${rest}>${glyph}</button>`;
}

/** An error, what to do about it, and a button that tries again. */
export function Problem({ problem, again }) {
  if (!problem) return null;
  const stopped = problem.message === "stopped";
  return html`<p class=${stopped ? "faint" : "problem"} role=${stopped ? "status" : "alert"}>
    ${problem.message.replace(/([^.!?])$/, "$1.")} ${problem.advice}
    ${again && html` <button type="button" onClick=${again}>${stopped ? "Go on" : "Try again"}</button>`}
  </p>`;
}
