// SPDX-License-Identifier: Apache-2.0

const space = '\u00a0';

function scaled(n, base, units) {
  let i = 0;
  while (n >= base - 0.5 && i < units.length - 1) {
    n /= base;
    i++;
  }
  const digits = i === 0 || n >= 99.95 ? 0 : n >= 9.995 ? 1 : 2;
  return [n.toFixed(digits), units[i]];
}

const joined = ([number, unit]) => (unit ? number + space + unit : number);

/** 1,234,567 */
export const count = (n) => Math.round(n).toLocaleString('en');

/** 22.4 MiB */
export const bytes = (n) => joined(scaled(n, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']));

/** 1.25 Mbit/s, of bits a second; a dash if it is not known. */
export const bits = (n) => (n === null || n === undefined ? '–' : joined(scaled(n, 1000, ['bit/s', 'kbit/s', 'Mbit/s', 'Gbit/s', 'Tbit/s'])));

/** The same in two parts, for large figures. */
export const bitsParts = (n) => scaled(n, 1000, ['bit/s', 'kbit/s', 'Mbit/s', 'Gbit/s', 'Tbit/s']);

/** 12.5 /s */
export const perSecond = (n) => (n === null || n === undefined ? '–' : `${n >= 99.95 || Number.isInteger(n) ? count(n) : n.toFixed(1)}${space}/s`);

/** 42.1 % of a part. */
export function percent(part) {
  const p = 100 * part;
  return (p > 0 && p < 0.1 ? '<0.1' : p === 0 || p >= 99.95 ? p.toFixed(0) : p.toFixed(1)) + space + '%';
}

/** 350 ms, 42 s, 3 m 05 s, 2 h 10 m, 4 d 3 h */
export function age(seconds) {
  const two = (n) => String(Math.floor(n)).padStart(2, '0');
  if (seconds < 1) return Math.max(0, Math.round(seconds * 1000)) + space + 'ms';
  if (seconds < 60) return Math.floor(seconds) + space + 's';
  if (seconds < 3600) return `${Math.floor(seconds / 60)}${space}m${space}${two(seconds % 60)}${space}s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}${space}h${space}${two((seconds % 3600) / 60)}${space}m`;
  return `${Math.floor(seconds / 86400)}${space}d${space}${Math.floor((seconds % 86400) / 3600)}${space}h`;
}

/** "1 pod", "2 pods" */
export const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? '' : 's'}`;

/** The beginning of a pod's container ID, or the number of an attachment that has no record. */
export const containerName = (owner) => (owner.container_id ? owner.container_id.slice(0, 12) : `#${owner.id}`);

/** The name of a pod: namespace and name where the runtime gave them, else the beginning of its container ID. */
export const podName = (owner) => (owner.pod ? `${owner.namespace}/${owner.pod}` : containerName(owner));

/** An address and a port as they are written together. */
export const endpoint = (ip, port) => (ip.includes(':') ? `[${ip}]:${port}` : `${ip}:${port}`);
