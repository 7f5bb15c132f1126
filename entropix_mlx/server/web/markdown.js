/**
 * An answer's Markdown as elements. No text becomes markup: HTML in it is shown as it is written,
 * links lead to web pages and mail only, and images are links.
 *
 * The parser says where in the text everything stands, so that each token stays a token.
 */
import { GFM, h, markdown } from "./vendor.js";

const parser = markdown.configure([GFM, { remove: ["HTMLBlock", "HTMLTag"] }]);

const TAGS = {
  Paragraph: "p", Blockquote: "blockquote", BulletList: "ul", OrderedList: "ol", ListItem: "li",
  Emphasis: "em", StrongEmphasis: "strong", Strikethrough: "s", InlineCode: "code", Task: "p",
  ATXHeading1: "h3", ATXHeading2: "h4", ATXHeading3: "h5", ATXHeading4: "h6", ATXHeading5: "h6",
  ATXHeading6: "h6", SetextHeading1: "h3", SetextHeading2: "h4", CodeBlock: "pre", FencedCode: "pre",
  TableHeader: "tr", TableRow: "tr", TableCell: "td",
};
/** What separates their parts is no text. */
const BLOCKS = new Set([
  "Document", "Blockquote", "BulletList", "OrderedList", "ListItem", "Table", "TableHeader", "TableRow", "FencedCode",
]);
const HIDDEN = new Set([
  "HeaderMark", "EmphasisMark", "CodeMark", "CodeInfo", "LinkMark", "LinkTitle", "LinkLabel", "ListMark",
  "QuoteMark", "StrikethroughMark", "TableDelimiter",
]);
const SAFE = /^(https?:\/\/|mailto:)/i;

/**
 * @param {string} text
 * @param {(from: number, to: number) => any} leaf makes what stands for a piece of the text
 */
export function renderMarkdown(text, leaf) {
  return parts(parser.parse(text).topNode, text, leaf);
}

function parts(node, text, leaf) {
  const found = [], between = !BLOCKS.has(node.name);
  let at = node.from;
  for (let child = node.firstChild; child; child = child.nextSibling) {
    if (between && child.from > at) found.push(leaf(at, child.from));
    found.push(element(child, text, leaf));
    at = child.to;
  }
  if (between && at < node.to) found.push(leaf(at, node.to));
  return found;
}

function element(node, text, leaf) {
  const { name, from, to } = node;
  if (HIDDEN.has(name)) return null;
  if (name === "Link" || name === "Image") return link(node, text, leaf);
  if (name === "URL" || name === "Autolink") return anchor(text.slice(from, to).replace(/^<|>$/g, ""), leaf(from, to));
  if (name === "Table") return h("div", { class: "wide" }, h("table", null, h("tbody", null, parts(node, text, leaf))));
  if (name === "HorizontalRule") return h("hr", null);
  if (name === "HardBreak") return h("br", null);
  if (name === "Escape") return leaf(from + 1, to);
  return h(TAGS[name] ?? "span", null, parts(node, text, leaf));
}

/** A link or an image; where its address may not be followed, it is text as it was written. */
function link(node, text, leaf) {
  const url = node.getChild("URL"), marks = node.getChildren("LinkMark");
  if (!url || marks.length < 2) return leaf(node.from, node.to);
  const inside = leaf(marks[0].to, marks[1].from);
  const address = text.slice(url.from, url.to);
  return SAFE.test(address) ? anchor(address, inside) : leaf(node.from, node.to);
}

function anchor(address, inside) {
  const href = SAFE.test(address) ? address : address.includes("@") ? `mailto:${address}` : `https://${address}`;
  return h("a", { href, title: href, target: "_blank", rel: "noopener noreferrer" }, inside);
}
