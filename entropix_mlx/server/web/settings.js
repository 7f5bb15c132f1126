/** The settings. */
import { setApiKey } from "./api.js";
import { describe } from "./actions.js";
import { html } from "./html.js";
import { WORDS, card, changeSettings, sampler, set, state } from "./state.js";
import { useLayoutEffect, useRef } from "./vendor.js";

/** A list of choices; `options` are pairs of a value and its words. */
function Choice({ name, label = name, options }) {
  const value = state.settings[name], changed = ({ target }) => {
    changeSettings({ [name]: target.value });
    describe();
  };
  return html`<label>${label}<select name=${name} value=${value} onChange=${changed}>
    ${options.map(([key, words]) => html`<option value=${key} selected=${key === value}>${words}</option>`)}</select></label>`;
}

function Entry({ name, label = name, element = "input", ...rest }) {
  const changed = ({ target }) => changeSettings({ [name]: target.value });
  return html`<label>${label}<${element} name=${name} value=${state.settings[name]} onChange=${changed} ...${rest} /></label>`;
}

export function Settings() {
  const dialog = useRef(null), key = useRef(null);
  useLayoutEffect(() => dialog.current.showModal(), []);
  const { settings, models, problem } = state, { help, takes = [] } = WORDS.samplers[sampler()] ?? {};
  const server = card()?.entropix ?? {}, named = (names) => names.map((name) => [name, name]);
  const close = () => {
    if (key.current.value) setApiKey(key.current.value);
    set({ dialog: false });
    if (key.current.value || problem) describe();
  };
  return html`<dialog ref=${dialog} aria-label="Settings" onClose=${close}><form method="dialog"><h2>Settings</h2>
    ${models.length > 1 && html`<${Choice} name="model" options=${[["", "the loaded one"], ...named(models.map(({ id }) => id))]} />`}
    <${Choice} name="sampler" options=${[["", `the server's (${server.sampler ?? ""})`], ...named(Object.keys(WORDS.samplers))]} />
    <p class="faint">${help}</p>
    <${Choice} name="profile" options=${[["", "the server's"], ...named(server.profiles ?? [])]} />
    ${takes.includes("temperature") && html`<${Entry} name="temperature" inputmode="decimal" placeholder="the profile's" />`}
    <${Entry} name="seed" inputmode="numeric" placeholder="a new one each time" />
    <${Entry} name="max_tokens" label="tokens at most" inputmode="numeric" placeholder="the server's" />
    <${Choice} name="branch" label="forks" options=${[["", "as the profile says"], ["true", "on"], ["false", "off"]]} />
    <${Choice} name="think" label="thoughts" options=${[["", "as the profile says"], ["false", "off"]]} />
    <${Entry} name="system" label="system prompt" element="textarea" rows="2" />
    <label>Markdown<input type="checkbox" name="markdown" checked=${settings.markdown}
      onChange=${({ target }) => changeSettings({ markdown: target.checked })} /></label>
    <label>API key<input ref=${key} name="key" type="password" autocomplete="off" autofocus=${problem?.status === 401}
      placeholder=${problem?.status === 401 ? "this server asks for one" : "kept until this tab is closed"} /></label>
    <menu><button>Done</button></menu></form></dialog>`;
}
