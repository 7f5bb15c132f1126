/** What a user can do: ask, continue from another token, look at one, keep and open chats. */
import { Refusal, events, request } from "./api.js";
import * as chats from "./chats.js";
import { WORDS, card, draw, sampler, set, state } from "./state.js";

const ALTERNATIVES = 8;
const MOST_WATCHED = 20;
const NOT_JSON = new Refusal("The schema is not JSON.", "Correct it in the settings, or empty the field.");

/** Do something, and show what goes wrong beside the question field. */
async function attempt(action) {
  try {
    set({ problem: null });
    await action();
  } catch (error) {
    if (error.name !== "AbortError") fail(error);
  }
}

function fail(problem) {
  set(problem.status === 401 ? { problem, dialog: "key" } : { problem });
}

/** Learn what is served, and how the settings divide H and V. */
export const describe = () => attempt(async () => {
  await listModels();
  await describeMap();
  if (!card().loaded) await listModels();  // which it is now, and says more
});

async function listModels() {
  const { data } = await (await request("v1/models")).json();
  const known = data.some((model) => model.id === state.model);
  set({ models: data, model: known ? state.model : data[0].id });
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
  return (await request("v1/explain", { model: state.model, ...fields })).json();
}

/** @returns {object | undefined} */
function responseFormat(schema) {
  if (!schema.trim()) return undefined;
  try {
    return { type: "json_schema", json_schema: { name: "form", schema: JSON.parse(schema) } };
  } catch {
    throw NOT_JSON;
  }
}

function body(turn, answer, forced) {
  const { settings } = state, turns = chats.path(state.chat), asked = [];
  if (settings.system.trim()) asked.push({ role: "system", content: settings.system });
  for (const { question, answers, at } of turns.slice(0, turns.indexOf(turn))) {
    asked.push({ role: "user", content: question }, { role: "assistant", content: answers[at].text });
  }
  /** What is no number is sent as it is: the server says what it must be. */
  const number = (name, text, more = 0) => text.trim() ? { [name]: Number.isFinite(Number(text)) ? Number(text) + more : text } : {};
  const heated = WORDS.samplers[sampler()]?.takes.includes("temperature");
  const again = turn.answers.length - 1;  // another answer by the same seed would be the same
  return {
    model: state.model, messages: [...asked, { role: "user", content: turn.question }],
    stream: true, stream_options: { include_usage: true }, logprobs: true, top_logprobs: ALTERNATIVES,
    ...answer.how, ...number("max_tokens", settings.tokens),
    ...(heated && number("temperature", settings.temperature)),
    ...number("seed", settings.seed, again),
    ...(settings.schema.trim() && { response_format: responseFormat(settings.schema) }),
    ...beginning(answer, forced),
  };
}

/** How an answer begins. The fields of a form are those of tokens that are sent, so all are sent again. */
function beginning(answer, forced) {
  const { answers, schema } = state.settings, before = answer.steps.map((step) => step.token);
  if (!before.length && !forced.length) return answers === "1" ? {} : { answers: Number(answers) || answers };
  if (schema.trim()) {
    answer.steps = [];
    return { answers: 1, forced: [...before, ...forced] };
  }
  return { answers: 1, prefix: before, ...(forced.length && { forced }) };
}

/**
 * Generate an answer, from its steps on, with some tokens that come next.
 * @param {object} [more] other fields of the request
 */
async function generate(turn, answer, forced = [], more = {}) {
  const running = new AbortController(), { chat } = state;
  answer.problem = answer.totals = null;
  set({ running, current: answer, pointed: null, why: null, problem: null });
  try {
    answer.how = decisive();
    describeMap().catch(() => {});  // whatever is wrong, the answer's own request says it
    const response = await request("v1/chat/completions", { ...body(turn, answer, forced), ...more }, running.signal);
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
  else addStep(answer, choice.entropix, Boolean(choice.delta.reasoning_content));
  draw();
}

function addStep(answer, step, reasoning = false) {
  answer.steps.push({ ...step, reasoning, index: answer.steps.length });
  if (!reasoning) answer.text += step.text;
}

export function ask(question) {
  if (!question.trim() || state.running) return false;
  unwatch();
  const turn = chats.ask(state.chat, question.trim(), state.edited);
  set({ edited: null });
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
  if (state.running || !turn) return;
  generate(turn, chats.answerAgain(turn, answer.steps.slice(0, index)), tokens);
}

/** Take another one of several answers; it is measured again, since its tokens alone are known. */
export function takeAnswer(turn, tokens) {
  set({ dialog: "" });
  if (!state.running) generate(turn, chats.answerAgain(turn), tokens, { max_tokens: tokens.length });
}

/** Show another version of a turn's answer, or of its question. */
export function show(versions, at) {
  versions.at = at;
  const last = chats.path(state.chat).at(-1);
  set({ pointed: null, why: null, current: last.answers[last.at] });
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
  const message = chats.saveChat(chat);
  if (message) set({ problem: new Refusal(message, "") });
  if (chat === state.chat && chat.root.follow.length) history.replaceState(null, "", `#${chat.id}`);
}

export function remove(id) {
  chats.removeChat(id);
  if (id !== state.chat.id) return draw();
  state.chat.removed = true;
  open(chats.newChat());
}

export function open(chat) {
  state.running?.abort();
  unwatch();
  const last = chats.path(chat).at(-1);
  set({ chat, current: last?.answers[last.at] ?? null, pointed: null, why: null, edited: null, chatsOpen: false });
  describeMap(last?.answers[last.at].how).catch(() => {});
  history.replaceState(null, "", chat.root.follow.length ? `#${chat.id}` : " ");
}

export function unwatch() {
  if (!state.watched) return;
  state.running?.abort();
  set({ watched: null, running: null });
}

/** Show what other clients are answered, until something else is done. */
export const watch = () => attempt(async () => {
  state.running?.abort();
  const running = new AbortController(), watched = new Map();
  set({ running, watched, pointed: null, chatsOpen: false, current: null });
  try {
    for await (const event of events(await request("v1/monitor", undefined, running.signal))) {
      if (!event.step) continue;
      const name = `${event.request} ${event.index}`;
      if (!watched.has(name)) watched.set(name, { title: `…${event.request.slice(-6)}`, answer: chats.newAnswer() });
      if (watched.size > MOST_WATCHED) watched.delete(watched.keys().next().value);
      addStep(state.current = watched.get(name).answer, event.step);
      draw();
    }
  } finally {
    if (state.running === running) set({ running: null });
  }
});
