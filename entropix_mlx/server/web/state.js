/** What the page shows, and how it is drawn again when that changes. */
import { newChat } from "./chats.js";

/** The words that the page shares with the terminal UI. */
export const WORDS = JSON.parse(document.getElementById("vocabulary").textContent);

/** The answer that this page was written with, without a server; null on a server's page. */
export const RECORDED = JSON.parse(document.getElementById("recorded")?.textContent ?? "null");

const SETTINGS = "entropix.settings";
const DEFAULTS = {
  sampler: "", profile: "", temperature: "", seed: "", tokens: "512", forks: "", thoughts: "",
  system: "", colours: "strategy", markdown: true, theme: "",
};

function readSettings() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(SETTINGS)) };
  } catch {
    return { ...DEFAULTS };
  }
}

export const state = {
  /** What the server says of its models. @type {any[]} */
  models: [],
  model: "",
  settings: readSettings(),
  /** The regions of H and V and the scales of the gauges, by the settings. @type {any} */
  map: { tree: [], scales: {} },
  chat: newChat(),
  /** Of the answer that is being generated. @type {AbortController | null} */
  running: null,
  /** The answer that grows or grew last. @type {import("./chats.js").Answer | null} */
  current: null,
  /** The token that is looked at. @type {{answer: any, index: number, turn: any} | null} */
  pointed: null,
  /** Why that token was decided as it was. @type {any} */
  why: null,
  /** The dialog that is open. */
  dialog: "",
  /** What the server could not do when nothing was asked. @type {any} */
  problem: null,
  /** Whether the list of chats is open on a narrow screen. */
  chatsOpen: false,
};

/** What the server says of the model that is asked. */
export const card = () => state.models.find((model) => model.id === state.model)?.entropix ?? {};
export const sampler = () => state.settings.sampler || card().sampler;

let render = () => {}, waiting = false;
/** @param {() => void} how to draw the page */
export const drawWith = (how) => { render = how; };

/** Draw the page, once for all changes of a moment. */
export function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; render(); });
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
