/** An answer: its tokens in Markdown or as they are, or a form, and what can be done with it. */
import { continueFrom, point, regenerate, retry, show } from "./actions.js";
import { Grade, Icon, Problem, count, html, visible } from "./html.js";
import { mean } from "./gauges.js";
import { takeAlternative } from "./inspector.js";
import { renderMarkdown } from "./markdown.js";
import { RECORDED, WORDS, state } from "./state.js";

const NOTABLE_STRAIN = 1;
const DIGIT = /^[1-9]$/;

/** What was drawn of an answer last, and for what: an answer that has not changed is not drawn again. */
const drawn = new WeakMap();

function Tokens({ turn, answer }) {
  const { steps, totals } = answer, { colours } = state.settings, markdown = state.settings.markdown && steps[0].strain == null;
  const pointed = state.pointed?.answer === answer ? state.pointed.index : -1;
  const key = [steps.length, pointed, colours, markdown, Boolean(totals)].join();
  if (drawn.get(answer)?.key !== key) drawn.set(answer, { key, tree: text(answer, pointed, colours, markdown) });
  return html`<div class="text ${markdown ? "markdown" : "plain"}" tabIndex="0" role="group"
    aria-label="Answer: the arrow keys go from token to token, a digit takes an alternative"
    onClick=${(event) => look(event, turn, answer)} onPointerOver=${(event) => RECORDED && look(event, turn, answer)}
    onKeyDown=${(event) => walk(event, turn, answer)}>${drawn.get(answer).tree}</div>`;
}

function look(event, turn, answer) {
  const token = event.target.closest("[data-i]");
  if (token && !event.target.closest("a")) point(turn, answer, Number(token.dataset.i));
}

function walk(event, turn, answer) {
  const here = state.pointed?.answer === answer ? state.pointed.index : -1, last = answer.steps.length - 1;
  const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: last }[event.key];
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (to !== undefined) point(turn, answer, to);
  else if (DIGIT.test(event.key) && here >= 0) takeAlternative(Number(event.key) - 1);
  else if (turn && event.key === "[" && turn.at > 0) show(turn, turn.at - 1);
  else if (turn && event.key === "]" && turn.at < turn.answers.length - 1) show(turn, turn.at + 1);
  else return;
  event.preventDefault();
}

/** Elements for the steps of an answer; a model's reasoning comes first, folded. */
function text({ steps }, pointed, colours, markdown) {
  const said = steps.filter((step) => !step.reasoning), thought = steps.filter((step) => step.reasoning);
  const whole = said.map((step) => step.text).join(""), ends = [];
  said.reduce((at, step) => (ends.push(at + step.text.length), at + step.text.length), 0);
  const leaf = (from, to) => spans(said, ends, from, to, (step, piece) => span(step, piece, steps, pointed, colours));
  return [
    thought.length > 0 && html`<details class="reasoning"><summary>reasoning, ${count(thought.length, "token")}</summary>
      ${thought.map((step) => span(step, step.text, steps, pointed, colours))}</details>`,
    markdown ? renderMarkdown(whole, leaf) : leaf(0, whole.length),
  ];
}

/** Elements for the tokens of a piece of the text. */
function spans(steps, ends, from, to, make) {
  const found = [];
  let low = 0, high = ends.length;
  while (low < high) ends[(low + high) >> 1] <= from ? low = ((low + high) >> 1) + 1 : high = (low + high) >> 1;
  for (let number = low, at = from; at < to; number++) {
    const begin = number ? ends[number - 1] : 0, end = Math.min(to, ends[number]);
    if (end > at) found.push(make(steps[number], steps[number].text.slice(at - begin, end - begin)));
    at = Math.max(at, end);
  }
  return found;
}

function span(step, piece, steps, pointed, colours) {
  const [open, close] = WORDS.marks[step.origin] ?? [], before = steps[step.index - 1], after = steps[step.index + 1];
  const strategy = colours === "surprise" ? surprise(step) : colours === "none" ? "" : step.strategy;
  const rare = strategy && WORDS.strategies[strategy].rare ? "rare" : "";
  const begins = open && (before?.origin !== step.origin || step.fork), ends = close && after && after.origin !== step.origin;
  const space = begins ? /^ */.exec(piece)[0] : "";  // it belongs before the mark
  const seen = RECORDED?.attention[pointed]?.tokens.find(([index]) => index === step.index)?.[1];
  return html`${space}<span class="token ${strategy} ${rare} ${step.origin} ${step.index === pointed ? "on" : ""}" data-i=${step.index}
    title=${seen ? `${(100 * seen).toFixed(1)} % of what the token looked at` : null} style=${seen ? { "--seen": seen } : null}
    data-open=${begins ? open : null} data-close=${ends ? close : null}>${piece.slice(space.length)}</span>`;
}

function surprise(step) {
  const bits = -step.logprob / Math.LN2;
  return WORDS.surprises.find(([least]) => bits >= least)?.[2] ?? "";
}

/** The values of a structured answer, each with its probability and its alternatives. */
function Form({ turn, answer }) {
  const fields = answer.totals.fields.filter((field) => field.pointer);
  return html`<dl class="form">${fields.map((field) => html`
    <div><dt>${field.pointer.slice(1)}</dt>
      <dd><button type="button" class="value" onClick=${() => point(turn, answer, field.first)}>
          ${typeof field.value === "string" ? field.value : JSON.stringify(field.value)}</button>
        <${Grade} probability=${field.probability} />
        ${field.strain >= NOTABLE_STRAIN && html`<span class="faint"> strain ${field.strain.toFixed(1)} bits</span>`}
        ${field.alternatives.map((one) => html` <button type="button" class="other" title="continue from here with this one"
          onClick=${() => continueFrom(turn, answer, one.step, [one.token])}>${one.text} ${Math.round(100 * one.probability)} %</button>`)}
      </dd></div>`)}</dl>`;
}

/** The geometric mean of the probabilities of the model's own tokens, also where some were generated before. */
function confidence({ steps }) {
  return Math.exp(mean(steps.filter((step) => !["inserted", "retrieved"].includes(step.origin)), "logprob")) || 0;
}

function ending({ steps, totals }) {
  if (!totals) return "";
  const ended = { loop: "it repeated itself" }[totals.stopped] ?? { stop: "end of text", length: "token limit" }[totals.finish_reason];
  const parts = [
    ended ?? totals.finish_reason, count(steps.length, "token"), `seed ${totals.seed}`,
    totals.insertions && count(totals.insertions, "insertion"), totals.forks && count(totals.forks, "fork"),
    totals.usage && `context ${totals.usage.total_tokens}`,
  ];
  return parts.filter(Boolean).join(" · ");
}

/** ‹ answer 2 of 3 › */
function Versions({ turn }) {
  const { at, answers: { length: many } } = turn;
  return many > 1 && html`<span class="versions"><${Icon} glyph="‹" name="Previous answer" disabled=${at === 0} onClick=${() => show(turn, at - 1)} />
    <span>answer ${at + 1} of ${many}</span>
    <${Icon} glyph="›" name="Next answer" disabled=${at === many - 1} onClick=${() => show(turn, at + 1)} /></span>`;
}

export function Answer({ turn, answer }) {
  const growing = state.running && state.current === answer, { totals } = answer;
  const unsure = totals?.certainty?.unsure;
  return html`<article class="answer" aria-busy=${Boolean(growing)}>
    ${growing && !answer.steps.length && html`<p class="faint" role="status">Reading the question …</p>`}
    ${totals?.fields?.some((field) => field.pointer) && html`<${Form} turn=${turn} answer=${answer} />`}
    ${answer.steps.length > 0 && html`<${Tokens} turn=${turn} answer=${answer} />`}
    ${unsure && html`<p class="unsure">unsure: answers like this one are often wrong</p>`}
    <${Problem} problem=${answer.problem} again=${turn && !growing && (() => retry(turn, answer))} />
    ${turn && !growing && html`<footer>
      ${!RECORDED && html`<${Icon} glyph="↻" name="Regenerate" disabled=${Boolean(state.running)} onClick=${() => regenerate(turn)} />`}
      <${Versions} turn=${turn} />
      ${answer.steps.length > 0 && html`<${Grade} probability=${confidence(answer)} />`}
      <span class="faint" title=${visible(answer.text.slice(0, 200))}>${ending(answer)}</span></footer>`}
  </article>`;
}
