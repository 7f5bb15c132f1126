/**
 * Chats as trees, and the browser's storage of them.
 *
 * A question has answers (regenerated, continued from another token), and each of them has the
 * questions that follow it (edited ones). `at` says which of them is shown.
 *
 * @typedef {{follow: Turn[], at: number}} Place
 * @typedef {{question: string, answers: Answer[], at: number}} Turn
 * @typedef {Place & {steps: any[], text: string, totals: any, problem: any, how: object}} Answer
 * @typedef {{id: string, title: string, changed: number, root: Place, removed?: boolean}} Chat
 */

const PREFIX = "entropix.chat.";
/** Characters of all chats: browsers grant about five million. */
const MOST_STORED = 4_000_000;
const TITLE = 60;
/** The fields of a step, in the order in which they are stored. */
const FIELDS = [
  "token", "text", "logprob", "entropy", "varentropy", "margin", "strategy", "origin", "temperature",
  "top_p", "top_k", "min_p", "attention_entropy", "attention_varentropy", "agreement", "head_divergence",
  "interaction_strength", "position_score", "reasoning", "strain", "fork", "rolled_back", "triggered_at",
  "dropped", "source", "finish_reason", "stopped",
];
const DIGITS = 4;

/** @returns {Chat} */
export const newChat = () => ({
  id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", changed: Date.now(),
  root: { follow: [], at: 0 },
});
/**
 * @param {any[]} steps with which it begins
 * @returns {Answer} `how` are the fields of the request that thresholds depend on
 */
export const newAnswer = (steps = []) =>
  ({ steps, text: textOf(steps), totals: null, problem: null, how: {}, follow: [], at: 0 });

/** The text that the next question is asked after: what the model only thought is left out. */
export const textOf = (steps) => steps.filter((step) => !step.reasoning).map((step) => step.text).join("");

/** @returns {Turn[]} the turns that are shown */
export function path({ root }) {
  const found = [];
  for (let place = root; place?.follow.length;) {
    const turn = place.follow[place.at];
    found.push(turn);
    place = turn.answers[turn.at];
  }
  return found;
}

/** @returns {{place: Place, number: number}} where a turn hangs, and which of its versions it is */
export function placeOf(chat, turn) {
  const turns = path(chat), before = turns[turns.indexOf(turn) - 1];
  const place = before ? before.answers[before.at] : chat.root;
  return { place, number: place.follow.indexOf(turn) };
}

/** Ask behind what is shown; or, in place of a turn, another question, which keeps the old one. */
export function ask(chat, question, instead = null) {
  const last = path(chat).at(-1);
  const place = instead ? placeOf(chat, instead).place : last ? last.answers[last.at] : chat.root;
  const turn = { question, answers: [newAnswer()], at: 0 };
  place.at = place.follow.push(turn) - 1;
  chat.title ||= question.slice(0, TITLE);
  return turn;
}

/** Give a turn another answer, which begins with some steps of another one. */
export function answerAgain(turn, steps = []) {
  const answer = newAnswer([...steps]);
  turn.at = turn.answers.push(answer) - 1;
  return answer;
}

const round = (value) => typeof value === "number" ? Number(value.toPrecision(DIGITS + 3)) : value;

function packStep(step) {
  const best = step.top_logprobs.map((one) => [one.token, one.text, Number(one.logprob.toPrecision(DIGITS))]);
  return [...FIELDS.map((name) => round(step[name] ?? null)), best];
}

function unpackStep(values, index) {
  const step = Object.fromEntries(FIELDS.map((name, at) => [name, values[at]]));
  const top_logprobs = values[FIELDS.length].map(([token, text, logprob]) => ({ token, text, logprob }));
  return { ...step, index, text: step.text ?? "", top_logprobs };
}

const stored = (chat) => JSON.stringify(chat, (key, value) =>
  key === "steps" ? value.map(packStep) : key === "problem" ? null : value);
const read = (text) => JSON.parse(text, (key, value) => key === "steps" ? value.map(unpackStep) : value);

let listed = null;
addEventListener("storage", () => { listed = null; });  // another tab

/** @returns {{id: string, title: string, changed: number, size: number}[]} the newest first */
export function listChats() {
  listed ??= readHeads();
  return [...listed];
}

function readHeads() {
  const known = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
  const chats = known.map((key) => {
    const text = localStorage.getItem(key), head = /^{"id":"[^"]*","title":("(?:[^"\\]|\\.)*"),"changed":(\d+)/.exec(text);
    return head && { id: key.slice(PREFIX.length), title: JSON.parse(head[1]), changed: Number(head[2]), size: text.length };
  });
  return chats.filter(Boolean).sort((one, other) => other.changed - one.changed);
}

/** @returns {Chat | null} null where it is gone or damaged */
export function loadChat(id) {
  try {
    const chat = read(localStorage.getItem(PREFIX + id));
    return path(chat) && chat;
  } catch {
    return null;
  }
}

export function removeChat(id) {
  localStorage.removeItem(PREFIX + id);
  listed = null;
}

/**
 * Store a chat; the oldest others make room.
 * @returns {string} why it could not be stored; empty if it was
 */
export function saveChat(chat) {
  if (!chat.root.follow.length || chat.removed) return "";
  const text = stored(Object.assign(chat, { changed: Date.now() }));
  const others = listChats().filter((other) => other.id !== chat.id);
  let room = MOST_STORED - text.length - others.reduce((sum, other) => sum + other.size, 0);
  while (others.length && room < 0) room += drop(others);
  for (; ;) {
    try {
      if (room < 0) throw new Error("too long");
      localStorage.setItem(PREFIX + chat.id, text);
      listed = null;
      return "";
    } catch {
      if (!others.length) return "This chat has become too long to be kept in the browser: export it.";
      drop(others);
    }
  }
}

function drop(others) {
  const oldest = others.pop();
  removeChat(oldest.id);
  return oldest.size;
}

/** @returns {string} what is shown of a chat, for reading */
export function asMarkdown(chat) {
  const told = path(chat).map(({ question, answers, at }) => `**${question}**\n\n${answers[at].text.trim()}\n`);
  return `# ${chat.title}\n\n${told.join("\n")}`;
}

/** @param {string} text */
export function download(name, kind, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
