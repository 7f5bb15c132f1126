/** The gauges, the map of H and V, and the counts: of a token, of the newest one, or averages. */
import { point } from "./actions.js";
import { html, percent } from "./html.js";
import { WORDS, state } from "./state.js";

const GAUGES = ["entropy", "varentropy", "margin"];
const [LEFT, TOP, WIDTH, HEIGHT] = [26, 6, 288, 176];
const [COLUMNS, LINES] = [36, 18];

const share = (value, most) => Math.max(0, Math.min(1, value / most));
const finite = (bounds, most) => bounds.filter((bound) => bound !== null && bound > 0 && bound < most);
export const mean = (steps, name) => steps.reduce((sum, step) => sum + step[name], 0) / steps.length;
const label = (name) => WORDS.strategies[name].short || name;

/** What the gauges are about: a step, or all of an answer. */
function subject() {
  if (state.pointed) return { step: state.pointed.answer.steps[state.pointed.index], steps: state.pointed.answer.steps };
  const steps = state.current?.steps ?? [];
  return { step: state.running ? steps.at(-1) : undefined, steps };
}

export function Gauges() {
  const { step, steps } = subject(), { scales } = state.map;
  const titled = steps.length > 0 && !step;
  return html`<section aria-label="Gauges">
    ${titled && html`<p class="faint">averages over ${steps.length} tokens</p>`}
    ${scales.entropy && GAUGES.map((name) => html`<${Gauge} name=${name} scale=${scales[name]} strategy=${step?.strategy}
      word=${step ? state.why?.words?.[name] ?? (name === "entropy" ? label(step.strategy) : "") : ""}
      value=${step ? step[name] : steps.length ? mean(steps, name) : NaN} />`)}
    ${step?.strain != null && html`<p class="faint">strain ${step.strain.toFixed(2)} bits</p>`}
  </section>`;
}

function Gauge({ name, value, scale, word, strategy = "none" }) {
  const number = Number.isNaN(value) ? "–" : value.toFixed(2);
  return html`<div class="gauge ${strategy}">
    <span class="faint">${scale.label}</span> <span>${word}</span> <output data-gauge=${name}>${number} ${scale.unit}</output>
    <div class="bar" role="meter" aria-label=${scale.label} aria-valuemin="0" aria-valuemax=${scale.most}
      aria-valuenow=${value || 0}><i style=${{ width: `${100 * share(value || 0, scale.most)}%` }}></i></div>
    <div class="ticks" aria-hidden="true">${state.map.tree.flatMap((row) =>
      finite(row.bounds[name] ?? [], scale.most).map((bound) => html`<b class=${row.strategy}
        style=${{ left: `${100 * bound / scale.most}%` }}>${WORDS.strategies[row.strategy].glyph}</b>`))}</div>
  </div>`;
}

const x = (entropy) => LEFT + WIDTH * share(entropy, state.map.scales.entropy.most);
const y = (varentropy) => TOP + HEIGHT * (1 - share(varentropy, state.map.scales.varentropy.most));

/** The region of a place, for a token whose margin allows a fork. */
function regionAt(entropy, varentropy) {
  const within = (value, [low, high] = [null, null]) => (low === null || value > low) && (high === null || value < high);
  return state.map.tree.find(({ bounds }) => within(entropy, bounds.entropy) && within(varentropy, bounds.varentropy)).strategy;
}

/** The names of the regions, each in the middle of its widest line. */
function names() {
  const { entropy, varentropy } = state.map.scales, widest = new Map();
  for (let line = 0; line < LINES; line++) {
    const v = (line + 0.5) / LINES * varentropy.most;
    for (let start = 0, end = 0; start < COLUMNS; start = end) {
      const at = (column) => regionAt((column + 0.5) / COLUMNS * entropy.most, v), strategy = at(start);
      while (end < COLUMNS && at(end) === strategy) end++;
      const known = widest.get(strategy), span = { wide: end - start, lines: [v], h: (start + end) / 2 / COLUMNS * entropy.most };
      if (!known || span.wide > known.wide) widest.set(strategy, span);
      else if (span.wide === known.wide) known.lines.push(v);
    }
  }
  return [...widest].filter(([name, { wide }]) => wide * WIDTH / COLUMNS > 6 * label(name).length).map(([name, { h, lines }]) =>
    html`<text class="name ${name}" text-anchor="middle" x=${x(h)} y=${y(lines[lines.length >> 1]) + 3}>${label(name)}</text>`);
}

let background = null, drawnFor = null;

/** The regions, which change with the settings only: where two overlap, the first decides. */
function regions() {
  if (drawnFor === state.map) return background;
  const { entropy, varentropy } = state.map.scales;
  drawnFor = state.map;
  background = state.map.tree.length ? [...state.map.tree].reverse().map(({ strategy, bounds }) => {
    const [left, right] = bounds.entropy ?? [null, null], [low, high] = bounds.varentropy ?? [null, null];
    const from = x(left ?? 0), to = x(right ?? entropy.most), top = y(high ?? varentropy.most), bottom = y(low ?? 0);
    return html`<rect class="region ${strategy}" x=${from} y=${top} width=${Math.max(0, to - from)} height=${Math.max(0, bottom - top)} />`;
  }).concat(names()) : [];
  return background;
}

export function Plane() {
  const { entropy, varentropy } = state.map.scales;
  if (!entropy) return null;
  const { step, steps } = subject(), bottom = TOP + HEIGHT, pick = (event) => {
    const index = event.target.dataset.i;
    if (index && state.pointed) point(state.pointed.turn, state.pointed.answer, Number(index));
  };
  return html`<svg class="plane" viewBox="0 0 320 206" role="img" onClick=${pick}
    aria-label="Map of entropy (across) and varentropy (up): a dot for each token">
    <rect class="frame" x=${LEFT} y=${TOP} width=${WIDTH} height=${HEIGHT} />
    ${regions()}
    ${steps.map((one, i) => html`<circle class="dot ${one.strategy}" data-i=${i} r="2.4" cx=${x(one.entropy)} cy=${y(one.varentropy)} />`)}
    ${step && html`<path class="cross" d="M${x(step.entropy)} ${TOP}v${HEIGHT}M${LEFT} ${y(step.varentropy)}h${WIDTH}" />
      <circle class="now" r="5.5" cx=${x(step.entropy)} cy=${y(step.varentropy)} />`}
    <text x=${LEFT} y=${bottom + 12}>0</text><text x=${LEFT + WIDTH / 2} y=${bottom + 16} text-anchor="middle">H bits</text>
    <text x=${LEFT + WIDTH} y=${bottom + 12} text-anchor="end">${entropy.most}</text>
    <text x=${LEFT - 4} y=${TOP + 8} text-anchor="end">${varentropy.most}</text>
    <text x=${LEFT - 4} y=${TOP + HEIGHT / 2} text-anchor="end">V</text><text x=${LEFT - 4} y=${bottom} text-anchor="end">0</text>
  </svg>`;
}

/** The tokens of each strategy, which is the legend, too. */
export function Counts() {
  const { steps } = subject(), counted = {};
  for (const { strategy } of steps) counted[strategy] = (counted[strategy] ?? 0) + 1;
  const listed = Object.entries(WORDS.strategies).filter(([name]) =>
    counted[name] || state.map.tree.some((row) => row.strategy === name));
  return html`<ul class="counts" aria-label="Strategies">${listed.map(([name, { glyph, short, deed }]) => html`
    <li class=${name} title=${deed}><b>${glyph} ${name}</b> <span>${short}</span>
      <span class="bar"><i style=${{ width: `${100 * (counted[name] ?? 0) / (steps.length || 1)}%` }}></i></span>
      <span class="number">${counted[name] ?? 0} · ${percent((counted[name] ?? 0) / (steps.length || 1))}</span></li>`)}</ul>`;
}

/** The newest values in one line, where there is no room for gauges; a tap opens them. */
export function Strip({ open }) {
  const { step, steps } = subject(), entropy = state.map.scales.entropy?.most ?? 1, varentropy = state.map.scales.varentropy?.most ?? 1;
  if (!steps.length) return null;
  const [h, v] = ["entropy", "varentropy"].map((name) => step ? step[name] : mean(steps, name));
  return html`<button type="button" class="strip ${step?.strategy ?? "none"}" onClick=${open} aria-label="Gauges and map">
    <span>H ${h.toFixed(2)} bits</span><span class="bar"><i style=${{ width: `${100 * share(h, entropy)}%` }}></i></span>
    <span>V ${v.toFixed(2)} bits²</span><span class="bar"><i style=${{ width: `${100 * share(v, varentropy)}%` }}></i></span>
  </button>`;
}
