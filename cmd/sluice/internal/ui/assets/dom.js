// SPDX-License-Identifier: Apache-2.0

// Views return new trees of elements. morph makes the page like them and keeps the elements that stay, with focus, selection and scroll.
// All text goes in as text nodes: what pods and their owners are called is never markup.

const svgSpace = 'http://www.w3.org/2000/svg';

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? '' : value);
    }
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) {
      element.append(child instanceof Node ? child : String(child));
    }
  }
  return element;
}

/** An HTML element. */
export const h = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);

/** An SVG element. */
export const s = (tag, attributes, ...children) => make(document.createElementNS(svgSpace, tag), attributes, children);

const keyOf = (node) => node.dataset?.key;

// Attributes that belong to the reader, not to the view.
const kept = new Set(['open']);

/** Makes the children of parent like next. */
export function morph(parent, next) {
  const keyed = new Map();
  for (const node of parent.childNodes) {
    if (keyOf(node)) keyed.set(keyOf(node), node);
  }
  let at = parent.firstChild;
  for (const node of next) {
    const key = keyOf(node);
    const have = key ? keyed.get(key) : at;
    if (!have || have.nodeName !== node.nodeName || keyOf(have) !== key) {
      parent.insertBefore(node, at);
      continue;
    }
    if (have === at) at = at.nextSibling;
    else parent.insertBefore(have, at);
    if (!have.isEqualNode(node)) patch(have, node);
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function patch(have, want) {
  if (have.nodeType !== Node.ELEMENT_NODE) {
    have.data = want.data;
    return;
  }
  for (const { name } of [...have.attributes]) {
    if (!want.hasAttribute(name) && !kept.has(name)) have.removeAttribute(name);
  }
  for (const { name, value } of want.attributes) {
    if (have.getAttribute(name) !== value) have.setAttribute(name, value);
  }
  morph(have, [...want.childNodes]);
}
