/**
 * Chats, and the browser's storage of them. `at` says which answer of a turn is shown.
 *
 * @typedef {{question: string, answers: Answer[], at: number}} Turn
 * @typedef {{steps: any[], text: string, totals: any, problem: any, how: object}} Answer
 * @typedef {{id: string, title: string, changed: number, turns: Turn[], removed?: boolean}} Chat
 */

const PREFIX = "entropix.chat.";
/** Characters of all chats: browsers grant about five million. */
const MOST_STORED = 4_000_000;
const TITLE = 60;

/** @returns {Chat} */
export const newChat = () => ({
  id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", changed: Date.now(), turns: [],
});

/**
 * @param {any[]} steps with which it begins
 * @returns {Answer} `how` are the fields of the request that thresholds depend on
 */
export const newAnswer = (steps = []) => ({ steps, text: textOf(steps), totals: null, problem: null, how: {} });

/** The text that the next question is asked after: what the model only thought is left out. */
export const textOf = (steps) => steps.filter((step) => !step.reasoning).map((step) => step.text).join("");

export const shownAnswer = (turn) => turn?.answers[turn.at] ?? null;

export function ask(chat, question) {
  const turn = { question, answers: [newAnswer()], at: 0 };
  chat.turns.push(turn);
  chat.title ||= question.slice(0, TITLE);
  return turn;
}

/** Give a turn another answer, which begins with some steps of another one. */
export function answerAgain(turn, steps = []) {
  const answer = newAnswer([...steps]);
  turn.at = turn.answers.push(answer) - 1;
  return answer;
}

const stored = (chat) => JSON.stringify(chat, (key, value) =>
  key === "problem" ? null : typeof value === "number" ? Number(value.toPrecision(7)) : value);

/** @returns {{id: string, title: string, changed: number, size: number}[]} the newest first */
export function listChats() {
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
    const chat = JSON.parse(localStorage.getItem(PREFIX + id));
    return chat.turns.every(shownAnswer) ? chat : null;
  } catch {
    return null;
  }
}

export const removeChat = (id) => localStorage.removeItem(PREFIX + id);

/**
 * Store a chat; the oldest others make room.
 * @returns {string} why it could not be stored; empty if it was
 */
export function saveChat(chat) {
  if (!chat.turns.length || chat.removed) return "";
  const text = stored(Object.assign(chat, { changed: Math.round(Date.now() / 1000) }));
  const others = listChats().filter((other) => other.id !== chat.id);
  let room = MOST_STORED - text.length - others.reduce((sum, other) => sum + other.size, 0);
  for (; ;) {
    try {
      if (room < 0) throw new Error("too long");
      localStorage.setItem(PREFIX + chat.id, text);
      return "";
    } catch {
      const oldest = others.pop();
      if (!oldest) return "This chat has become too long to be kept in the browser.";
      removeChat(oldest.id);
      room += oldest.size;
    }
  }
}
