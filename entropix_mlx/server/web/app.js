/** The page: a chat with the list of chats, or a recorded answer; beside it the selected token. */
import { ask, describe, keep, leave, open, remove, showRecorded, stop } from "./actions.js";
import { Answer } from "./answer.js";
import * as chats from "./chats.js";
import { Gauges, Legend, Plane } from "./gauges.js";
import { Icon, Problem, html } from "./html.js";
import { Conditions, Inspector } from "./inspector.js";
import { Settings } from "./settings.js";
import { RECORDED, WORDS, card, current, drawWith, set, state } from "./state.js";
import { render, useLayoutEffect, useRef } from "./vendor.js";

/** Within this many pixels of its end, a chat follows new tokens. */
const FOLLOWS = 90;
const field = () => document.querySelector("textarea");

function Header() {
  const toggle = () => set({ chatsOpen: !state.chatsOpen });
  return html`<header>
    ${!RECORDED && html`<${Icon} glyph="☰" name="Chats" aria-expanded=${state.chatsOpen} onClick=${toggle} />`}
    <h1>${card()?.id ?? "entropix"}</h1>
    ${!RECORDED && html`<${Icon} glyph="⚙" name="Settings" onClick=${() => set({ dialog: true })} />`}
  </header>`;
}

function ChatList() {
  const begin = () => { open(chats.newChat()); field().focus(); };
  return html`<nav class=${state.chatsOpen ? "open" : ""} aria-label="Chats">
    <button type="button" onClick=${begin}>+ New chat</button>
    <ul>${state.chats.map((chat) => html`<li>
      <a href=${`#${chat.id}`} aria-current=${chat.id === state.chat.id}>${chat.title}</a>
      <${Icon} glyph="×" name=${`Delete “${chat.title}”`} onClick=${() => remove(chat)} /></li>`)}</ul>
    <p class="faint">Chats are kept in this browser only.</p>
  </nav>`;
}

function Welcome() {
  return html`<section class="welcome"><h2>The colour of each token shows how sure the model is</h2><${Legend} />
    <h2>Ask something</h2>
    ${WORDS.questions.map((text) => html`<button type="button" onClick=${() => ask(text)}>${text}</button>`)}
    <p class="faint">Select a token of the answer to see why it was taken, and to continue with another one.</p></section>`;
}

function Turns() {
  const box = useRef(null), looked = useRef(null), shown = box.current, { turns } = state.chat;
  const follows = shown && shown.scrollHeight - shown.scrollTop - shown.clientHeight < FOLLOWS;
  const asked = state.running && !state.running.answer.steps.length;
  useLayoutEffect(() => {
    if (asked || (follows && !state.pointed)) box.current.scrollTop = box.current.scrollHeight;
    if (looked.current !== state.pointed) box.current.querySelector(".on")?.scrollIntoView({ block: "nearest" });
    looked.current = state.pointed;
  });
  return html`<div class="turns" ref=${box}>
    ${turns.map((turn, number) => html`<div key=${number}><p class="user">${turn.question}</p>
      <${Answer} turn=${turn} answer=${chats.shownAnswer(turn)} /></div>`)}
    ${RECORDED && html`<dl class="facts faint">
      ${RECORDED.facts.map(([name, fact]) => html`<div><dt>${name}</dt><dd>${fact}</dd></div>`)}</dl>`}
    ${turns.length === 0 && html`<${Welcome} />`}</div>`;
}

function Composer() {
  const send = (event) => { event.preventDefault(); if (ask(field().value)) field().value = ""; };
  const key = (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event); };
  return html`<form class="composer" onSubmit=${send}>
    <textarea id="question" rows="2" aria-label="Question" onKeyDown=${key}
      placeholder="Ask something (Shift+Enter: a new line)"></textarea>
    ${state.running ? html`<button type="button" onClick=${stop}>Stop</button>` : html`<button>Send</button>`}
  </form>`;
}

/** The selected token, or the newest one of an answer that is being generated, and its answer. */
function Panel({ answer, pointed }) {
  const step = pointed ? answer.steps[pointed.index] : state.running && answer.steps.at(-1);
  return html`<aside class=${pointed ? "open" : ""} aria-label="Token, gauges and plane">
    ${pointed ? html`<${Inspector} step=${step} />`
      : html`<p class="faint">Select a token to see its alternatives, and why it was taken.</p>`}
    ${step && html`<${Gauges} step=${step} />`}<${Plane} answer=${answer} step=${step} />
    ${pointed && html`<${Conditions} step=${step} />`}<${Legend} steps=${answer.steps} /></aside>`;
}

function Page() {
  const { pointed } = state, answer = pointed?.answer ?? current();
  return html`<${Header} />${!RECORDED && html`<${ChatList} />`}
    <main><${Turns} /><${Problem} problem=${state.problem} again=${describe} />${!RECORDED && html`<${Composer} />`}</main>
    ${answer?.steps.length > 0 && state.map.scales.entropy && html`<${Panel} answer=${answer} pointed=${pointed} />`}
    ${state.dialog && html`<${Settings} />`}`;
}

function drawPage() {
  document.documentElement.classList.toggle("recorded", Boolean(RECORDED));
  document.title = state.chat.title || "entropix";
  render(html`<${Page} />`, document.body);
}

/** Open the chat that the address names. */
function openNamed() {
  const id = location.hash.slice(1), chat = id && id !== state.chat.id && chats.loadChat(id);
  if (chat) open(chat);
}

drawWith(drawPage);
if (RECORDED) {
  showRecorded();
} else {
  set({ chats: chats.listChats() });
  addEventListener("hashchange", openNamed);
  addEventListener("pagehide", () => keep(state.chat));
  describe().then(openNamed);
}
addEventListener("keydown", ({ key }) => { if (key === "Escape" && !state.dialog) state.pointed ? leave() : stop(); });
drawPage();
(field() ?? document.querySelector(".text"))?.focus();
