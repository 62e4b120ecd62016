// Search: pages and headings whose text has all the typed words. The index is a file of the book: no network.
const input = document.getElementById('search'), found = document.getElementById('found');
input.addEventListener('input', () => {
  const words = input.value.toLowerCase().split(/\s+/).filter(w => w.length > 1);
  found.replaceChildren();
  if (words.length === 0) return;
  const hits = BOOK.filter(part => words.every(w => part.text.includes(w)));
  hits.sort((a, b) => words.filter(w => b.title.toLowerCase().includes(w)).length -
                      words.filter(w => a.title.toLowerCase().includes(w)).length);
  for (const part of hits.slice(0, 20)) {
    const item = document.createElement('li'), link = document.createElement('a');
    link.href = document.body.dataset.root + part.url;
    link.textContent = part.title;
    item.append(link);
    found.append(item);
  }
});
