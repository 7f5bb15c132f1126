/** The selected token: its decision, and what else could stand there. */
import { continueWith, leave } from "./actions.js";
import { Icon, bar, html, named, percent, visible } from "./html.js";
import { RECORDED, state } from "./state.js";

export function Inspector({ step }) {
  const { why } = state;
  return html`<section aria-label="Token">
    <div class="title ${step.strategy}"><h2 aria-live="polite"><b>${named(step.strategy)}</b> <span class="said">${visible(step.text)}</span></h2>
      <${Icon} glyph="×" name="Close" onClick=${leave} /></div>
    <p class="why">Token ${step.index + 1}${why?.origin && `, ${why.origin}`}, probability ${percent(Math.exp(step.logprob), 1)}.
      ${why?.action && ` Decision: ${why.action}.`}</p>
    ${why?.problem && html`<p class="problem">${why.problem.message} ${why.problem.advice}</p>`}
    ${step.top_logprobs.length > 0 && html`<h3>What else could stand here</h3>`}
    <ol class="alternatives">${step.top_logprobs.map((one) => html`<${Alternative} tokens=${[one.token]} text=${visible(one.text)}
      taken=${one.token === step.token} share=${Math.exp(one.logprob)} value=${percent(Math.exp(one.logprob), 1)} />`)}</ol>
    ${step.fork && html`<${Branches} fork=${step.fork} leads=${why?.branches} />`}</section>`;
}

function Branches({ fork, leads }) {
  return html`<h3>${fork.branches.length} branches compared, chosen by ${fork.chosen_by}</h3>
    <p class="faint">By how much the mean log probability of a token is larger than in the first branch, in nats</p>
    <ol class="alternatives">${fork.branches.map((one, number) => html`<${Alternative} tokens=${one.tokens} text=${one.text}
      taken=${number === fork.winner} value=${number ? leads?.[number] ?? "" : "first"} />`)}</ol>`;
}

/** Another token or branch; a click continues with it, and the old answer is kept. */
function Alternative({ tokens, text, taken, value, share }) {
  const fixed = taken || Boolean(RECORDED || state.running);
  return html`<li><button type="button" class=${taken ? "taken" : ""} disabled=${fixed} onClick=${() => continueWith(tokens)}
      title=${fixed ? null : "Continue from here with this one"}>
    <span class="sign">${taken ? "✓" : ""}</span><span class="said">${text}</span>
    ${share !== undefined && bar(share)}<span class="number">${value}</span></button></li>`;
}

/** The conditions of all strategies, in their order of precedence, and the settings of the draw. */
export function Conditions({ step }) {
  const cases = state.why?.cases ?? [], otherwise = [{ met: true, text: "no other holds" }];
  return html`<section aria-label="Conditions">
    ${cases.length > 0 && html`<h3>The first whose conditions hold decides</h3>`}
    <ul class="cases">${cases.map(({ strategy, decided, conditions }) => html`<li class="${strategy} ${decided ? "decided" : ""}">
      <b>${named(strategy)}</b><span>${(conditions.length ? conditions : otherwise).map(({ met, text }) =>
        html`<span>${met ? "✓" : "✗"} ${text}</span>`)}</span></li>`)}</ul>
    <p class="faint">Temperature ${step.temperature.toFixed(2)}, top-p ${step.top_p.toFixed(2)}, top-k ${step.top_k || "off"},
      ${" "}min-p ${step.min_p.toFixed(2)}${step.source && `, from ${step.source.name}, line ${step.source.line}`}</p></section>`;
}
