/** What a user can do: ask, stop, continue with another token, select a token, open and delete chats. */
import { events, refusal, request } from "./api.js";
import * as chats from "./chats.js";
import { RECORDED, WORDS, current, draw, sampler, set, state } from "./state.js";

const ALTERNATIVES = 8;

/** Learn which models the server has, and the thresholds of the settings. */
export async function describe() {
  try {
    set({ problem: null });
    await describeMap(); // which loads the model
    const { data: models } = await (await request("v1/models")).json();
    set({ models });
  } catch (problem) {
    set({ problem, dialog: problem.status === 401 });
  }
}

/** Show the answer in this file. */
export function showRecorded() {
  const { model, map, question, steps, totals } = RECORDED, { chat } = state;
  const turn = chats.addTurn(chat, question), answer = chats.addAnswer(turn, steps.map((step) => ({ top_logprobs: [], ...step })));
  answer.totals = totals;
  chat.title = model;
  set({ map, models: [{ id: model }] });
}

/** The settings with these names that are not empty, as fields of a request. */
function chosen(...names) {
  const value = (text) => ({ true: true, false: false })[text] ?? (Number.isFinite(Number(text)) ? Number(text) : text);
  const given = names.filter((name) => state.settings[name].trim());
  return Object.fromEntries(given.map((name) => [name, value(state.settings[name])]));
}

/** The thresholds of the settings in these fields; with a step, also why it was decided so. */
const explain = async (fields) => (await request("v1/explain", { ...chosen("model"), ...fields })).json();

const decisive = () => chosen("sampler", "profile", "branch", "think");

/** Show the thresholds of an answer's settings, or of those for the next one. */
export async function describeMap(how = decisive()) {
  set({ map: await explain(how) });
}

function conversation(turn) {
  const { system } = state.settings, { turns } = state.chat;
  const before = turns.slice(0, turns.indexOf(turn)).flatMap((earlier) => [
    { role: "user", content: earlier.question },
    { role: "assistant", content: chats.textOf(chats.shownAnswer(earlier)) },
  ]);
  const first = system.trim() ? [{ role: "system", content: system }] : [];
  return [...first, ...before, { role: "user", content: turn.question }];
}

function body(turn, answer, forced) {
  const heated = WORDS.samplers[sampler()]?.takes.includes("temperature"), { seed } = chosen("seed");
  return {
    ...chosen("model", "max_tokens", ...(heated ? ["temperature"] : [])), messages: conversation(turn),
    stream: true, stream_options: { include_usage: true }, logprobs: true, top_logprobs: ALTERNATIVES,
    ...answer.how, ...(seed !== undefined && { seed: seed + turn.at }), // the same seed would give the same answer again
    ...(answer.steps.length && { prefix: answer.steps.map((step) => step.token) }),
    ...(forced.length && { forced }),
  };
}

/** Generate the rest of an answer, which begins with the forced tokens. */
export async function generate(turn, answer, forced = []) {
  const running = { answer, abort: new AbortController() }, { chat } = state;
  Object.assign(answer, { problem: null, totals: null, how: decisive() });
  set({ running, pointed: null, why: null, problem: null });
  try {
    describeMap().catch(() => {}); // the answer's own request reports what is wrong
    const response = await request("v1/chat/completions", body(turn, answer, forced), running.abort.signal);
    for await (const event of events(response)) take(answer, event);
  } catch (error) {
    answer.problem = error.name === "AbortError" ? { message: "stopped" } : error;
    if (error.status === 401) set({ dialog: true, problem: error });
  }
  if (state.running === running) set({ running: null });
  keep(chat);
}

function take(answer, { choices: [choice], usage }) {
  if (usage) Object.assign(answer.totals ?? {}, { usage });
  if (!choice?.entropix) return;
  if (choice.finish_reason) {
    answer.totals = { ...choice.entropix, finish_reason: choice.finish_reason };
  } else {
    const reasoning = Boolean(choice.delta.reasoning_content);
    answer.steps.push({ ...choice.entropix, reasoning, index: answer.steps.length });
  }
  draw();
}

/** Send a question, and return whether it was sent. */
export function ask(question) {
  if (!question.trim() || state.running) return false;
  const turn = chats.addTurn(state.chat, question.trim());
  generate(turn, chats.addAnswer(turn));
  return true;
}

export const stop = () => state.running?.abort.abort();

/** Continue a copy of the answer from the selected token, with other tokens in its place. */
export function continueWith(tokens) {
  const { turn, answer, index } = state.pointed;
  generate(turn, chats.addAnswer(turn, answer.steps.slice(0, index)), tokens);
}

/** Show another answer to a turn's question. */
export function show(turn, at) {
  turn.at = at;
  leave();
  keep(state.chat);
}

/** Select a token. */
export async function point(turn, answer, index) {
  const at = Math.max(0, Math.min(index, answer.steps.length - 1));
  const pointed = { turn, answer, index: at };
  if (RECORDED) return set({ pointed, why: RECORDED.why[at] });
  set({ pointed, why: null });
  const failed = (problem) => ({ ...state.map, step: { problem } });
  const told = await explain({ ...answer.how, step: answer.steps[at] }).catch(failed);
  if (state.pointed === pointed) set({ map: told, why: told.step });
}

export const leave = () => set({ pointed: null, why: null });

/** Store a chat that has begun and was not deleted meanwhile. */
export function keep(chat) {
  if (RECORDED || !chat.turns.length) return;
  if (!chats.saveChat(chat)) set({ problem: refusal("This chat is too long to be kept in the browser.") });
  set({ chats: chats.listChats() });
  if (chat === state.chat) history.replaceState(null, "", `#${chat.id}`);
}

export function remove(chat) {
  if (chat.id === state.chat.id) {
    state.chat.turns = [];
    open(chats.newChat());
  }
  chats.removeChat(chat.id);
  set({ chats: chats.listChats() });
}

export function open(chat) {
  stop();
  set({ chat, pointed: null, why: null, chatsOpen: false });
  describeMap(current()?.how).catch(() => {});
  history.replaceState(null, "", chat.turns.length ? `#${chat.id}` : " ");
}
