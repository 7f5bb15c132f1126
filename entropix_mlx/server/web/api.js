/** Requests to the server that this page came from. */

/** What a user can do about a status, where the server's message does not say it. */
const ADVICE = {
  401: "Enter the key that the server was started with.",
  413: "Shorten the question, or begin a new chat.",
  429: "Others are being answered. Try again in a moment.",
  500: "Try again; the server's log says more.",
  503: "The server is shutting down. Start entropix serve again, then try again.",
};
const KEY = "entropix.key";

/** An error with what the user can do about it; the status is 0 where there was no response. */
export const refusal = (message, advice = "", status = 0) => Object.assign(new Error(message), { advice, status });

/** @returns {never} */
function unreachable(error) {
  if (error.name === "AbortError") throw error;
  const advice = "Check that entropix serve is running there, then try again.";
  throw refusal(`The server at ${location.host} does not answer.`, advice);
}

/** @param {string} key kept until the tab is closed */
export const setApiKey = (key) => sessionStorage.setItem(KEY, key);

/** @returns {Record<string, string>} */
function headers() {
  const bytes = new TextEncoder().encode(sessionStorage.getItem(KEY) ?? "");
  const authorization = bytes.length && { Authorization: `Bearer ${String.fromCharCode(...bytes)}` };
  return { "Content-Type": "application/json", ...authorization };
}

/** Send a request: by POST with a body, by GET without. The path is relative to the page. */
export async function request(path, body = undefined, signal = undefined) {
  const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
  const response = await fetch(path, { ...options, signal, headers: headers() }).catch(unreachable);
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  const wait = response.status === 429 && Number(response.headers.get("Retry-After"));
  const full = error?.code === "context_length_exceeded" && "Begin a new chat, or shorten the question.";
  const advice = full || (wait ? `Try again in ${wait} s.` : ADVICE[response.status]);
  throw refusal(error?.message ?? `The server said ${response.status}.`, advice, response.status);
}

/** Yield the events of a stream. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { value, done } = await reader.read().catch(unreachable);
    if (done) return;
    const pieces = (text + value).split("\n\n");
    text = pieces.pop();
    for (const piece of pieces.filter((one) => one.startsWith("data: {"))) {
      const event = JSON.parse(piece.slice(6));
      if (event.error) throw refusal(event.error.message, ADVICE[event.error.status]);
      yield event;
    }
  }
}
