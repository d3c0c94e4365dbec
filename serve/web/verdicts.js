// Verdicts on claims: a panel each, the passage that decides with its sentence lit, and the other passages.
import { inWords, percent, promiseInWords, stepOf } from "./text.js";

const LABELS = {
  supported: "Supported", refuted: "Refuted", not_enough: "Not enough to tell", not_judged: "Not judged",
};

// The second argument has parts of the page.
export function verdictBlocks(verdicts, { make, capital, passageCard }) {
  return verdicts.map((verdict) => {
    const claim = make("p", "claim", verdict.claim);
    claim.dir = "auto";
    const panel = make("div", `panel verdict ${verdict.label}`, make("h2", "eyebrow", LABELS[verdict.label]), claim);
    if (verdict.probabilities) panel.append(make("p", "words", sureness(verdict)));
    if (verdict.notice) panel.append(make("p", "fine", `${capital(verdict.notice)}.`));
    if (verdict.promise) panel.append(make("p", "fine promise", `Promised: ${promiseInWords(verdict.promise)}.`));
    const block = make("section", "evidence", panel);
    if (verdict.evidence) {
      block.append(passageCard(stepOf(verdict.evidence), true));
      const others = verdict.path.filter((step) => step.passage_id !== verdict.evidence.passage_id);
      if (others.length) {
        const more = make("details", "", make("summary", "fine", "Other passages that were judged"));
        more.append(...others.map((step) => passageCard(stepOf(step), true)));
        block.append(more);
      }
    }
    return block;
  });
}

export function verdictsInShort(verdicts) {
  return verdicts.map((verdict) => `${LABELS[verdict.label]}: ${verdict.claim}`).join(" ");
}

function sureness({ label, probabilities }) {
  const { [label]: own, ...rest } = probabilities;
  const others = Object.entries(rest).map(([name, share]) => `${LABELS[name].toLowerCase()} ${percent(share)}`);
  return `${percent(own)} sure, ${inWords(own)} (${others.join(", ")})`;
}
