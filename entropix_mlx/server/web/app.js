/** The page: a chat, the list of chats, and the gauges beside it. */
import { ask, describe, keep, open, point, remove, show, unwatch, watch } from "./actions.js";
import { Answer, Versions } from "./answer.js";
import * as chats from "./chats.js";
import { Dialogs } from "./dialogs.js";
import { Counts, Gauges, Plane, Strip } from "./gauges.js";
import { Icon, Problem, html } from "./html.js";
import { Inspector, focusText } from "./inspector.js";
import { WORDS, changeSettings, draw, drawWith, set, state } from "./state.js";
import { render, useLayoutEffect, useRef } from "./vendor.js";

/** So near to its end, in pixels, the chat follows what is added to it. */
const FOLLOWS = 90;
const DARK = matchMedia("(prefers-color-scheme: dark)");

function Header() {
  return html`<header>
    <${Icon} glyph="☰" name="Chats" class="icon narrow" aria-expanded=${state.chatsOpen} onClick=${() => set({ chatsOpen: !state.chatsOpen })} />
    <h1>${state.model || "entropix"}</h1>
    <${Icon} glyph="⚙" name="Settings" onClick=${() => set({ dialog: "settings" })} />
  </header>`;
}

function Exports() {
  const { chat } = state, named = chat.title.replace(/[^\p{L}\p{N}]+/gu, "-"), empty = !chat.root.follow.length;
  const button = (ending, kind, write, name) => html`<button type="button" title=${name} disabled=${empty}
    onClick=${() => chats.download(`${named}.${ending}`, kind, write(chat))}>${ending}</button>`;
  return html`<p class="exports faint">Export ${button("md", "text/markdown", chats.asMarkdown, "what is shown, as Markdown")}
    ${button("json", "application/json", JSON.stringify, "everything, with every token, as JSON")}</p>`;
}

function ChatList() {
  const listed = chats.listChats(), monitored = state.models.some((model) => model.entropix.monitor);
  return html`<nav class=${state.chatsOpen ? "open" : ""} aria-label="Chats">
    <button type="button" onClick=${() => { open(chats.newChat()); focusField(); }}>+ New chat</button>
    ${monitored && html`<button type="button" aria-pressed=${Boolean(state.watched)}
      onClick=${() => state.watched ? (unwatch(), draw()) : watch()}>Watch other clients</button>`}
    <ul>${listed.map(({ id, title }) => html`<li><a href=${`#${id}`} aria-current=${id === state.chat.id}>${title}</a>
      <${Icon} glyph="×" name=${`Delete “${title}”`} onClick=${() => remove(id)} /></li>`)}</ul>
    <${Exports} /><p class="faint">Chats are kept in this browser only.</p>
  </nav>`;
}

function Welcome() {
  const [title, decides] = WORDS.introduction, rows = state.map.tree.map((row) => row.strategy);
  return html`<section class="welcome"><h2>${title}</h2><p>${decides}</p>
    <dl>${rows.map((name) => {
      const { glyph, state: model, deed } = WORDS.strategies[name];
      return html`<div class=${name}><dt><b>${glyph} ${name}</b></dt><dd>${model}: ${deed}</dd></div>`;
    })}</dl>
    <h2>Ask something</h2>
    ${WORDS.questions.map((question) => html`<button type="button" class="question" onClick=${() => ask(question)}>${question}</button>`)}
    <p class="faint">${WORDS.letters}</p></section>`;
}

function Turn({ turn }) {
  const { place, number } = chats.placeOf(state.chat, turn), edit = () => { set({ edited: turn }); focusField(turn.question); };
  return html`<div class="turn"><div class="asked"><p class="user">${turn.question}</p>
      <${Versions} name="question" shown=${number} many=${place.follow.length} take=${(at) => show(place, at)} />
      <${Icon} glyph="✎" name="Edit the question" disabled=${Boolean(state.running)} onClick=${edit} /></div>
    <${Answer} turn=${turn} answer=${turn.answers[turn.at]} /></div>`;
}

function Turns() {
  const box = useRef(null), follow = box.current && box.current.scrollHeight - box.current.scrollTop - box.current.clientHeight < FOLLOWS;
  const looked = useRef(null), begun = state.running && !state.current?.steps.length;
  useLayoutEffect(() => { if (begun || (follow && !state.pointed)) box.current.scrollTop = box.current.scrollHeight; });
  useLayoutEffect(() => {
    if (looked.current !== state.pointed) document.querySelector(".token.on")?.scrollIntoView({ block: "nearest" });
    looked.current = state.pointed;
  });
  const turns = chats.path(state.chat);
  return html`<div class="turns" ref=${box}>${state.watched
    ? html`<p class="faint" role="status">Answers of other clients appear here.</p>${[...state.watched.values()].map(({ title, answer }) =>
        html`<${Answer} answer=${answer} title=${title} />`)}`
    : turns.length ? turns.map((turn, number) => html`<${Turn} key=${number} turn=${turn} />`) : html`<${Welcome} />`}</div>`;
}

/** The field for questions, which is the first of the page. */
const field = () => document.querySelector("textarea");
function focusField(text) {
  if (text !== undefined) field().value = text;
  field().focus();
}

function Composer() {
  const send = (event) => { event.preventDefault(); if (ask(field().value)) field().value = ""; };
  const key = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
    if (event.key === "Escape" && state.edited) { set({ edited: null }); field().value = ""; }
  };
  return html`<form class="composer" onSubmit=${send}>
    ${state.edited && html`<p class="faint" role="status">Edits the question; the old one is kept. Escape leaves it as it is.</p>`}
    <textarea id="question" rows="2" aria-label="Question" placeholder="Ask something (Shift+Enter: a new line)" onKeyDown=${key}></textarea>
    ${state.running ? html`<button type="button" onClick=${stop}>Stop</button>` : html`<button>Send</button>`}
  </form>`;
}

const stop = () => state.watched ? unwatch() : state.running?.abort();
const openGauges = () => { const answer = state.current; point(chats.path(state.chat).at(-1), answer, answer.steps.length - 1); };
const close = () => { focusText(); set({ pointed: null, why: null }); };

function Page() {
  return html`<${Header} /><${ChatList} />
    <main><${Turns} /><${Problem} problem=${state.problem} again=${describe} />
      ${!state.pointed && html`<div class="narrow"><${Strip} open=${openGauges} /></div>`}<${Composer} /></main>
    <aside class=${state.pointed ? "open" : ""} aria-label="Token, gauges and map">
      <div class="narrow sheet"><${Strip} /><${Icon} glyph="×" name="Close" onClick=${close} /></div>
      <${Inspector} /><div><${Gauges} /><${Plane} />${!state.pointed && html`<${Counts} />`}</div></aside>
    <${Dialogs} />`;
}

function drawPage() {
  document.documentElement.dataset.theme = state.settings.theme || (DARK.matches ? "dark" : "light");
  document.title = state.chat.title || "entropix";
  render(html`<${Page} />`, document.body);
}

/** Open the chat that the address names. */
function openNamed() {
  const chat = location.hash && location.hash.slice(1) !== state.chat.id && chats.loadChat(location.hash.slice(1));
  if (chat) open(chat);
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !state.dialog) state.pointed ? close() : stop();
});
addEventListener("hashchange", openNamed);
addEventListener("pagehide", () => keep());
addEventListener("storage", draw);
DARK.addEventListener("change", draw);
drawWith(drawPage);
drawPage();
describe().then(openNamed);
focusField();
