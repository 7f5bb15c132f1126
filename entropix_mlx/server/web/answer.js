/** An answer: its tokens, as Markdown or as plain text, and what can be done with it. */
import { generate, point, show } from "./actions.js";
import { addAnswer } from "./chats.js";
import { Icon, Problem, count, html, percent } from "./html.js";
import { renderMarkdown } from "./markdown.js";
import { RECORDED, state } from "./state.js";
import { h } from "./vendor.js";

/** The elements of each answer and what they were made for: an unchanged answer is not drawn again. */
const drawn = new WeakMap();

function Tokens({ turn, answer }) {
  const pointed = state.pointed?.answer === answer ? state.pointed.index : -1;
  const markdown = state.settings.markdown && answer.steps[0].strain == null;
  const key = [answer.steps.length, pointed, markdown].join();
  if (drawn.get(answer)?.key !== key) drawn.set(answer, { key, elements: elements(answer, pointed, markdown) });
  const look = ({ target }) => {
    const token = target.closest("[data-i]");
    if (token && !target.closest("a")) point(turn, answer, Number(token.dataset.i));
  };
  const walk = (event) => {
    const places = { ArrowRight: pointed + 1, ArrowLeft: pointed - 1, Home: 0, End: answer.steps.length - 1 };
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in places)) return;
    point(turn, answer, places[event.key]);
    event.preventDefault();
  };
  return html`<div class="text ${markdown ? "markdown" : "plain"}" tabIndex="0" role="group"
    aria-label="Answer: the arrow keys go from token to token"
    onClick=${look} onPointerOver=${RECORDED && look} onKeyDown=${walk}>${drawn.get(answer).elements}</div>`;
}

function elements({ steps }, pointed, markdown) {
  const attention = new Map(RECORDED?.attention[pointed]);
  const token = (step, text) => Token(step, text, step.index === pointed, attention.get(step.index));
  const thought = steps.filter((step) => step.reasoning);
  let text = "", next = 0;
  const placed = steps.filter((step) => !step.reasoning).map((step) => {
    text += step.text;
    return { step, begin: text.length - step.text.length, end: text.length };
  });
  /** Elements for the text between two characters, which comes after that of the call before. */
  const leaf = (from, to) => {
    const made = [];
    while (placed[next]?.end <= from) next++;
    for (let at = next, one; (one = placed[at])?.begin < to; at++) {
      made.push(token(one.step, text.slice(Math.max(from, one.begin), Math.min(to, one.end))));
    }
    return made;
  };
  return html`${thought.length > 0 && html`<details class="reasoning">
      <summary>reasoning, ${count(thought.length, "token")}</summary>
      ${thought.map((step) => token(step, step.text))}</details>`}
    ${markdown ? renderMarkdown(text, leaf) : leaf(0, text.length)}`;
}

/** The element of a token, to which the selected one gave the share `seen` of its attention. */
function Token({ index, strategy, origin }, text, on, seen) {
  const attributes = seen && { title: `${percent(seen, 1)} of the token's attention`, style: { "--seen": seen } };
  return h("span", { class: `token ${strategy} from-${origin} ${on ? "on" : ""}`, "data-i": index, ...attributes }, text);
}

function ending({ steps, totals }) {
  if (!totals) return "";
  const reasons = { stop: "end of text", length: "token limit", loop: "it repeated itself" };
  const own = steps.filter((step) => !["inserted", "retrieved"].includes(step.origin));
  const mean = own.reduce((sum, step) => sum + step.logprob, 0) / own.length;
  const reason = reasons[totals.stopped] ?? reasons[totals.finish_reason] ?? totals.finish_reason;
  const parts = [
    reason, count(steps.length, "token"),
    own.length && `probability per token ${percent(Math.exp(mean))}`,
    `seed ${totals.seed}`, totals.usage && `context ${totals.usage.total_tokens}`,
  ];
  return parts.filter(Boolean).join(" · ");
}

/** ‹ answer 2 of 3 › */
function Versions({ turn }) {
  const { at, answers: { length: many } } = turn;
  return many > 1 && html`<span class="versions">
    <${Icon} glyph="‹" name="Previous answer" disabled=${at === 0} onClick=${() => show(turn, at - 1)} />
    answer ${at + 1} of ${many}
    <${Icon} glyph="›" name="Next answer" disabled=${at === many - 1} onClick=${() => show(turn, at + 1)} /></span>`;
}

export function Answer({ turn, answer }) {
  const growing = state.running?.answer === answer, again = () => generate(turn, addAnswer(turn));
  return html`<article class="answer" aria-busy=${growing}>
    ${growing && !answer.steps.length && html`<p class="faint" role="status">Waiting for the first token …</p>`}
    ${answer.steps.length > 0 && html`<${Tokens} turn=${turn} answer=${answer} />`}
    ${answer.totals?.certainty?.unsure && html`<p class="problem">unsure: answers like this one are often wrong</p>`}
    <${Problem} problem=${answer.problem} again=${!state.running && (() => generate(turn, answer))} />
    ${!growing && html`<footer>
      ${!RECORDED && html`<${Icon} glyph="↻" name="Regenerate" disabled=${Boolean(state.running)} onClick=${again} />`}
      <${Versions} turn=${turn} /><span class="faint">${ending(answer)}</span></footer>`}
  </article>`;
}
