// SPDX-License-Identifier: Apache-2.0

// The map of connections: three columns, with the opener at the left, the hostPort in the middle, the opened at the right.
// Each column shows its largest ends. The others share one row, so that a node with 200 pods is as legible as one with 5.

import { h, s } from './dom.js';
import { bytes, count, plural, podName } from './format.js';
import { notLoaded } from './overview.js';
import { card, heading, table, two } from './parts.js';
import { state } from './state.js';

const row = 34;
const top = 30;

const idOf = (end) => (end.kind === 'pod' ? `pod ${end.owner}` : end.kind === 'outside' && end.address ? `outside ${end.address}` : end.kind);

function names(node) {
  const all = new Map();
  for (const e of node.endpoints) all.set(e.owner.id, { name: podName(e.owner), sub: e.addresses[0]?.split('/')[0] ?? '' });
  return (end) => {
    if (end.kind === 'pod') return { ...(all.get(end.owner) ?? { name: `#${end.owner}`, sub: '' }), query: end.owner };
    if (end.kind === 'node') return { name: 'this node', sub: 'its own processes', query: '' };
    return end.address ? { name: end.address, sub: 'outside', query: end.address } : { name: 'elsewhere', sub: 'other addresses outside', query: '' };
  };
}

/** The ends of a column, largest first; those past most share one. */
function column(edges, idFrom, label, most) {
  const ends = new Map();
  for (const e of edges) {
    const id = idFrom(e);
    if (id === null) continue;
    const end = ends.get(id) ?? { id, bytes: 0, connections: 0, ...label(e) };
    end.bytes += e.bytes;
    end.connections += e.connections;
    ends.set(id, end);
  }
  const sorted = [...ends.values()].sort((a, b) => b.bytes - a.bytes || b.connections - a.connections || (a.id < b.id ? -1 : 1));
  const place = new Map();
  const shown = sorted.length > most ? sorted.slice(0, most - 1) : sorted;
  shown.forEach((end) => place.set(end.id, end.id));
  const rest = sorted.slice(shown.length);
  if (rest.length) {
    rest.forEach((end) => place.set(end.id, 'rest'));
    shown.push({ id: 'rest', name: `${count(rest.length)} more`, sub: 'in the table below', query: '',
      bytes: rest.reduce((n, e) => n + e.bytes, 0), connections: rest.reduce((n, e) => n + e.connections, 0) });
  }
  return { shown, place };
}

/**
 * Puts the ends of each column into an order with few crossings: kinds together, and each end beside those it is joined with. Openers
 * outside come first, for they ask for host ports, whose pods come first at the right.
 */
function arrange(edges, columns) {
  const kind = (end) => end.id.split(' ')[0];
  const rank = [{ outside: 0, node: 1, pod: 2, rest: 3 }, {}, { pod: 0, node: 1, outside: 2, rest: 3 }];
  const at = (i, id) => columns[i].shown.findIndex((end) => end.id === columns[i].place.get(id));
  const near = (i, id, of) => {
    let [sum, n] = [0, 0];
    for (const e of edges) {
      const ends = [idOf(e.from), e.via, idOf(e.to)];
      if (!ends[i] || columns[i].place.get(ends[i]) !== id) continue;
      for (const j of of) {
        if (!ends[j]) continue;
        sum += at(j, ends[j]);
        n++;
      }
    }
    return n ? sum / n : 0;
  };
  const sort = (i, of) => {
    const places = new Map(columns[i].shown.map((end) => [end, near(i, end.id, of)]));
    const group = (end) => rank[i][kind(end)] ?? (end.id === 'rest' ? 9 : 0);
    columns[i].shown.sort((a, b) => group(a) - group(b) || places.get(a) - places.get(b));
  };
  sort(0, []);
  sort(1, [0]);
  sort(2, [1, 0]);
  sort(0, [1, 2]);
  sort(1, [0, 2]);
}

function bands(edges, columns, most) {
  const sums = new Map();
  const put = (from, to, edge, id) => {
    const sum = sums.get(id) ?? { id, from, to, bytes: 0, connections: 0 };
    sum.bytes += edge.bytes;
    sum.connections += edge.connections;
    sums.set(id, sum);
  };
  for (const e of edges) {
    const from = columns[0].place.get(idOf(e.from));
    const to = columns[2].place.get(idOf(e.to));
    const via = e.via ? columns[1].place.get(e.via) : null;
    if (via) {
      put([0, from], [1, via], e, `0 ${from} 1 ${via}`);
      put([1, via], [2, to], e, `1 ${via} 2 ${to}`);
    } else {
      put([0, from], [2, to], e, `0 ${from} 2 ${to}`);
    }
  }
  return [...sums.values()].sort((a, b) => b.bytes - a.bytes).slice(0, most);
}

function drawing(node, width) {
  const { edges } = node.talk;
  const narrow = width < 560;
  const most = narrow ? 9 : 14;
  const label = names(node);
  const columns = [
    column(edges, (e) => idOf(e.from), (e) => label(e.from), most),
    column(edges, (e) => e.via || null, (e) => ({ name: e.via, sub: 'host port', query: e.via.replace(' ', ' :') }), most),
    column(edges, (e) => idOf(e.to), (e) => label(e.to), most),
  ];
  arrange(edges, columns);
  const rows = Math.max(...columns.map((c) => c.shown.length), 1);
  const height = top + rows * row + 6;
  const box = narrow ? Math.floor((width - 2 * 24) / 3) : Math.min(210, Math.floor(width * 0.24));
  const x = [0, Math.round((width - box) / 2), width - box];
  const at = columns.map((c) => {
    const first = top + (c === columns[1] ? Math.max(0, Math.round((rows / 2 - c.shown.length) / 2)) * row : 0);
    return new Map(c.shown.map((end, i) => [end.id, first + i * row]));
  });
  const all = bands(edges, columns, 160);
  const most1 = Math.max(...all.map((b) => b.bytes), 1);
  const hot = state.hot;
  const touches = (b) => hot === `${b.from[0]} ${b.from[1]}` || hot === `${b.to[0]} ${b.to[1]}`;
  const lines = all.map((b) => {
    const [x1, x2] = [x[b.from[0]] + box, x[b.to[0]]];
    const [y1, y2] = [at[b.from[0]].get(b.from[1]) + 14, at[b.to[0]].get(b.to[1]) + 14];
    const bend = Math.min(120, (x2 - x1) / 2);
    const thick = 1.25 + 9 * Math.sqrt(b.bytes / most1);
    return s('path', {
      class: `band${hot ? (touches(b) ? ' hot' : ' cold') : ''}`, 'data-key': b.id, 'stroke-width': thick.toFixed(1),
      d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`,
    }, s('title', null, `${plural(b.connections, 'connection')}, ${bytes(b.bytes)}`));
  });
  const fit = Math.floor((box - 14) / 7.3);
  const short = (text) => (text.length > fit ? `${text.slice(0, fit - 1)}…` : text);
  const ends = columns.flatMap((c, i) => c.shown.map((end) => {
    const key = `${i} ${end.id}`;
    const words = `${end.name}: ${plural(end.connections, 'connection')}, ${bytes(end.bytes)}`;
    return s('a', { class: `end${i === 1 ? ' via' : ''}${end.id === 'rest' ? ' rest' : ''}`, href: end.query ? `#/connections?q=${encodeURIComponent(end.query)}` : '#/connections',
      'data-key': key, 'data-end': key, transform: `translate(${x[i]} ${at[i].get(end.id)})` },
    s('rect', { width: box, height: row - 6, rx: 6 }),
    s('text', { x: 8, y: narrow ? 18 : 12.5, class: 'end-name' }, short(end.name)),
    narrow ? null : s('text', { x: 8, y: 24, class: 'end-sub' }, `${end.sub ? `${end.sub} · ` : ''}${bytes(end.bytes)}`),
    s('title', null, words));
  }));
  const heads = [['Opened by', 0], ['Host port', 1], ['To', 2]].filter(([, i]) => columns[i].shown.length)
    .map(([text, i]) => s('text', { class: 'head', x: x[i], y: 14 }, text));
  return s('svg', { class: 'talk', viewBox: `0 0 ${width} ${height}`, width, height, role: 'group', 'aria-label': 'Ends of connections. The table below says the same.' },
    heads, s('g', { class: 'bands', 'aria-hidden': 'true' }, lines), ends);
}

export function talk(node, width) {
  const { edges, left_out: left } = node.talk;
  const label = names(node);
  const cell = (end) => two(label(end).name, label(end).sub);
  return [
    heading('Traffic map', h('p', { class: 'muted' }, 'Who opened the present connections, by which host port, and to which end. Width is bytes since each connection began.')),
    notLoaded(node),
    edges.length === 0
      ? h('p', { class: 'empty' }, 'There is no connection.')
      : h('section', { class: 'card map' }, drawing(node, Math.max(300, width))),
    edges.length > 0 && card('As a table', table({
      id: 'talk', label: 'Ends of connections', rows: edges.slice(0, 100), key: (e) => `${idOf(e.from)} ${e.via ?? ''} ${idOf(e.to)}`,
      columns: [
        { name: 'Opened by', wide: true, cell: (e) => cell(e.from), value: (e) => label(e.from).name },
        { name: 'Host port', cell: (e) => e.via ?? '–', value: (e) => e.via ?? '' },
        { name: 'To', wide: true, cell: (e) => cell(e.to), value: (e) => label(e.to).name },
        { name: 'Connections', number: true, cell: (e) => count(e.connections), value: (e) => e.connections },
        { name: 'Bytes', number: true, cell: (e) => bytes(e.bytes), value: (e) => e.bytes },
      ],
    }), edges.length + left > 100 && h('p', { class: 'sub' }, `The 100 largest of ${count(edges.length + left)}.`)),
  ];
}
