/** Requests to the server that this page came from, and what a user can do about its errors. */

/** What to do about a status, where the server's message does not say it. */
const ADVICE = {
  401: "Enter the key that the server was started with.",
  403: "Open the page by the server's own address, or start it with --allow-origin.",
  413: "Shorten the question, or begin a new chat.",
  429: "Others are being answered. Try again in a moment.",
  500: "Try again; the server's log says more.",
  503: "The server is shutting down. Start entropix serve again, then try again.",
};

/** A request that was refused, or reached nobody. */
export class Refusal extends Error {
  /**
   * @param {string} message
   * @param {string} advice what the user can do
   * @param {number} status 0 where there was no response
   */
  constructor(message, advice, status = 0) {
    super(message);
    this.advice = advice;
    this.status = status;
  }
}

const unreachable = () => new Refusal(
  `The server at ${location.host} does not answer.`,
  "Check that entropix serve is running there, then try again.",
);

export const apiKey = () => sessionStorage.getItem("entropix.key") ?? "";
/** @param {string} key kept until the tab is closed */
export const setApiKey = (key) => sessionStorage.setItem("entropix.key", key);

/** @returns {Record<string, string>} */
function headers() {
  const bytes = String.fromCharCode(...new TextEncoder().encode(apiKey()));  // a header is bytes
  return { "Content-Type": "application/json", ...(bytes && { Authorization: `Bearer ${bytes}` }) };
}

/**
 * @param {string} path relative to the page, which a proxy may serve below a path of its own
 * @param {object} [body] sent by POST; without one it is GET
 * @param {AbortSignal} [signal]
 */
export async function request(path, body, signal) {
  const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
  const response = await fetch(path, { ...options, signal, headers: headers() }).catch((error) => {
    throw error.name === "AbortError" ? error : unreachable();
  });
  if (!response.ok) throw await refusal(response);
  return response;
}

/** @param {Response} response */
async function refusal(response) {
  const { error } = await response.json().catch(() => ({ error: {} }));
  const wait = Number(response.headers.get("Retry-After"));
  const full = error?.code === "context_length_exceeded";
  const advice = full ? "Begin a new chat, or edit an earlier question." : ADVICE[response.status];
  const later = wait && response.status === 429 ? `Try again in ${wait} s.` : advice;
  return new Refusal(error?.message ?? `The server said ${response.status}.`, later ?? "", response.status);
}

/**
 * Yield the events of a stream.
 * @param {Response} response
 * @returns {AsyncGenerator<any>}
 */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { value, done } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : unreachable();
    });
    if (done) return;
    const pieces = (text + value).split("\n\n");
    text = pieces.pop();
    for (const piece of pieces.filter((one) => one.startsWith("data: {"))) {
      const event = JSON.parse(piece.slice(6));
      if (event.error) throw new Refusal(event.error.message, ADVICE[event.error.status] ?? "");
      yield event;
    }
  }
}
