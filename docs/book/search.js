// search.js lists the parts of pages that have all typed words, each with the text around the first
// typed word. The index (index.js) is a file of the book, so search needs no network. search.js
// also has the switch between light and dark.
(() => {                                           // hides these names from other scripts
  const input = document.getElementById('search'), found = document.getElementById('found');
  const escape = text =>
      text.replace(/[&<>]/g, c => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;' })[c]);

  function snippet(text, words) {
    const lower = text.toLowerCase(), place = Math.max(0, lower.indexOf(words[0]) - 60);
    let piece = escape(text.slice(place, place + 160));
    for (const w of words)
      piece = piece.replace(
          new RegExp(w.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'), 'gi'), '<mark>$&</mark>');
    return (place > 0 ? '… ' : '') + piece + ' …';
  }
  function search() {
    const words = input.value.toLowerCase().split(/\s+/).filter(w => w.length > 1);
    found.replaceChildren();
    found.hidden = words.length === 0;
    if (found.hidden) return;
    const hits = BOOK.filter(
        part => words.every(w => `${part.title} ${part.text}`.toLowerCase().includes(w)));
    const score = part => words.filter(w => part.title.toLowerCase().includes(w)).length -
        (part.url.includes('.c.html') ? 0.5 : 0);
    hits.sort((a, b) => score(b) - score(a));
    for (const part of hits.slice(0, 20)) {
      const item = document.createElement('li'), link = document.createElement('a'),
            words_around = document.createElement('span');
      link.href = document.body.dataset.root + part.url;
      link.textContent = part.title;
      words_around.innerHTML = snippet(part.text, words);
      item.append(link, words_around);
      found.append(item);
    }
    if (hits.length === 0) found.textContent = 'nothing has all these words';
  }
  input.addEventListener('input', search);
  document.addEventListener('keydown', e => {
    if (e.key === 'Escape') { input.value = ''; search(); input.blur(); }
    if (e.key === '/' && !/INPUT|SELECT|TEXTAREA/.test(e.target.tagName)) {
      e.preventDefault();
      input.focus();
    }
  });
  document.getElementById('look').addEventListener('click', () => {
    const root = document.documentElement,
          dark = matchMedia('(prefers-color-scheme: dark)').matches;
    const now = root.dataset.look || (dark ? 'dark' : 'light');
    root.dataset.look = now === 'dark' ? 'light' : 'dark';
    try {
      localStorage.setItem('look', root.dataset.look);
    } catch (e) { /* private */
    }
  });
})();
