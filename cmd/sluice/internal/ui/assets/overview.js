// SPDX-License-Identifier: Apache-2.0

import { h } from './dom.js';
import { bits, bitsParts, count, endpoint, percent, perSecond, plural } from './format.js';
import { badge, bar, card, heading, pod, spark, table } from './parts.js';
import { endpointKey, last, state } from './state.js';

function tile(title, [number, unit], line, note, href) {
  return h('a', { class: 'tile', href, 'data-key': title },
    h('span', { class: 'tile-name' }, title),
    h('span', { class: 'tile-value' }, number, unit && h('span', { class: 'unit' }, unit)),
    line,
    h('span', { class: 'sub' }, note));
}

/** Says that nothing is loaded, and what to do. */
export function notLoaded({ status }) {
  if (status.loaded) return null;
  const none = status.backend === 'none';
  return h('section', { class: `notice ${none ? 'problem' : 'info'}` },
    h('h2', null, none ? 'eBPF cannot run on this node' : 'The datapath is not loaded'),
    h('p', null, none ? status.reason : 'No pod of this node uses the eBPF datapath yet.'),
    h('p', null, none
      ? 'Pods get their host ports and masquerade from netfilter instead. The doctor names what the kernel lacks.'
      : 'The first ADD of a plugin that needs it loads it: a pod with a host port, or a network with ipMasq. Until then there is nothing to count here.'),
    h('p', null, h('a', { href: '#/doctor' }, 'Ask the doctor'), ' what this kernel can do.'));
}

const share = (part, all) => (all > 0 ? part / all : 0);

function tiles(node) {
  const { history } = state;
  const seen = (list) => (list.length ? bitsParts(last(list)) : ['–']);
  const packets = node.endpoints.reduce((n, e) => n + e.rx_packets + e.tx_packets, 0);
  const fast = node.endpoints.reduce((n, e) => n + e.rx_fast_packets + e.tx_fast_packets, 0);
  const full = node.status.maps.filter((m) => m.fill !== null).sort((a, b) => b.fill - a.fill)[0];
  const drops = last(history.drops);
  const dropped = node.drops.reduce((n, d) => n + d.packets, 0);
  return h('div', { class: 'tiles' },
    tile('To pods', seen(history.rx), spark(history.rx, 'Traffic to pods, last minutes'), plural(node.endpoints.length, 'pod'), '#/pods'),
    tile('From pods', seen(history.tx), spark(history.tx, 'Traffic from pods, last minutes'), 'Ethernet frames', '#/pods'),
    tile('Connections', [count(node.connections.total)], spark(history.connections, 'Connections, last minutes'),
      `${percent(share(node.connections.fast, node.connections.total))} fast`, '#/connections'),
    tile('Drops', drops === null ? ['–'] : perSecond(drops).split('\u00a0'), spark(history.drops, 'Drops a second, last minutes'), `${count(dropped)} since the load`, '#/drops'),
    tile('Fast path', percent(share(fast, packets)).split('\u00a0'), bar(share(fast, packets), 'Share of packets', false), 'of all packets', '#/pods'),
    full && tile('Fullest map', percent(full.fill).split('\u00a0'), bar(full.fill, `Fill of ${full.name}`), full.name, '#/maps'));
}

function busiest(node) {
  const rate = (e) => state.rates.get(endpointKey(e));
  const sum = (e) => (rate(e)?.rx ?? 0) + (rate(e)?.tx ?? 0);
  const rows = [...node.endpoints].sort((a, b) => sum(b) - sum(a) || b.rx_bytes + b.tx_bytes - a.rx_bytes - a.tx_bytes).slice(0, 6);
  return card('Busiest pods', table({
    label: 'Busiest pods', rows, key: endpointKey, empty: 'The datapath serves no pod.',
    columns: [
      { name: 'Pod', wide: true, cell: (e) => pod(e.owner) },
      { name: 'Trend', cell: (e) => spark(state.podHistory.get(endpointKey(e)) ?? [], 'Traffic of the last minutes', { width: 80, height: 20 }) },
      { name: 'To pod', number: true, cell: (e) => bits(rate(e)?.rx) },
      { name: 'From pod', number: true, cell: (e) => bits(rate(e)?.tx) },
    ],
  }));
}

function attention(node) {
  const items = [];
  for (const text of node.failed) items.push(['problem', 'not read', text, '']);
  for (const f of state.doctor?.findings ?? []) {
    if (f.level === 'problem' || f.level === 'warning') items.push([f.level, f.check, f.text, f.do]);
  }
  for (const a of node.status.attachments) {
    if (a.unfinished.length) items.push(['warning', 'attachments', `ADD not completed: ${a.network}/${a.container_id.slice(0, 12)}/${a.ifname} (${a.unfinished.join(', ')})`, '']);
  }
  items.sort((a, b) => (a[0] === b[0] ? 0 : a[0] === 'problem' ? -1 : 1));
  const shown = items.slice(0, 4);
  return card('Needs attention',
    shown.length === 0
      ? h('p', { class: 'empty' }, state.doctor ? 'Nothing: the doctor found no warning and no problem.' : 'The doctor is looking…')
      : h('ul', { class: 'findings' }, shown.map(([level, check, text, todo]) => h('li', null,
        badge(level, level), h('div', null, h('strong', null, check), ' ', text, todo && h('span', { class: 'todo' }, todo))))),
    items.length > shown.length && h('p', { class: 'more' }, h('a', { href: '#/doctor' }, `${count(items.length - shown.length)} more`)));
}

function pressure(node) {
  const rows = node.status.maps.filter((m) => m.fill !== null).sort((a, b) => b.fill - a.fill).slice(0, 5);
  return card('Map pressure', h('ul', { class: 'bars' }, rows.map((m) => h('li', { 'data-key': m.name },
    h('span', { class: 'mono' }, m.name), bar(m.fill, `${m.name}: ${percent(m.fill)}`), h('span', { class: 'num' }, percent(m.fill))))));
}

function facts({ status, host }) {
  const c = status.config;
  const uplinks = status.devices.filter((d) => d.role === 'uplink').map((d) => [d.name, [d.source4, d.source6].filter(Boolean).join(', ')].filter(Boolean).join(': '));
  const rows = [
    ['Node', host],
    ['Backend', status.backend && `${status.backend}: ${status.reason}`],
    ['Sluice', status.version], ['Kernel', status.kernel],
    ['Programs', status.attach_uplinks && `uplinks by ${status.attach_uplinks}, pods by ${status.attach_pods}`],
    ['Uplinks', uplinks.join('; ')],
    ['Not handled', status.unhandled_uplinks.map((u) => `${u.name}: ${u.why}`).join('; ')],
    ['Fast path', c && c.fast_path + (c.relearn_seconds ? `, relearned every ${c.relearn_seconds} s` : '')],
    ['Anti-spoofing', c && (c.anti_spoof ? 'on' : 'off')],
    ['SNAT ports', c && c.snat_ports.join(', ')],
    ['Netfilter', status.netfilter.map((n) => `${n.backend} for ${n.asked}: ${n.reason}`).join('; ')],
    ['Own processes', status.local && (status.local.attached ? 'reach host ports' : `do not reach host ports: ${status.local.reason}`)],
    ['Pins', status.pin_path],
  ];
  return card('Node', h('dl', { class: 'facts' }, rows.filter(([, v]) => v).map(([k, v]) => h('div', { 'data-key': k }, h('dt', null, k), h('dd', null, v)))));
}

function hostPorts(node) {
  const rows = node.hostports.slice(0, 6);
  return card('Host ports', rows.length === 0 ? h('p', { class: 'empty' }, 'No port is published.') : h('ul', { class: 'plain' }, rows.map((p) => h('li', null,
    h('span', { class: 'mono' }, `${p.proto} ${endpoint(p.host_ip, p.host_port)}`), h('span', { class: 'muted' }, ' to '), h('span', { class: 'mono' }, p.claim ? 'netfilter' : endpoint(p.pod_ip, p.pod_port))))),
  node.hostports.length > rows.length && h('p', { class: 'more' }, h('a', { href: '#/hostports' }, `${count(node.hostports.length - rows.length)} more`)));
}

export function overview(node) {
  return [
    heading('Overview', node.status.loaded && h('p', { class: 'muted' }, `${node.status.backend || 'eBPF'}: ${node.status.reason}`)),
    notLoaded(node),
    node.status.loaded && tiles(node),
    h('div', { class: 'grid' },
      attention(node),
      node.status.loaded && busiest(node),
      node.status.loaded && pressure(node),
      node.status.loaded && hostPorts(node),
      facts(node)),
  ];
}
