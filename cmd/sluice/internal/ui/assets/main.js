// SPDX-License-Identifier: Apache-2.0

// Asks for looks, and shows the view that the address names.

import { h, morph, s } from './dom.js';
import { count } from './format.js';
import { overview } from './overview.js';
import { state, take } from './state.js';
import { talk } from './talk.js';
import * as tables from './views.js';

const id = (name) => document.getElementById(name);

const views = {
  overview: { name: 'Overview', draw: overview },
  pods: { name: 'Pods', draw: tables.pods, number: (n) => n.endpoints.length },
  connections: { name: 'Connections', draw: tables.connections, number: (n) => n.connections.total },
  talk: { name: 'Traffic map', draw: (n) => talk(n, mapWidth()) },
  drops: { name: 'Drops', draw: tables.drops, number: (n) => n.drops.length || null },
  hostports: { name: 'Host ports', draw: tables.hostports, number: (n) => n.hostports.length },
  rules: { name: 'Rules and limits', draw: tables.rules, number: (n) => n.policies.length + n.limits.length || null },
  maps: { name: 'Map pressure', draw: tables.maps },
  doctor: { name: 'Doctor', draw: tables.doctor, number: () => state.doctor?.findings.filter((f) => f.level === 'problem' || f.level === 'warning').length || null },
};

function mapWidth() {
  const inner = id('main').clientWidth;
  const style = getComputedStyle(id('main'));
  return inner - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - 2 - (inner < 560 ? 16 : 32);
}

function pill() {
  const { status } = state.node;
  if (status.loaded) return h('span', { class: 'badge ok' }, `${status.backend || 'eBPF'} in force`);
  return h('span', { class: `badge ${status.backend === 'none' ? 'problem' : 'info'}` }, status.backend === 'none' ? 'no eBPF' : 'not loaded');
}

function theme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
}

function live() {
  if (state.error) return h('span', { class: 'live problem' }, 'no answer');
  if (state.paused) return h('span', { class: 'live' }, 'paused');
  return h('span', { class: 'live on' }, h('span', { class: 'dot', 'aria-hidden': 'true' }), `every ${state.interval / 1000} s`);
}

function drawBar() {
  morph(id('bar'), [
    h('a', { class: 'brand', href: '#/overview', 'aria-label': 'Sluice, overview' },
      s('svg', { class: 'mark', viewBox: '0 0 24 24', 'aria-hidden': 'true' }, s('rect', { width: 24, height: 24, rx: 6 }), s('path', { d: 'M5 8h14M5 12h6m2 0h6M5 16h14' })),
      h('span', null, 'Sluice')),
    h('span', { class: 'host' }, state.node?.host ?? ''),
    state.node ? pill() : h('span'),
    h('span', { class: 'space' }),
    live(),
    h('button', { class: 'button', 'data-action': 'pause', 'aria-pressed': String(state.paused) }, 'Pause'),
    h('button', { class: 'button', 'data-action': 'theme' }, theme() === 'dark' ? 'Light' : 'Dark', h('span', { class: 'sr' }, ' colours')),
  ]);
}

function drawNav() {
  morph(id('nav'), Object.entries(views).map(([key, v]) => {
    const number = state.node && v.number ? v.number(state.node) : null;
    return h('a', { href: `#/${key}`, 'data-key': key, 'aria-current': state.view === key ? 'page' : null },
      h('span', null, v.name), number !== null && h('span', { class: 'number' }, count(number)));
  }));
}

function draw() {
  drawBar();
  drawNav();
  document.title = `${views[state.view].name} · ${state.node?.host ?? 'Sluice'}`;
  const trouble = state.error && h('div', { class: 'notice problem', role: 'alert', 'data-key': 'trouble' }, h('p', null, state.error));
  if (!state.node) {
    if (trouble) morph(id('main'), [h('h1', null, 'Sluice'), trouble]);
    return;
  }
  morph(id('main'), [trouble, h('div', { class: 'view', 'data-key': state.view }, views[state.view].draw(state.node))].filter(Boolean));
}

async function ask(path) {
  const answer = await fetch(path, { credentials: 'same-origin', cache: 'no-store' });
  const type = answer.headers.get('Content-Type') ?? '';
  if (!type.startsWith('application/json')) throw new Error(answer.status === 401 ? 'The address is of an earlier run: open the one that "sluice ui" printed last.' : `The answer has the status ${answer.status}.`);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error);
  return [body, answer];
}

async function askConnections() {
  const { filter } = state;
  const query = new URLSearchParams(Object.entries(filter).filter(([, v]) => v !== ''));
  [state.connections] = await ask(`api/connections?${query}`);
}

async function look() {
  const [node, answer] = await ask('api/node');
  state.interval = Number(answer.headers.get('Sluice-Interval')) || state.interval;
  take(node);
  if (state.view === 'connections') await askConnections();
  if (Date.now() - state.doctorAt > 30000) {
    state.doctorAt = Date.now();
    ask('api/doctor').then(([found]) => { state.doctor = found; }, (err) => { state.doctorAt = 0; state.doctor = { findings: [{ check: 'doctor', level: 'problem', text: err.message }] }; }).then(draw);
  }
}

let timer = 0;

async function tick() {
  clearTimeout(timer);
  if (document.hidden || state.paused) return;
  const began = performance.now();
  try {
    await look();
    state.error = '';
  } catch (err) {
    state.error = err instanceof TypeError ? 'sluice ui does not answer. It has ended, or the node cannot be reached. What you see is the last look.' : err.message;
  }
  draw();
  clearTimeout(timer);
  timer = setTimeout(tick, Math.max(state.interval, 4 * (performance.now() - began))); // a node with much to tell is asked less often
}

function go() {
  const [name, query] = location.hash.replace(/^#\/?/, '').split('?');
  const next = views[name] ? name : 'overview';
  const moved = next !== state.view;
  state.view = next;
  const words = new URLSearchParams(query ?? '').get('q');
  if (next === 'connections' && words !== null) state.filter.q = words;
  draw();
  const field = document.querySelector('[data-filter="q"]');
  if (field) field.value = state.filter.q;
  const text = document.querySelector('[data-filter="podText"]');
  if (text) text.value = state.podText;
  if (moved) {
    scrollTo(0, 0);
    id('say').textContent = views[next].name;
    document.querySelector('#nav [aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  }
  if (next === 'connections' && state.node) askConnections().then(draw, () => tick());
}

const actions = {
  skip: (event) => {
    event.preventDefault();
    id('main').focus();
  },
  pause: () => {
    state.paused = !state.paused;
    draw();
    tick();
  },
  theme: () => {
    const next = theme() === 'dark' ? 'light' : 'dark';
    document.documentElement.dataset.theme = next;
    localStorage.setItem('sluice-theme', next);
    draw();
  },
  sort: (_, { table, column, number }) => {
    const by = state.sort[table];
    state.sort[table] = { column, down: by?.column === column ? !by.down : Boolean(number) };
    draw();
  },
  more: () => {
    state.filter.limit = 1000;
    askConnections().then(draw, () => tick());
  },
};

let typed = 0;

function filtered({ target }) {
  const name = target.dataset.filter;
  if (!name) return;
  if (name in state.filter) {
    state.filter[name] = target.value.trim();
    clearTimeout(typed);
    typed = setTimeout(() => askConnections().then(draw, () => tick()), 150);
  } else {
    state[name] = target.value;
    draw();
  }
}

function point(event) {
  const hot = event.target.closest?.('[data-end]')?.dataset.end ?? '';
  if (state.view === 'talk' && hot !== state.hot) {
    state.hot = hot;
    draw();
  }
}

document.addEventListener('click', (event) => {
  const at = event.target.closest('[data-action]');
  if (at) actions[at.dataset.action](event, at.dataset);
});
document.addEventListener('input', filtered);
for (const kind of ['pointerover', 'focusin']) document.addEventListener(kind, point);
document.addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input, select')) return;
  const field = document.querySelector('[data-search]');
  if (!field) location.hash = '#/connections';
  event.preventDefault();
  setTimeout(() => document.querySelector('[data-search]')?.focus(), field ? 0 : 50);
});
document.addEventListener('visibilitychange', tick);
addEventListener('hashchange', go);
new ResizeObserver(() => state.view === 'talk' && draw()).observe(id('main'));
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawBar);

go();
tick();
