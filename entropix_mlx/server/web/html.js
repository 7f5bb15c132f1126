/** Elements from templates, and small pieces that several parts of the page use. */
import { h, htm } from "./vendor.js";
import { WORDS } from "./state.js";

export const html = htm.bind(h);

/** A token's text with its spaces and line ends visible. */
export const visible = (text) => text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";
export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;
export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

/** The sign of a probability, which needs no colour, and the number. */
export function Grade({ probability }) {
  const [, sign, strategy] = WORDS.grades.find(([least]) => probability >= least);
  return html`<span class="grade ${strategy}">${sign} ${percent(probability)}</span>`;
}

/** A button that is a glyph with a name for those who cannot see it. */
export function Icon({ glyph, name, ...rest }) {
  return html`<button type="button" class="icon" title=${name} aria-label=${name} ...${rest}>${glyph}</button>`;
}

/** What went wrong, what to do, and perhaps a button that does it. */
export function Problem({ problem, again }) {
  if (!problem) return null;
  const stopped = problem.message === "stopped";
  return html`<p class=${stopped ? "faint" : "problem"} role=${stopped ? "status" : "alert"}>
    ${problem.message.replace(/([^.!?])$/, "$1.")} ${problem.advice}
    ${again && html` <button type="button" onClick=${again}>${stopped ? "Go on" : "Try again"}</button>`}
  </p>`;
}
