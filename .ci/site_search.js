// Finds sections that hold every word; `entries` come with guides first, and of each kind titles go before texts.
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
  return ranked.sort((a, b) => a.rank - b.rank).slice(0, 30);  // a stable sort
}

function show(query) {
  const results = document.getElementById("properdocs-search-results");
  results.replaceChildren(...find(query).map(({ entry, at }) => {
    const link = Object.assign(document.createElement("a"), { href: `${base_url}/${entry.location}`, textContent: entry.title });
    const part = Object.assign(document.createElement("p"), { textContent: entry.text.slice(Math.max(0, at - 80), at + 160) });
    const item = document.createElement("article");
    item.append(link, part);
    return item;
  }));
  if (!results.childElementCount) results.textContent = query ? "Nothing found" : "";
}

document.addEventListener("input", ({ target }) => {  // the box stands below this script
  if (target.id === "properdocs-search-query") show(target.value);
});
