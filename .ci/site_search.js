// Finds sections that hold every word, each once. A name of the API that is typed in full comes first; `entries`
// come with guides first, and of each kind titles go before texts.
function kind({ location }) {
  return location.startsWith("docs/api/") ? 2 : location.startsWith("docs/") ? 0 : 1;
}

function find(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const ranked = entries.flatMap((entry) => {
    const title = entry.title.toLowerCase(), text = entry.text.toLowerCase();
    if (!words.length || !words.every((word) => title.includes(word) || text.includes(word))) return [];
    return [{ entry, rank: 2 * kind(entry) + (words.every((word) => title.includes(word)) ? 0 : 1), at: text.indexOf(words[0]) }];
  });
  const isNamed = ({ entry }) => entry.location.toLowerCase().endsWith(`.${query.trim().toLowerCase()}`);
  for (const found of ranked) if (isNamed(found)) found.rank = -1;
  const seen = new Set();  // a page has an entry beside that of its first heading
  const isNew = ({ entry }) => {
    const key = `${entry.location.split("#")[0]} ${entry.title}`;
    return !seen.has(key) && seen.add(key);
  };
  return ranked.sort((a, b) => a.rank - b.rank).filter(isNew).slice(0, 30);  // a stable sort
}

// Whole words around the first one that was found.
function excerpt(text, at) {
  const start = at < 80 ? 0 : text.lastIndexOf(" ", at - 80) + 1;
  const end = text.indexOf(" ", start + 240);
  return text.slice(start, end < 0 ? undefined : end);
}

function show(query) {
  const results = document.getElementById("properdocs-search-results");
  results.replaceChildren(...find(query).map(({ entry, at }) => {
    const link = Object.assign(document.createElement("a"), { href: `${base_url}/${entry.location}`, textContent: entry.title });
    const part = Object.assign(document.createElement("p"), { textContent: excerpt(entry.text, at) });
    const item = document.createElement("article");
    item.append(link, part);
    return item;
  }));
  if (!results.childElementCount) results.textContent = query ? "Nothing found" : "";
}

document.addEventListener("input", ({ target }) => {  // the box stands below this script
  if (target.id === "properdocs-search-query") show(target.value);
});
