// What the page takes from npm: small libraries without dependencies of their own.
export { h, render } from "preact";
export { useLayoutEffect, useRef } from "preact/hooks";
export { default as htm } from "htm";
export { parser as markdown, GFM } from "@lezer/markdown";
