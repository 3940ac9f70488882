// SPDX-License-Identifier: Apache-2.0

// Parts that several views have.

import { h, s } from './dom.js';
import { containerName, podName } from './format.js';
import { state } from './state.js';

/** A line of the last values, from 0 to the greatest. */
export function spark(values, label, { width = 120, height = 28 } = {}) {
  const top = Math.max(...values, 0);
  if (values.length < 2) return s('svg', { class: 'spark', viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true' });
  const step = width / (values.length - 1);
  const y = (v) => (height - 2 - (top > 0 ? (v / top) * (height - 4) : 0)).toFixed(1);
  const points = values.map((v, i) => `${(i * step).toFixed(1)},${y(v)}`);
  return s('svg', { class: 'spark', viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
    s('polygon', { class: 'spark-area', points: `0,${height} ${points.join(' ')} ${width},${height}` }),
    s('polyline', { class: 'spark-line', points: points.join(' ') }));
}

/** A bar for a part of a whole, 0 to 1. What fills up gets another colour on the way. */
export function bar(part, label, fills = true) {
  const level = fills && part >= 0.9 ? 'bad' : fills && part >= 0.7 ? 'warn' : 'ok';
  return s('svg', { class: `meter ${level}`, role: 'img', 'aria-label': label },
    s('rect', { class: 'meter-all', width: '100%', height: '100%', rx: 3 }),
    s('rect', { class: 'meter-part', width: `${Math.max(part > 0 ? 1 : 0, Math.min(100, 100 * part)).toFixed(2)}%`, height: '100%', rx: 3 }));
}

/** Two lines in one cell, the second one small. */
export const two = (first, second, mono = true) => h('span', { class: 'two' }, h('span', { class: mono ? 'mono' : null }, first), second && h('span', { class: 'sub' }, second));

/** A pod: its name, which leads to its connections, with network and interface below, and the container ID if the name is another one. */
export const pod = (owner) => two(h('a', { href: `#/connections?q=${owner.id}` }, podName(owner)),
  owner.network && [owner.pod && containerName(owner), owner.network, owner.ifname].filter(Boolean).join(' · '));

/** A word in a frame: ok, info, warning, problem, or plain. */
export const badge = (text, level = 'plain') => h('span', { class: `badge ${level}` }, text);

/**
 * A table whose rows become cards on a narrow screen. Columns have a name, cell(row), and where they can sort, value(row).
 * Numbers are at the right.
 */
export function table({ id, label, columns, rows, key, empty }) {
  if (rows.length === 0) return h('p', { class: 'empty' }, empty);
  const by = state.sort[id];
  const column = by && columns.find((c) => c.name === by.column);
  if (column) {
    rows = [...rows].sort((a, b) => {
      const [x, y] = [column.value(a), column.value(b)];
      return (x < y ? -1 : x > y ? 1 : 0) * (by.down ? -1 : 1);
    });
  }
  const head = (c) => {
    const sorted = column === c ? (by.down ? 'descending' : 'ascending') : null;
    return h('th', { role: 'columnheader', scope: 'col', class: c.number ? 'num' : null, 'aria-sort': sorted },
      id && c.value
        ? h('button', { class: 'sort', 'data-action': 'sort', 'data-table': id, 'data-column': c.name, 'data-number': c.number ? '1' : null },
          c.name, h('span', { class: 'arrow', 'aria-hidden': 'true' }, sorted ? (by.down ? '↓' : '↑') : ''))
        : c.name);
  };
  return h('div', { class: 'scroll', role: 'region', tabindex: '0', 'aria-label': label },
    h('table', { role: 'table', 'aria-label': label },
      h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, columns.map(head))),
      h('tbody', { role: 'rowgroup' }, rows.map((row, i) => h('tr', { role: 'row', 'data-key': key ? key(row) : `row-${i}` },
        columns.map((c) => h('td', { role: 'cell', class: [c.number && 'num', c.wide && 'wide'].filter(Boolean).join(' ') || null, 'data-label': c.name },
          c.cell(row))))))));
}

/** A part of a view with its heading. */
export const card = (title, ...children) => h('section', { class: 'card' }, h('h2', null, title), children);

/** The heading of a view. */
export const heading = (title, ...more) => h('div', { class: 'heading' }, h('h1', null, title), more);

/** A select with its label. */
export const select = (label, name, value, options) => h('label', { class: 'field' }, h('span', null, label),
  h('select', { 'data-filter': name }, options.map(([v, text]) => h('option', { value: v, selected: v === value }, text))));

/** A field for words to look for. "/" leads to it. */
export const search = (label, name, placeholder) => h('label', { class: 'field grow' }, h('span', null, label, ' ', h('kbd', { 'aria-hidden': 'true' }, '/')),
  h('input', { type: 'search', 'data-filter': name, 'data-search': '', placeholder, autocomplete: 'off', spellcheck: 'false', maxlength: '120' }));
