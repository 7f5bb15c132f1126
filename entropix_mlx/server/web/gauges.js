/** The gauges of a token, the plane of entropy and varentropy, and what the colours mean. */
import { point } from "./actions.js";
import { bar, html, named } from "./html.js";
import { WORDS, state } from "./state.js";

const GAUGES = { entropy: "entropy H", varentropy: "varentropy V", margin: "margin" };
const [LEFT, TOP, WIDTH, HEIGHT] = [22, 16, 294, 170];
const LETTER = 6; // the width of a character of a name in the plane

const share = (value, most) => Math.max(0, Math.min(1, value / most));
const x = (entropy) => LEFT + WIDTH * share(entropy, state.map.scales.entropy.most);
const y = (varentropy) => TOP + HEIGHT * (1 - share(varentropy, state.map.scales.varentropy.most));

export function Gauges({ step }) {
  return html`<section aria-label="Gauges">${Object.keys(GAUGES).map((name) =>
    html`<${Gauge} name=${name} step=${step} scale=${state.map.scales[name]} />`)}</section>`;
}

function Gauge({ name, step, scale: { most, unit } }) {
  const thresholds = state.map.tree.flatMap(({ strategy, bounds }) =>
    (bounds[name] ?? []).filter((bound) => bound > 0 && bound < most).map((bound) => ({ strategy, bound })));
  return html`<div class="gauge ${step.strategy}"><span>${GAUGES[name]}</span>
    <div role="meter" aria-label=${GAUGES[name]} aria-valuemin="0" aria-valuemax=${most} aria-valuenow=${step[name]}>
      ${bar(share(step[name], most))}</div>
    <output data-gauge=${name}>${step[name].toFixed(2)} ${unit}</output>
    <div class="ticks" aria-hidden="true">${thresholds.map(({ strategy, bound }) =>
      html`<b class=${strategy} style=${{ left: `${100 * bound / most}%` }}>${WORDS.strategies[strategy].glyph}</b>`)}</div>
  </div>`;
}

/** The part of the plane where a strategy's conditions hold. A further condition makes it an outline. */
function region({ strategy, bounds: { entropy = [], varentropy = [], ...further } }) {
  const { scales } = state.map, limits = Object.entries(further).map(([name, [, most]]) => `, if ${name} < ${most}`);
  const left = x(entropy[0] ?? 0), right = x(entropy[1] ?? scales.entropy.most);
  const top = y(varentropy[1] ?? scales.varentropy.most), bottom = y(varentropy[0] ?? 0);
  const name = named(strategy) + limits.join(""), whole = entropy.length + varentropy.length === 0;
  if (right <= left || bottom <= top) return null;
  return html`<rect class="region ${strategy} ${limits.length ? "limited" : ""}"
      x=${left} y=${top} width=${right - left} height=${bottom - top} />
    ${!whole && right - left > LETTER * name.length && html`<text class="name" x=${left + 4} y=${top + 12}>${name}</text>`}`;
}

/** A dot for each token whose own entropy and varentropy decided: inserted text has none. */
export function Plane({ answer, step }) {
  const { scales, tree } = state.map, bottom = TOP + HEIGHT;
  const turn = state.chat.turns.find(({ answers }) => answers.includes(answer));
  const decided = answer.steps.filter((one) => !["inserted", "retrieved"].includes(one.origin));
  const pick = ({ target }) => target.dataset.i && point(turn, answer, Number(target.dataset.i));
  return html`<svg class="plane" viewBox="0 0 320 206" role="img" onClick=${pick}
    aria-label="Plane of entropy (across) and varentropy (up): a dot for each token">
    <rect class="frame" x=${LEFT} y=${TOP} width=${WIDTH} height=${HEIGHT} />${[...tree].reverse().map(region)}
    ${decided.map((one) => html`<circle class="dot ${one.strategy}" data-i=${one.index}
      r="2.6" cx=${x(one.entropy)} cy=${y(one.varentropy)} />`)}
    ${step && html`<circle class="now" r="6" cx=${x(step.entropy)} cy=${y(step.varentropy)} />`}
    <text x=${LEFT} y="10">varentropy V, bits²</text>
    <text x=${LEFT - 4} y=${TOP + 8} text-anchor="end">${scales.varentropy.most}</text>
    <text x=${LEFT - 4} y=${bottom} text-anchor="end">0</text><text x=${LEFT} y=${bottom + 13}>0</text>
    <text x=${LEFT + WIDTH / 2} y=${bottom + 13} text-anchor="middle">entropy H, bits</text>
    <text x=${LEFT + WIDTH} y=${bottom + 13} text-anchor="end">${scales.entropy.most}</text>
  </svg>`;
}

/** What the colours mean, and the number of tokens of each. */
export function Legend({ steps = [] }) {
  const counted = Object.groupBy(steps, (step) => step.strategy), decisive = state.map.tree.map((row) => row.strategy);
  const names = Object.keys(WORDS.strategies).filter((name) => counted[name] || decisive.includes(name));
  return html`<ul class="legend" aria-label="Colours">${names.map((name) => html`<li class=${name}><b>${named(name)}</b>
      <span>${WORDS.strategies[name].deed}</span><span class="number">${counted[name]?.length}</span></li>`)}</ul>
    <p class="faint">Entropy H: how open the choice is. Varentropy V: how uneven. Margin: the lead of the most probable token.</p>`;
}
