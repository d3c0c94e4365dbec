// Verdicts on claims: a panel each, the passage that decides with its sentence lit, and the other passages.
import { inWords, keyOf, percent, promiseInWords, stepOf } from "./text.js";
import { words } from "./words.js";

// The second argument has parts of the page.
export function verdictBlocks(verdicts, { make, foreign, capital, passageCard }) {
  return verdicts.map((verdict) => {
    const heading = make("h2", "eyebrow", words(`verdict.${verdict.label}`));
    const panel = make("div", `panel verdict ${verdict.label}`, heading, foreign("p", "claim", verdict.claim));
    if (verdict.probabilities) panel.append(make("p", "words", sureness(verdict)));
    if (verdict.notice) panel.append(make("p", "fine", `${capital(verdict.notice)}.`));
    if (verdict.promise) panel.append(make("p", "fine promise", words("promised", { promise: promiseInWords(verdict.promise, "verdicts") })));
    const block = make("section", "evidence", panel);
    if (verdict.evidence) {
      block.append(passageCard(stepOf(verdict.evidence), true));
      const others = verdict.path.filter((step) => keyOf(step) !== keyOf(verdict.evidence));
      if (others.length) {
        const more = make("details", "", make("summary", "fine", words("verdict.others")));
        more.append(...others.map((step) => passageCard(stepOf(step), true)));
        block.append(more);
      }
    }
    return block;
  });
}

export function verdictsInShort(verdicts) {
  return verdicts.map(({ label, claim }) => words("short", { heading: words(`verdict.${label}`), text: claim })).join(" ");
}

function sureness({ label, probabilities }) {
  const { [label]: own, ...rest } = probabilities;
  const others = Object.entries(rest).map(([name, share]) => `${words(`verdict.${name}`).toLowerCase()} ${percent(share)}`);
  return words("sure.of_several", { share: percent(own), words: inWords(own), others: others.join(", ") });
}
