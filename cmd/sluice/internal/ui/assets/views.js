// SPDX-License-Identifier: Apache-2.0

// The views that are tables. Each takes the last look and returns its elements.

import { h } from './dom.js';
import { age, bits, bytes, count, endpoint, percent, perSecond, plural, podName } from './format.js';
import { notLoaded } from './overview.js';
import { badge, bar, card, heading, pod, search, select, spark, table, two } from './parts.js';
import { endpointKey, state } from './state.js';

const limitText = (l) => `${l.direction === 'ingress' ? 'to' : 'from'} pod ${bits(l.rate_bits)}`;

export function pods(node) {
  const rate = (e) => state.rates.get(endpointKey(e));
  const limits = new Map();
  for (const l of node.limits) limits.set(l.owner.id, [...(limits.get(l.owner.id) ?? []), l]);
  const policies = new Map();
  for (const p of node.policies) for (const o of p.pods) policies.set(o.id, p);
  const words = state.podText.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = node.endpoints.filter((e) => {
    const text = [e.owner.id, podName(e.owner), e.owner.network, e.owner.container_id, e.owner.ifname, e.device, ...e.addresses, ...e.features].join(' ').toLowerCase();
    return words.every((w) => text.includes(w));
  });
  const fast = (e) => (e.rx_packets + e.tx_packets ? (e.rx_fast_packets + e.tx_fast_packets) / (e.rx_packets + e.tx_packets) : 0);
  return [
    heading('Pods', h('p', { class: 'muted' }, `${plural(rows.length, 'pod')}${words.length ? ` of ${count(node.endpoints.length)}` : ''}. Rates are of the last interval.`)),
    notLoaded(node),
    h('div', { class: 'filters' }, search('Find', 'podText', 'pod, container, network, address, device')),
    table({
      id: 'pods', label: 'Pods', rows, key: endpointKey, empty: words.length ? 'No pod matches.' : 'The datapath serves no pod.',
      columns: [
        { name: 'Pod', wide: true, cell: (e) => pod(e.owner), value: (e) => (e.owner.pod ? podName(e.owner) : `${e.owner.network ?? ''}/${e.owner.container_id ?? ''}`) },
        { name: 'Addresses', wide: true, cell: (e) => h('span', { class: 'mono lines' }, e.addresses.map((a) => h('span', null, a.split('/')[0]))) },
        { name: 'Trend', cell: (e) => spark(state.podHistory.get(endpointKey(e)) ?? [], 'Traffic of the last minutes', { width: 80, height: 22 }) },
        { name: 'To pod', number: true, cell: (e) => bits(rate(e)?.rx), value: (e) => rate(e)?.rx ?? 0 },
        { name: 'From pod', number: true, cell: (e) => bits(rate(e)?.tx), value: (e) => rate(e)?.tx ?? 0 },
        { name: 'Total', number: true, cell: (e) => bytes(e.rx_bytes + e.tx_bytes), value: (e) => e.rx_bytes + e.tx_bytes },
        { name: 'Fast', number: true, cell: (e) => percent(fast(e)), value: fast },
        { name: 'Drops', number: true, cell: (e) => count(e.drops), value: (e) => e.drops },
        { name: 'Limits', cell: (e) => (limits.get(e.owner.id) ? h('span', { class: 'lines' }, limits.get(e.owner.id).map((l) => h('span', null, limitText(l)))) : '–') },
        { name: 'Rules', cell: (e) => (policies.has(e.owner.id) ? h('a', { href: '#/rules' }, `policy ${policies.get(e.owner.id).id}`) : '–') },
        { name: 'Device', cell: (e) => h('span', { class: 'mono' }, e.device || 'gone'), value: (e) => e.device },
      ],
    }),
  ];
}

const any = (values) => [['', 'any'], ...values.map((v) => [v, v])];

export function connections(node) {
  const { filter, connections: found } = state;
  return [
    heading('Connections', h('p', { class: 'muted' }, found
      ? `${count(found.rows.length)} shown of ${count(found.matched)} that match, of ${plural(found.total, 'connection')}${found.left_out ? `; ${count(found.left_out)} were not looked through` : ''}.`
      : 'Reading…')),
    notLoaded(node),
    h('div', { class: 'filters' },
      search('Find', 'q', 'address, port, pod, container, network'),
      select('Protocol', 'proto', filter.proto, any(['tcp', 'udp', 'sctp', 'icmp', 'icmp6'])),
      select('Kind', 'kind', filter.kind, any(['hostport', 'masquerade', 'plain'])),
      select('State', 'state', filter.state, any(['new', 'unreplied', 'established', 'closing', 'closed'])),
      select('First', 'sort', filter.sort, [['idle', 'last used'], ['bytes', 'most bytes'], ['age', 'newest']])),
    table({
      label: 'Connections', rows: found?.rows ?? [], key: (f) => `${f.proto} ${f.pod} ${f.remote} ${f.outside ?? ''}`,
      empty: found && found.total ? 'No connection matches.' : 'There is no connection.',
      columns: [
        { name: 'Pod', wide: true, cell: (f) => two(f.pod, f.owner.container_id ? `${podName(f.owner)} · ${f.owner.network}` : podName(f.owner)) },
        { name: 'Remote', wide: true, cell: (f) => two(f.remote, f.opened_by === 'pod' ? 'opened by the pod' : 'opened by the remote') },
        { name: 'Node’s end', wide: true, cell: (f) => h('span', { class: 'mono' }, f.outside ?? '–') },
        { name: 'Protocol', cell: (f) => two(f.proto, f.kind, false) },
        { name: 'State', cell: (f) => two(f.state, f.fast ? 'fast path' : 'slow path', false) },
        { name: 'Traffic', number: true, cell: (f) => two(bytes(f.rx_bytes + f.tx_bytes), plural(f.rx_packets + f.tx_packets, 'packet'), false) },
        { name: 'Idle', number: true, cell: (f) => two(age(Math.floor(f.idle_seconds)), `age ${age(Math.floor(f.age_seconds))}`, false) },
      ],
    }),
    found && found.matched > found.rows.length && filter.limit < 1000
      ? h('p', null, h('button', { class: 'button', 'data-action': 'more' }, 'Show up to 1,000')) : null,
  ];
}

export function drops(node) {
  const place = (d) => (p) => `${d.reason}/${p.device}/${p.owner?.id ?? ''}`;
  return [
    heading('Drops', h('p', { class: 'muted' }, 'Packets that the datapath dropped since it was loaded. Drops by netfilter or the kernel are not counted here.')),
    notLoaded(node),
    node.drops.length === 0 ? h('p', { class: 'empty' }, 'No packet was dropped.') : node.drops.map((d) => h('section', { class: 'card', 'data-key': d.reason },
      h('div', { class: 'reason' }, h('h2', { class: 'mono' }, d.reason), h('span', { class: 'num big' }, count(d.packets)), h('span', { class: 'num muted' }, perSecond(state.dropRates.get(d.text) ?? 0))),
      h('p', { class: 'sentence' }, d.text, '.'),
      h('p', { class: 'todo' }, d.advice),
      d.places.length > 0 && table({
        label: `Places of ${d.reason}`, rows: d.places, key: place(d),
        columns: [
          { name: 'Device', cell: (p) => h('span', { class: 'mono' }, p.device) },
          { name: 'Pod', wide: true, cell: (p) => (p.owner ? pod(p.owner) : '–') },
          { name: 'Packets', number: true, cell: (p) => count(p.packets) },
        ],
      }))),
  ];
}

export function hostports(node) {
  const anywhere = (ip) => ip === '0.0.0.0' || ip === '::';
  return [
    heading('Host ports', h('p', { class: 'muted' }, '0.0.0.0 and [::] stand for every address of the node in their family.')),
    notLoaded(node),
    table({
      id: 'hostports', label: 'Host ports', rows: node.hostports, key: (p) => `${p.proto} ${p.host_ip} ${p.host_port} ${p.conditions ?? ''}`, empty: 'No port is published.',
      columns: [
        { name: 'Port', number: true, cell: (p) => p.host_port, value: (p) => p.host_port },
        { name: 'Protocol', cell: (p) => p.proto, value: (p) => p.proto },
        { name: 'Address', wide: true, cell: (p) => h('span', { class: 'mono' }, p.host_ip, anywhere(p.host_ip) && h('span', { class: 'sub' }, ' any')), value: (p) => p.host_ip },
        { name: 'Leads to', wide: true, cell: (p) => (p.claim ? 'rules of netfilter' : h('span', { class: 'mono' }, endpoint(p.pod_ip, p.pod_port))), value: (p) => p.pod_ip },
        { name: 'Owner', wide: true, cell: (p) => pod(p.owner), value: (p) => podName(p.owner) },
        { name: 'Admits', wide: true, cell: (p) => (p.allowed_sources.length ? h('span', { class: 'mono lines' }, p.allowed_sources.map((a) => h('span', null, a))) : 'all sources') },
        { name: 'Pod-side SNAT', cell: (p) => (p.masq_all ? 'every client' : p.snat ? 'hairpin' : 'no') },
        { name: 'Conditions', wide: true, cell: (p) => (p.conditions ? h('span', { class: 'mono' }, p.conditions) : '–') },
      ],
    }),
  ];
}

function ruleRows(p) {
  const named = (direction) => (r) => ({ ...r, direction });
  return [...(p.ingress ?? []).map(named('to pod')), ...(p.egress ?? []).map(named('from pod'))];
}

export function rules(node) {
  return [
    heading('Rules and limits'),
    card('Limits', node.limits.some((l) => l.burst_derived) && h('p', { class: 'sub' }, '* derived from the rate'), table({
      id: 'limits', label: 'Limits', rows: node.limits, key: (l) => `${l.owner.id}/${l.direction}`, empty: 'No pod is limited.',
      columns: [
        { name: 'Pod', wide: true, cell: (l) => pod(l.owner), value: (l) => podName(l.owner) },
        { name: 'Direction', cell: (l) => (l.direction === 'ingress' ? 'to pod' : 'from pod'), value: (l) => l.direction },
        { name: 'Rate', number: true, cell: (l) => bits(l.rate_bits), value: (l) => l.rate_bits },
        { name: 'Burst', number: true, cell: (l) => `${bytes(l.burst_bits / 8)}${l.burst_derived ? '*' : ''}`, value: (l) => l.burst_bits },
        { name: 'Let through', number: true, cell: (l) => (l.error ? '?' : bytes(l.bytes)), value: (l) => l.bytes },
        { name: 'Dropped', number: true, cell: (l) => (l.error ? '?' : count(l.drops + l.bypassed)), value: (l) => l.drops + l.bypassed },
        { name: 'Queue', number: true, cell: (l) => (l.error ? '?' : age(l.backlog_ns / 1e9)), value: (l) => l.backlog_ns },
        { name: 'By', wide: true, cell: (l) => h('span', null, `${l.backend} at ${l.in_pod ? 'the pod’s ' : ''}${l.device}`, l.error && h('span', { class: 'todo' }, l.error)) },
      ],
    })),
    node.policies.length === 0 ? card('Rules', h('p', { class: 'empty' }, 'No pod is under a policy.')) : node.policies.map((p) => h('section', { class: 'card', 'data-key': `policy-${p.id}` },
      h('h2', null, `Policy ${p.id}: ${p.ingress_policy}`),
      h('p', { class: 'chips' }, p.pods.slice(0, 12).map((o) => pod(o)), p.pods.length > 12 && h('span', null, `and ${count(p.pods.length - 12)} more`)),
      table({
        label: `Rules of policy ${p.id}`, rows: ruleRows(p), key: (r) => `${r.direction}/${r.number}`,
        columns: [
          { name: 'Direction', cell: (r) => r.direction },
          { name: 'Rule', cell: (r) => (r.number < 0 ? 'default' : r.number) },
          { name: 'Action', cell: (r) => badge(r.allow ? 'allow' : 'deny', r.allow ? 'ok' : 'problem') },
          { name: 'Network', wide: true, cell: (r) => h('span', { class: 'mono' }, r.network ?? 'any') },
          { name: 'Protocol', cell: (r) => r.protocol },
          { name: 'Ports', cell: (r) => r.ports ?? 'any' },
          { name: 'Hits', number: true, cell: (r) => count(r.hits) },
        ],
      }))),
  ];
}

export function maps(node) {
  return [
    heading('Map pressure', h('p', { class: 'muted' }, 'What the kernel has room for, and how much of it is in use. Connections that have ended do not count: their entries give way. A full connection table evicts what is not assured first.')),
    notLoaded(node),
    table({
      id: 'maps', label: 'Maps', rows: node.status.maps.filter((m) => m.fill !== null).sort((a, b) => b.fill - a.fill), key: (m) => m.name, empty: 'There are no maps.',
      columns: [
        { name: 'Map', wide: true, cell: (m) => h('span', { class: 'mono' }, m.name), value: (m) => m.name },
        { name: 'Pressure', wide: true, cell: (m) => bar(m.fill, `${m.name}: ${percent(m.fill)}`) },
        { name: 'Fill', number: true, cell: (m) => percent(m.fill), value: (m) => m.fill },
        { name: 'In use', number: true, cell: (m) => count(m.in_use), value: (m) => m.in_use },
        { name: 'Entries', number: true, cell: (m) => count(m.entries), value: (m) => m.entries },
        { name: 'Most', number: true, cell: (m) => count(m.max), value: (m) => m.max },
        { name: 'Type', cell: (m) => m.type },
      ],
    }),
    card('Masquerade ports', h('p', { class: 'muted' }, 'Ports toward the busiest destination of each address. One port serves many destinations.'), table({
      id: 'nat', label: 'Masquerade ports', rows: node.nat_pools, key: (p) => `${p.address}/${p.proto}`, empty: 'No connection is masqueraded.',
      columns: [
        { name: 'Address', wide: true, cell: (p) => h('span', { class: 'mono' }, p.address), value: (p) => p.address },
        { name: 'Protocol', cell: (p) => p.proto },
        { name: 'Pressure', wide: true, cell: (p) => (node.nat_ports ? bar(p.in_use / node.nat_ports, `${p.address}: ${percent(p.in_use / node.nat_ports)}`) : '–') },
        { name: 'In use', number: true, cell: (p) => count(p.in_use), value: (p) => p.in_use },
        { name: 'Ports', number: true, cell: () => (node.nat_ports ? count(node.nat_ports) : '?') },
        { name: 'Connections', number: true, cell: (p) => count(p.flows), value: (p) => p.flows },
        { name: 'Pods', number: true, cell: (p) => count(p.pods), value: (p) => p.pods },
        { name: 'Busiest', wide: true, cell: (p) => h('span', { class: 'mono' }, p.busiest) },
      ],
    })),
  ];
}

const levels = ['problem', 'warning', 'info', 'ok'];

export function doctor() {
  const findings = state.doctor?.findings ?? [];
  const of = (level) => findings.filter((f) => f.level === level).length;
  const shown = findings.filter((f) => state.levels === 'all' || f.level === 'problem' || f.level === 'warning');
  shown.sort((a, b) => levels.indexOf(a.level) - levels.indexOf(b.level));
  return [
    heading('Doctor', h('p', { class: 'muted' }, state.doctor
      ? `${plural(of('problem'), 'problem')}, ${plural(of('warning'), 'warning')}, ${plural(of('ok'), 'check')} as it should be. It looks again every half minute.`
      : 'The doctor is looking…')),
    h('div', { class: 'filters' }, select('Show', 'levels', state.levels, [['all', 'all answers'], ['bad', 'warnings and problems']])),
    findings.length > 0 && shown.length === 0 && h('p', { class: 'empty' }, 'No warning and no problem.'),
    h('ul', { class: 'findings all' }, shown.map((f, i) => h('li', { 'data-key': `${f.check}/${f.text}/${i}` },
      badge(f.level, f.level), h('div', null, h('strong', null, f.check), h('span', { class: 'said' }, f.text), f.do && h('span', { class: 'todo' }, f.do))))),
  ];
}
