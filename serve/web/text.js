// Text and numbers: code points, highlights, confidence in words. No DOM in this file.
import { hasWords, language, number, words } from "./words.js";

// Offsets from the server count Unicode code points; strings here count UTF-16 units, of which characters
// beyond the Basic Multilingual Plane take two. Cutting an array of code points cuts in the right place.
export function splitBySpans(text, spans) {
  const points = Array.from(text);
  const usable = [];
  for (const span of spans) {  // best first: a later span that touches an earlier one is dropped
    const { start, end } = span;
    const isInside = Number.isInteger(start) && Number.isInteger(end) && 0 <= start && start < end && end <= points.length;
    if (isInside && usable.every((other) => end <= other.start || start >= other.end)) usable.push(span);
  }
  usable.sort((a, b) => a.start - b.start);
  const parts = [];
  let at = 0;
  for (const span of usable) {
    if (span.start > at) parts.push({ text: points.slice(at, span.start).join(""), span: null });
    parts.push({ text: points.slice(span.start, span.end).join(""), span });
    at = span.end;
  }
  if (at < points.length) parts.push({ text: points.slice(at).join(""), span: null });
  return parts;
}

// Headers hold bytes, written as one character each; the server reads them as UTF-8.
export function asHeader(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

// An id or a path within an address: slashes stay.
export function asPath(text) {
  return text.split("/").map(encodeURIComponent).join("/");
}

// Two shelves may have a passage of one id.
export function keyOf({ passage_id: id, shelf }) {
  return shelf ? `${shelf}/${id}` : id;
}

export function isAnswered(result) {
  return result.certainty !== "none";
}

// The words for a result: heading, name of a guess, and the reason where its text is no answer.
export function wordingOf(result) {
  const kind = result.kind === "passage" ? "passage" : "answer";
  const part = (name) => hasWords(`${kind}.${result.certainty}.${name}`) ? words(`${kind}.${result.certainty}.${name}`) : "";
  return { heading: part("heading"), guess: part("guess"), reason: part("reason") };
}

export function percent(probability) {
  const value = Math.round(probability * 100);
  if (value < 1) return words("under_one");
  if (value > 99) return words("over_99");
  return `${value} %`;
}

export function inWords(probability) {
  if (probability >= 0.9) return words("sure.certain");
  if (probability >= 0.5) return words("sure.likely");
  return words("sure.guess");
}

// "given" is "answers" or "verdicts".
export function promiseInWords({ max_error: error, max_false_answers: falseAnswers, confidence, coverage, n }, given) {
  const share = (value) => `${(100 * value).toLocaleString(language, { maximumFractionDigits: 2 })} %`;
  const fitted = words(`promise.${given}.fitted`, { confidence: share(confidence), coverage: percent(coverage), n: number(n) });
  if (falseAnswers === undefined) return words(`promise.${given}`, { error: share(error), fitted });
  return words("promise.false_answers", { error: share(error), false_answers: share(falseAnswers), fitted });
}

export function milliseconds(value) {
  if (value >= 1000) return `${number(value / 1000, 1)} s`;
  return `${number(value, value < 10 ? 1 : 0)} ms`;
}

// One card a passage, in the order of the best answer found in it. Passages that the first answer cites have its numbers.
export function cardsOf(answers) {
  const cards = new Map();
  answers.forEach((answer, rank) => {
    const cited = answer.citations ?? [];
    for (const passage of [...cited, answer.evidence]) {
      const { passage_id: id, shelf, title, text, score, location, start, end } = passage;
      const key = keyOf(passage), number = rank === 0 && cited.includes(passage) ? cards.size + 1 : 0;
      if (!cards.has(key)) cards.set(key, { key, number, id, shelf, title, text, score, location, spans: [] });
      cards.get(key).spans.push({ start, end, rank });
    }
  });
  return [...cards.values()];
}

// A passage of a path: the answer if it stands there, and around it the sentences that support it; the question that it answers in a comparison.
export function stepOf({ passage_id: id, shelf, title, text, score, location, start, end, supporting = [], question }) {
  const spans = Number.isInteger(start) ? [{ start, end, kind: "best" }] : [];
  for (const [from, to] of supporting) {
    const pieces = spans.length ? [[from, Math.min(to, start)], [Math.max(from, end), to]] : [[from, to]];
    for (const [a, b] of pieces) if (a < b) spans.push({ start: a, end: b, kind: "support" });
  }
  return { key: keyOf({ passage_id: id, shelf }), id, shelf, title, text, score, location, spans, question };
}

// The file a passage stands in, and the page where the file has pages.
export function placeOf({ path, page }) {
  if (!page) return path;
  return /\.ppt[xm]$/i.test(path) ? words("place.slide", { path, page }) : words("place.page", { path, page });
}
