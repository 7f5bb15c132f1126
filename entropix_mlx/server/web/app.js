/** The page: a chat or a recorded answer, the list of chats, and the gauges beside it. */
import { ask, describe, keep, open, point, remove } from "./actions.js";
import { Answer } from "./answer.js";
import * as chats from "./chats.js";
import { Dialogs } from "./dialogs.js";
import { Counts, Gauges, Plane, Strip } from "./gauges.js";
import { Icon, Problem, html } from "./html.js";
import { Inspector, focusText } from "./inspector.js";
import { RECORDED, WORDS, draw, drawWith, set, state } from "./state.js";
import { render, useLayoutEffect, useRef } from "./vendor.js";

/** So near to its end, in pixels, the chat follows what is added to it. */
const FOLLOWS = 90;
const DARK = matchMedia("(prefers-color-scheme: dark)");

function Header() {
  return html`<header>
    ${!RECORDED && html`<${Icon} glyph="☰" name="Chats" class="icon narrow" aria-expanded=${state.chatsOpen} onClick=${() => set({ chatsOpen: !state.chatsOpen })} />`}
    <h1>${state.model || "entropix"}</h1>
    ${!RECORDED && html`<${Icon} glyph="⚙" name="Settings" onClick=${() => set({ dialog: "settings" })} />`}
  </header>`;
}

function ChatList() {
  return html`<nav class=${state.chatsOpen ? "open" : ""} aria-label="Chats">
    <button type="button" onClick=${() => { open(chats.newChat()); field()?.focus(); }}>+ New chat</button>
    <ul>${chats.listChats().map(({ id, title }) => html`<li><a href=${`#${id}`} aria-current=${id === state.chat.id}>${title}</a>
      <${Icon} glyph="×" name=${`Delete “${title}”`} onClick=${() => remove(id)} /></li>`)}</ul>
    <p class="faint">Chats are kept in this browser only.</p>
  </nav>`;
}

/** What is known of a recording beside its answer. */
function Facts() {
  const before = RECORDED.messages.filter(({ content }) => content !== state.chat.turns[0].question);
  const facts = [...before.map(({ role, content }) => [role, content]), ...Object.entries(RECORDED.facts)];
  return html`<dl class="facts faint">${facts.map(([name, said]) => html`<div><dt>${name}</dt><dd>${said}</dd></div>`)}</dl>`;
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

function Turns() {
  const box = useRef(null), follow = box.current && box.current.scrollHeight - box.current.scrollTop - box.current.clientHeight < FOLLOWS;
  const looked = useRef(null), begun = state.running && !state.current?.steps.length, { turns } = state.chat;
  useLayoutEffect(() => { if (begun || (follow && !state.pointed)) box.current.scrollTop = box.current.scrollHeight; });
  useLayoutEffect(() => {
    if (looked.current !== state.pointed) document.querySelector(".token.on")?.scrollIntoView({ block: "nearest" });
    looked.current = state.pointed;
  });
  return html`<div class="turns" ref=${box}>
    ${turns.map((turn, number) => html`<div class="turn" key=${number}>${turn.question && html`<p class="user">${turn.question}</p>`}
      <${Answer} turn=${turn} answer=${chats.shownAnswer(turn)} /></div>`)}
    ${turns.length === 0 && html`<${Welcome} />`}${RECORDED && turns.length > 0 && html`<${Facts} />`}</div>`;
}

/** The field for questions, which is the first of the page. */
const field = () => document.querySelector("textarea");

function Composer() {
  const send = (event) => { event.preventDefault(); if (ask(field().value)) field().value = ""; };
  const key = (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event); };
  return html`<form class="composer" onSubmit=${send}>
    <textarea id="question" rows="2" aria-label="Question" placeholder="Ask something (Shift+Enter: a new line)" onKeyDown=${key}></textarea>
    ${state.running ? html`<button type="button" onClick=${stop}>Stop</button>` : html`<button>Send</button>`}
  </form>`;
}

const stop = () => state.running?.abort();
const openGauges = () => { const answer = state.current; point(state.chat.turns.at(-1), answer, answer.steps.length - 1); };
const close = () => { focusText(); set({ pointed: null, why: null }); };

function Page() {
  return html`<${Header} />${!RECORDED && html`<${ChatList} />`}
    <main><${Turns} /><${Problem} problem=${state.problem} again=${describe} />
      ${!state.pointed && html`<div class="narrow"><${Strip} open=${openGauges} /></div>`}${!RECORDED && html`<${Composer} />`}</main>
    <aside class=${state.pointed ? "open" : ""} aria-label="Token, gauges and map">
      <div class="narrow sheet"><${Strip} /><${Icon} glyph="×" name="Close" onClick=${close} /></div>
      <${Inspector} /><div><${Gauges} /><${Plane} />${!state.pointed && html`<${Counts} />`}</div></aside>
    <${Dialogs} />`;
}

function drawPage() {
  document.documentElement.dataset.theme = state.settings.theme || (DARK.matches ? "dark" : "light");
  document.documentElement.classList.toggle("recorded", Boolean(RECORDED));
  document.title = state.chat.title || "entropix";
  render(html`<${Page} />`, document.body);
}

/** Open the chat that the address names. */
function openNamed() {
  const chat = !RECORDED && location.hash && location.hash.slice(1) !== state.chat.id && chats.loadChat(location.hash.slice(1));
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
field()?.focus();
