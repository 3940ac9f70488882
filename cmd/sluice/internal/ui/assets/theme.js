// SPDX-License-Identifier: Apache-2.0

// Runs before the first paint, so that a page in the dark does not flash.
(() => {
  const chosen = localStorage.getItem('sluice-theme');
  if (chosen === 'light' || chosen === 'dark') {
    document.documentElement.dataset.theme = chosen;
  }
})();
