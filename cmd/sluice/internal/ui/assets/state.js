// SPDX-License-Identifier: Apache-2.0

// What the page knows, and how looks become rates.

const keep = 60; // looks in a sparkline

export const state = {
  view: 'overview',
  node: null, // the last look
  doctor: null,
  doctorAt: 0,
  connections: null,
  error: '', // why there is no newer look
  paused: false,
  interval: 2000,
  rates: new Map(), // by endpoint
  history: { rx: [], tx: [], drops: [], connections: [] },
  podHistory: new Map(), // by endpoint: bits a second both ways
  dropRates: new Map(), // by reason
  filter: { q: '', proto: '', kind: '', state: '', sort: 'idle', limit: 200 },
  podText: '',
  levels: 'all',
  sort: {}, // by table: { column, down }
  hot: '', // the end of the map that is pointed at
};

export const endpointKey = (e) => `${e.owner.id}/${e.device}/${e.ifindex}`;

const push = (list, value) => {
  list.push(value);
  if (list.length > keep) list.shift();
};

const total = (list, field) => list.reduce((sum, e) => sum + e[field], 0);

/** Takes a new look in. It returns false for one that is known. */
export function take(node) {
  const before = state.node;
  if (before && before.taken === node.taken) return false;
  state.node = node;
  push(state.history.connections, node.connections.total);
  if (!before) return true;
  const seconds = (Date.parse(node.taken) - Date.parse(before.taken)) / 1000;
  if (!(seconds > 0)) return true;
  const old = new Map(before.endpoints.map((e) => [endpointKey(e), e]));
  const rates = new Map();
  let rx = 0;
  let tx = 0;
  for (const e of node.endpoints) {
    const key = endpointKey(e);
    const o = old.get(key);
    if (!o || e.rx_bytes < o.rx_bytes || e.tx_bytes < o.tx_bytes) continue; // new, or another pod
    const rate = { rx: (8 * (e.rx_bytes - o.rx_bytes)) / seconds, tx: (8 * (e.tx_bytes - o.tx_bytes)) / seconds };
    rates.set(key, rate);
    rx += rate.rx;
    tx += rate.tx;
  }
  const podHistory = new Map();
  for (const [key, rate] of rates) {
    const list = state.podHistory.get(key) ?? [];
    push(list, rate.rx + rate.tx);
    podHistory.set(key, list);
  }
  const oldDrops = new Map(before.status.drops.map((d) => [d.reason, d.packets]));
  state.dropRates = new Map(node.status.drops.map((d) => [d.reason, Math.max(0, d.packets - (oldDrops.get(d.reason) ?? 0)) / seconds]));
  state.rates = rates;
  state.podHistory = podHistory;
  push(state.history.rx, rx);
  push(state.history.tx, tx);
  push(state.history.drops, Math.max(0, total(node.status.drops, 'packets') - total(before.status.drops, 'packets')) / seconds);
  return true;
}

export const last = (list) => (list.length ? list[list.length - 1] : null);
