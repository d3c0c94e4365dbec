// The words of the page in the language of the browser: one table of words for each language, and English for all others.
const LANGUAGES = ["en", "de"];
const preferred = navigator.language.split("-")[0];
export const language = LANGUAGES.includes(preferred) ? preferred : "en";
const table = await (await fetch(new URL(`./words.${language}.json`, import.meta.url))).json();

// The words of this name, with values in the places that stand in braces.
export function words(name, values = {}) {
  if (!(name in table)) console.error(`There are no words for ${name}`);
  return (table[name] ?? name).replace(/\{(\w+)\}/g, (_, value) => values[value]);
}

export function hasWords(name) {
  return name in table;
}

// The words for one, or for several.
export function counted(name, n) {
  return words(`${name}.${n === 1 ? "one" : "several"}`, { n: number(n) });
}

export function number(value, digits = 0) {
  return value.toLocaleString(language, { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// Puts words where the page names them: data-words for the text of an element, data-words-NAME for its attribute NAME.
export function fillWords() {
  document.documentElement.lang = language;
  for (const element of document.querySelectorAll("*")) {
    for (const { name, value } of [...element.attributes]) {
      if (name === "data-words") element.textContent = words(value);
      else if (name.startsWith("data-words-")) element.setAttribute(name.slice("data-words-".length), words(value));
    }
  }
  document.documentElement.style.setProperty("--hop", JSON.stringify(words("hop")));
}
