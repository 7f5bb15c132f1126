/**
 * An answer's Markdown as elements. No text becomes markup: HTML is shown as text, links lead to web
 * pages and mail only, and images are links. The parser gives places in the text, so that each token
 * stays an element.
 */
import { GFM, h, markdown } from "./vendor.js";

const parser = markdown.configure([GFM, { remove: ["HTMLBlock", "HTMLTag"] }]);
const SAFE = /^(https?:\/\/|mailto:)/i;
const TAGS = {
  Paragraph: "p", Blockquote: "blockquote", BulletList: "ul", OrderedList: "ol", ListItem: "li",
  Emphasis: "em", StrongEmphasis: "strong", Strikethrough: "s", InlineCode: "code", CodeBlock: "pre", FencedCode: "pre",
  Task: "p", Table: "table", TableHeader: "tr", TableRow: "tr", TableCell: "td",
};
/** The text between the parts of these separates them, and is not shown. */
const BLOCKS = /^(Document|Blockquote|BulletList|OrderedList|ListItem|Table|TableHeader|TableRow|FencedCode)$/;
const HIDDEN = /^(HeaderMark|EmphasisMark|CodeMark|CodeInfo|Link(Mark|Title|Label)|ListMark|QuoteMark|StrikethroughMark|TableDelimiter)$/;

/**
 * @param {string} text
 * @param {(from: number, to: number) => any} leaf makes the elements for a piece of the text
 */
export const renderMarkdown = (text, leaf) => parts(parser.parse(text).topNode, text, leaf);

function parts(node, text, leaf) {
  const elements = [], between = !BLOCKS.test(node.name);
  let at = node.from;
  for (let child = node.firstChild; child; child = child.nextSibling) {
    if (between && child.from > at) elements.push(leaf(at, child.from));
    elements.push(element(child, text, leaf));
    at = child.to;
  }
  if (between && at < node.to) elements.push(leaf(at, node.to));
  return elements;
}

function element(node, text, leaf) {
  const { name, from, to } = node;
  if (HIDDEN.test(name)) return null;
  if (name === "Link" || name === "Image") return link(node, text, leaf);
  if (name === "URL" || name === "Autolink") return anchor(text.slice(from, to).replace(/^<|>$/g, ""), leaf(from, to));
  if (name === "HorizontalRule") return h("hr", null);
  if (name === "HardBreak") return h("br", null);
  if (name === "Escape") return leaf(from + 1, to);
  return h(TAGS[name] ?? (name.includes("Heading") ? "h3" : "span"), null, parts(node, text, leaf));
}

/** A link or an image; it stays text if its address may not be followed. */
function link(node, text, leaf) {
  const url = node.getChild("URL"), marks = node.getChildren("LinkMark");
  const address = url ? text.slice(url.from, url.to) : "";
  if (marks.length < 2 || !SAFE.test(address)) return leaf(node.from, node.to);
  return anchor(address, leaf(marks[0].to, marks[1].from));
}

function anchor(address, inside) {
  const href = SAFE.test(address) ? address : address.includes("@") ? `mailto:${address}` : `https://${address}`;
  return h("a", { href, title: href, target: "_blank", rel: "noopener noreferrer" }, inside);
}
