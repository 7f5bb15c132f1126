/** What a user can do: ask, continue from another token, look at one, keep and open chats. */
import { Refusal, events, request } from "./api.js";
import * as chats from "./chats.js";
import { RECORDED, WORDS, card, draw, sampler, set, state } from "./state.js";

const ALTERNATIVES = 8;

/** Learn what is served, and how the settings divide H and V; what goes wrong is shown. */
export async function describe() {
  if (RECORDED) return showRecorded();
  try {
    set({ problem: null });
    await listModels();
    await describeMap();
    if (!card().loaded) await listModels();  // which it is now, and says more
  } catch (problem) {
    set(problem.status === 401 ? { problem, dialog: "key" } : { problem });
  }
}

/** Show the answer that this page was written with. */
function showRecorded() {
  const { model, map, messages, steps, totals } = RECORDED;
  const answer = { ...chats.newAnswer(steps.map((step) => ({ top_logprobs: [], ...step }))), totals };
  const question = messages.findLast((message) => message.role === "user")?.content ?? "";
  set({ model, map, current: answer, chat: { ...chats.newChat(), title: model, turns: [{ question, answers: [answer], at: 0 }] } });
}

async function listModels() {
  const { data } = await (await request("v1/models")).json();
  const known = data.some((model) => model.id === state.model);
  set({ models: data, model: known ? state.model : (data.find((model) => model.entropix.loaded) ?? data[0]).id });
}

/** The fields of a request that thresholds depend on. */
function decisive() {
  const { profile, forks, thoughts } = state.settings, chosen = state.settings.sampler;
  return {
    ...(chosen && { sampler: chosen }), ...(profile && { profile }),
    ...(forks && { branch: forks === "on" }), ...(thoughts && { think: false }),
  };
}

/**
 * Show the regions of H and V of the settings, or of an answer that was asked for with others.
 * @param {object} how
 */
export async function describeMap(how = decisive()) {
  set({ map: await explain(how) });
}

async function explain(fields) {
  if (RECORDED) return { ...RECORDED.map, step: RECORDED.why[fields.step.index] };
  return (await request("v1/explain", { model: state.model, ...fields })).json();
}

function body(turn, answer, forced) {
  const { settings } = state, { turns } = state.chat, asked = [];
  if (settings.system.trim()) asked.push({ role: "system", content: settings.system });
  for (const before of turns.slice(0, turns.indexOf(turn))) {
    asked.push({ role: "user", content: before.question }, { role: "assistant", content: chats.shownAnswer(before).text });
  }
  /** What is no number is sent as it is: the server says what it must be. */
  const number = (name, text, more = 0) => text.trim() ? { [name]: Number.isFinite(Number(text)) ? Number(text) + more : text } : {};
  const heated = WORDS.samplers[sampler()]?.takes.includes("temperature");
  const again = turn.answers.length - 1;  // another answer by the same seed would be the same
  return {
    model: state.model, messages: [...asked, { role: "user", content: turn.question }],
    stream: true, stream_options: { include_usage: true }, logprobs: true, top_logprobs: ALTERNATIVES,
    ...answer.how, ...number("max_tokens", settings.tokens),
    ...(heated && number("temperature", settings.temperature)), ...number("seed", settings.seed, again),
    ...(answer.steps.length && { prefix: answer.steps.map((step) => step.token) }), ...(forced.length && { forced }),
  };
}

/** Generate an answer, from its steps on, with some tokens that come next. */
async function generate(turn, answer, forced = []) {
  const running = new AbortController(), { chat } = state;
  answer.problem = answer.totals = null;
  set({ running, current: answer, pointed: null, why: null, problem: null });
  try {
    answer.how = decisive();
    describeMap().catch(() => {});  // whatever is wrong, the answer's own request says it
    const response = await request("v1/chat/completions", body(turn, answer, forced), running.signal);
    for await (const event of events(response)) take(answer, event);
  } catch (error) {
    answer.problem = error.name === "AbortError" ? { message: "stopped" } : error;
    if (error.status === 401) set({ dialog: "key" });
  }
  if (state.running === running) set({ running: null });
  keep(chat);
}

function take(answer, { choices: [choice], usage }) {
  if (usage) Object.assign(answer.totals ?? {}, { usage });
  if (!choice?.entropix) return;
  if (choice.finish_reason) answer.totals = { ...choice.entropix, finish_reason: choice.finish_reason };
  else {
    const reasoning = Boolean(choice.delta.reasoning_content);
    answer.steps.push({ ...choice.entropix, reasoning, index: answer.steps.length });
    if (!reasoning) answer.text += choice.entropix.text;
  }
  draw();
}

export function ask(question) {
  if (!question.trim() || state.running) return false;
  const turn = chats.ask(state.chat, question.trim());
  generate(turn, turn.answers[0]);
  return true;
}

export function regenerate(turn) {
  if (!state.running) generate(turn, chats.answerAgain(turn));
}

/** Ask again what went wrong; what has come of the answer is kept. */
export function retry(turn, answer) {
  if (!state.running) generate(turn, answer);
}

/** Continue a copy of an answer from a place, with other tokens there; the old one is kept. */
export function continueFrom(turn, answer, index, tokens) {
  if (state.running || RECORDED) return;
  generate(turn, chats.answerAgain(turn, answer.steps.slice(0, index)), tokens);
}

/** Show another answer to a turn's question. */
export function show(turn, at) {
  turn.at = at;
  set({ pointed: null, why: null, current: chats.shownAnswer(state.chat.turns.at(-1)) });
  keep();
}

/** Look at a token. */
export async function point(turn, answer, index) {
  if (!answer?.steps.length) return set({ pointed: null, why: null });
  const at = Math.max(0, Math.min(index, answer.steps.length - 1)), pointed = { turn, answer, index: at };
  set({ pointed, why: null });
  const found = await explain({ ...answer.how, step: answer.steps[at] }).catch((problem) => ({ ...state.map, step: { problem } }));
  if (state.pointed === pointed) set({ map: found, why: found.step });
}

/** Store the chat that is shown. */
export function keep(chat = state.chat) {
  if (RECORDED) return;
  const message = chats.saveChat(chat);
  if (message) set({ problem: new Refusal(message, "") });
  if (chat === state.chat && chat.turns.length) history.replaceState(null, "", `#${chat.id}`);
}

export function remove(id) {
  chats.removeChat(id);
  if (id !== state.chat.id) return draw();
  state.chat.removed = true;
  open(chats.newChat());
}

export function open(chat) {
  state.running?.abort();
  const current = chats.shownAnswer(chat.turns.at(-1));
  set({ chat, current, pointed: null, why: null, chatsOpen: false });
  describeMap(current?.how).catch(() => {});
  history.replaceState(null, "", chat.turns.length ? `#${chat.id}` : " ");
}
