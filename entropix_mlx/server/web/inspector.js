/** A token in detail: its alternatives, the branches of its fork, and why it was decided so. */
import { continueFrom } from "./actions.js";
import { html, percent, visible } from "./html.js";
import { RECORDED, WORDS, state } from "./state.js";

/** What else could have stood at a token: another one, or another branch of its fork. */
export function alternatives({ answer, index }) {
  const step = answer.steps[index], branches = step.fork?.branches ?? [];
  return [
    ...step.top_logprobs.map((one) => ({
      tokens: [one.token], text: visible(one.text), share: Math.exp(one.logprob), own: one.token === step.token,
    })),
    ...branches.map((one, number) => ({
      tokens: one.tokens, text: one.text, branch: number, own: number === step.fork.winner,
    })),
  ];
}

/** Continue with the alternative of a number, if it is not what stands there. */
export function takeAlternative(number) {
  const { turn, answer, index } = state.pointed, chosen = alternatives(state.pointed)[number];
  focusText();
  if (chosen && !chosen.own) continueFrom(turn, answer, index, chosen.tokens);
}

/** Return to the text whose token is looked at, where the arrow keys go on. */
export function focusText() {
  const text = /** @type {HTMLElement | null} */ (document.querySelector(".text:has(.token.on)"));
  text?.focus({ preventScroll: true });
}

export function Inspector() {
  if (!state.pointed) {
    return html`<p class="faint">Tap a token of an answer for its alternatives, and why it stands there.
      ${RECORDED ? "The arrow keys go from token to token." : "A tap on an alternative continues from there; the old answer is kept."}</p>`;
  }
  const { answer, index, turn } = state.pointed, step = answer.steps[index], why = state.why;
  const listed = alternatives(state.pointed), button = (one, number) =>
    html`<${Alternative} one=${one} number=${number} why=${why} refused=${one.own || !turn || Boolean(state.running || RECORDED)} />`;
  return html`<section aria-label="Token">
    <h2 aria-live="polite">token ${index + 1}: ${visible(step.text)}</h2>
    <ol class="alternatives">${listed.filter((one) => one.branch === undefined).map(button)}</ol>
    ${step.fork && html`<h3 class="branch"><b>▲</b> ${step.fork.branches.length} branches compared, chosen by ${step.fork.chosen_by}</h3>
      <p class="faint">score against the first, in nats/token</p>
      <ol class="alternatives">${listed.filter((one) => one.branch !== undefined).map((one, number) =>
        button(one, listed.length - step.fork.branches.length + number))}</ol>`}
    ${why?.problem && html`<p class="problem">${why.problem.message} ${why.problem.advice}</p>`}
    ${why?.heading && html`<${Decision} why=${why} strategy=${step.strategy} />`}
    <p class="faint">p ${percent(Math.exp(step.logprob), 1)} · T ${step.temperature.toFixed(2)} · top-p ${step.top_p.toFixed(2)} ·
      top-k ${step.top_k || "off"} · min-p ${step.min_p.toFixed(2)}${step.source ? ` · ${step.source.name}, line ${step.source.line}` : ""}</p>
  </section>`;
}

function Alternative({ one, number, why, refused }) {
  const { lead } = why?.branches?.[one.branch] ?? {};
  const score = one.branch === undefined ? percent(one.share, 1) : one.branch === 0 ? "first" : lead ?? "";
  return html`<li><button type="button" disabled=${refused} onClick=${() => takeAlternative(number)}
      title=${one.own ? "what stands here" : "continue from here with this one"}>
    <span class="sign">${one.own ? "✓" : ""}</span><span class="said">${one.text}</span>
    ${one.share !== undefined && html`<span class="bar"><i style=${{ width: `${100 * one.share}%` }}></i></span>`}
    <span class="number">${score}</span></button></li>`;
}

function Decision({ why, strategy }) {
  return html`<p class="why ${strategy}"><b>${why.heading}</b>${why.outcome}${why.near && `; ${why.near}`}</p>
    ${why.cases.length > 0 && html`<details><summary>Conditions: ✓ holds, ✗ does not (by how much)</summary>
      <ul class="cases">${why.cases.map((one) => html`<li class="${one.strategy} ${one.decided ? "decided" : ""}">
        <b>${WORDS.strategies[one.strategy].glyph} ${one.strategy}</b>
        ${one.conditions.length ? one.conditions.map((each) => html`<span>${each.met ? "✓" : "✗"} ${each.text}</span>`)
          : html`<span>✓ where no other fits</span>`}</li>`)}</ul></details>`}`;
}
