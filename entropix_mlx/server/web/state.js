/** What the page shows, and how it is drawn again when that changes. */
import { newChat, shownAnswer } from "./chats.js";

const embedded = (id) => JSON.parse(document.getElementById(id)?.textContent ?? "null");
const SETTINGS = "entropix.settings";

/** The words that the page shares with the terminal UI. */
export const WORDS = embedded("vocabulary");
/** The answer that this file holds, which needs no server; null on a server's page. */
export const RECORDED = embedded("recorded");

/** The settings by the names of a request's fields; an empty one is left to the server. */
function readSettings() {
  const none = { model: "", sampler: "", profile: "", temperature: "", seed: "", branch: "", think: "" };
  const defaults = { ...none, max_tokens: "512", system: "", markdown: true };
  try {
    return { ...defaults, ...JSON.parse(localStorage.getItem(SETTINGS)) };
  } catch {
    return defaults;
  }
}

/**
 * `map` has the strategies with their bounds and the scales of the gauges, `running` the answer that is
 * being generated and how to abort it, `pointed` the turn, the answer and the index of the selected token,
 * and `why` the explanation of its decision. `problem` is an error that belongs to no answer.
 * @type {any}
 */
export const state = {
  models: [], settings: readSettings(), map: { tree: [], scales: {} }, problem: null, dialog: false,
  chat: newChat(), chats: [], chatsOpen: false, running: null, pointed: null, why: null,
};

/** What the server says about the selected model, or else about the loaded one. */
export const card = () =>
  state.models.find(({ id, entropix }) => state.settings.model ? id === state.settings.model : entropix?.loaded) ?? state.models[0];
export const sampler = () => state.settings.sampler || card()?.entropix.sampler;
/** The answer that is being generated, or else the last one. */
export const current = () => state.running?.answer ?? shownAnswer(state.chat.turns.at(-1));

let render = () => {}, waiting = false;
export const drawWith = (how) => { render = how; };

/** Draw the page in the next frame, once for all changes until then. */
export function draw() {
  if (!waiting) requestAnimationFrame(() => { waiting = false; render(); });
  waiting = true;
}

export function set(changes) {
  Object.assign(state, changes);
  draw();
}

export function changeSettings(changes) {
  Object.assign(state.settings, changes);
  localStorage.setItem(SETTINGS, JSON.stringify(state.settings));
  draw();
}
