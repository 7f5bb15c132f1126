/**
 * Chats, and the browser's storage of them. A chat has turns; a turn has a question and answers, of which it
 * shows that at `at`; an answer has the steps of a trace, and in `how` the fields that thresholds depend on.
 */
const PREFIX = "entropix.chat.";
const TITLE = 60;

export function newChat() {
  const id = crypto.getRandomValues(new Uint32Array(2)).join("-");
  return { id, title: "", changed: Date.now(), turns: [] };
}

/** The text of an answer without the model's reasoning. */
export const textOf = ({ steps }) => steps.filter((step) => !step.reasoning).map((step) => step.text).join("");
export const shownAnswer = (turn) => turn?.answers[turn.at] ?? null;

export function addTurn(chat, question) {
  chat.title ||= question.slice(0, TITLE);
  const turn = { question, answers: [], at: 0 };
  chat.turns.push(turn);
  return turn;
}

/** Add an answer that begins with these steps to a turn, and show it. */
export function addAnswer(turn, steps = []) {
  const answer = { steps, totals: null, problem: null, how: {} };
  turn.at = turn.answers.push(answer) - 1;
  return answer;
}

/** Return a stored chat; null if there is none, or it is damaged. */
export function loadChat(id) {
  try {
    const chat = JSON.parse(localStorage.getItem(PREFIX + id));
    return chat.turns.every(shownAnswer) ? chat : null;
  } catch {
    return null;
  }
}

/** The stored chats, the newest first. */
export function listChats() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
  const chats = keys.map((key) => loadChat(key.slice(PREFIX.length))).filter(Boolean);
  return chats.sort((one, other) => other.changed - one.changed);
}

export const removeChat = (id) => localStorage.removeItem(PREFIX + id);

/** Store a chat, in place of the oldest others if it needs their room; return whether it fitted. */
export function saveChat(chat) {
  chat.changed = Date.now();
  const text = JSON.stringify(chat, (key, value) => (key === "problem" ? null : value));
  const others = listChats().filter((other) => other.id !== chat.id);
  for (; ;) {
    try {
      localStorage.setItem(PREFIX + chat.id, text);
      return true;
    } catch {
      if (!others.length) return false;
      removeChat(others.pop().id);
    }
  }
}
