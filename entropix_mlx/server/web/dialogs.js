/** The dialogs: settings and the key. */
import { setApiKey } from "./api.js";
import { describe, describeMap } from "./actions.js";
import { html } from "./html.js";
import { WORDS, card, changeSettings, sampler, set, state } from "./state.js";
import { useLayoutEffect, useRef } from "./vendor.js";

function Dialog({ title, children }) {
  const dialog = useRef(null);
  useLayoutEffect(() => dialog.current.showModal(), []);
  const outside = (event) => event.target === dialog.current && dialog.current.close();
  return html`<dialog ref=${dialog} aria-label=${title} onClose=${() => set({ dialog: "" })} onClick=${outside}>
    <form method="dialog"><h2>${title}</h2>${children}</form></dialog>`;
}

export function Dialogs() {
  const Open = { settings: Settings, key: Key }[state.dialog];
  return Open ? html`<${Open} />` : null;
}

/** A setting with its label; `change` is called when it has changed. */
function Setting({ name, label, options, change, ...rest }) {
  const value = state.settings[name];
  const changed = (event) => { changeSettings({ [name]: event.target.value }); change?.(); };
  return html`<label><span>${label}</span>${options
    ? html`<select name=${name} value=${value} onChange=${changed}>${options.map(([key, said]) =>
        html`<option value=${key} selected=${key === value}>${said}</option>`)}</select>`
    : rest.rows ? html`<textarea name=${name} value=${value} onChange=${changed} ...${rest}></textarea>`
    : html`<input name=${name} value=${value} onChange=${changed} ...${rest} />`}</label>`;
}

function Settings() {
  const { settings, models, model } = state, { help, takes = [] } = WORDS.samplers[sampler()] ?? {};
  const redraw = () => describeMap().catch((problem) => set({ problem, dialog: "" }));
  const samplers = Object.keys(WORDS.samplers).map((name) => [name, name]);
  const profiles = (card().profiles ?? []).map((name) => [name, name]);
  return html`<${Dialog} title="Settings">
    ${models.length > 1 && html`<label><span>model</span><select name="model" value=${model}
      onChange=${(event) => { set({ model: event.target.value }); describe(); }}>
      ${models.map(({ id }) => html`<option value=${id} selected=${id === model}>${id}</option>`)}</select></label>`}
    <fieldset><legend>How to answer</legend>
      <${Setting} name="sampler" label="sampler" options=${[["", `the server's (${card().sampler ?? ""})`], ...samplers]} change=${redraw} />
      <p class="faint">${help}</p>
      <${Setting} name="profile" label="profile" options=${[["", "the server's"], ...profiles]} change=${redraw} />
      ${takes.includes("temperature") && html`<${Setting} name="temperature" label="temperature" inputmode="decimal" placeholder="the profile's" />`}
      <${Setting} name="seed" label="seed" inputmode="numeric" placeholder="a new one each time" />
      <${Setting} name="tokens" label="tokens at most" inputmode="numeric" placeholder="the server's" />
      <${Setting} name="forks" label="forks" options=${[["", "as the profile says"], ["on", "on"], ["off", "off"]]} change=${redraw} />
      <${Setting} name="thoughts" label="thoughts" options=${[["", "as the profile says"], ["off", "off"]]} change=${redraw} />
      <${Setting} name="system" label="system prompt" rows="2" />
    </fieldset>
    <fieldset><legend>How it looks</legend>
      <${Setting} name="colours" label="colours" options=${[["strategy", "strategy of the sampler"], ["surprise", "surprise, −log2 p"], ["none", "none"]]} />
      <${Setting} name="theme" label="theme" options=${[["", "as the system"], ["light", "light"], ["dark", "dark"]]} />
      <label class="check"><input type="checkbox" name="markdown" checked=${settings.markdown}
        onChange=${(event) => changeSettings({ markdown: event.target.checked })} /> <span>Markdown (otherwise every token as it is)</span></label>
    </fieldset>
    <menu><button type="button" onClick=${() => set({ dialog: "key" })}>API key …</button><button>Done</button></menu>
  <//>`;
}

function Key() {
  const field = useRef(null);
  const take = () => { setApiKey(field.current.value); describe(); };
  return html`<${Dialog} title="API key">
    <p>This server asks for the key that it was started with (--api-key-file). It is kept until this tab is closed.</p>
    <label><span>API key</span><input ref=${field} name="key" type="password" autocomplete="off" /></label>
    <menu><button onClick=${take}>Use this key</button></menu>
  <//>`;
}
