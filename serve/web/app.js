// The page: one question box, one result. Whatever comes from the server is inserted as text, never as markup.
// Addresses are relative, so that a proxy may serve it below any path.
import { asHeader, asPath, cardsOf, inWords, isAnswered, keyOf, milliseconds, percent, placeOf, promiseInWords, splitBySpans, stepOf, wordingOf } from "./text.js";
import { verdictBlocks, verdictsInShort } from "./verdicts.js";
import { counted, fillWords, number, words } from "./words.js";

const MAX_RECENT = 6;
const MAX_ADDRESS = 4000;  // characters: longer ones are refused when they are loaded again
const LONG = 120;  // characters from which an answer is set in small type
const byId = (id) => document.getElementById(id);
const form = byId("form"), input = byId("question"), keyInput = byId("key"), results = byId("results");
const shelfInput = byId("shelf");  // shown only where there are several shelves
const folderInput = byId("folder");  // shown only where the files of the index lie in folders
const uploadButton = byId("upload"), uploadInput = byId("upload-files"), uploadNote = byId("upload-note");
const tabs = { ask: byId("tab-ask"), verify: byId("tab-verify") };
const recent = [];
let tab = "ask";
let running = null;  // AbortController of the request under way
let corpus = {};  // size, folders, whether files are served, feedback is kept, a key is needed

function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);  // strings become text nodes
  return element;
}

// Text of others, which may run the other way than the words around it.
function foreign(tag, className, ...children) {
  const element = make(tag, className, ...children);
  element.dir = "auto";
  return element;
}

function button(text, onClick, className = "") {
  const element = make("button", className, text);
  element.type = "button";
  element.addEventListener("click", onClick);
  return element;
}

function show(...children) {
  results.replaceChildren(...children);
}

function announce(text) {
  byId("status").textContent = text;
}

// --- asking ---------------------------------------------------------------------------------------------

class RequestError extends Error {
  constructor({ code = "", message, hint = "", request_id = "" }, waitS = 0) {
    super(message);  // hints for programs are replaced by what a person can do
    if (code === "unauthorized") hint = words("error.unauthorized");
    else if (waitS) hint = words("error.wait", { seconds: waitS });
    Object.assign(this, { code, hint, requestId: request_id });
  }
}

function keyHeaders() {
  return keyInput.value ? { "X-API-Key": asHeader(keyInput.value) } : {};
}

async function post(path, value, signal) {
  const isForm = value instanceof FormData;  // for which the browser sets the type
  const headers = { ...keyHeaders(), ...(isForm ? {} : { "Content-Type": "application/json" }) };
  return request(path, { method: "POST", headers, body: isForm ? value : JSON.stringify(value), signal });
}

async function request(path, options) {
  const response = await fetched(path, options);
  const value = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });
  if (response.ok && value) return value;
  const error = value?.error ?? { message: words("error.unknown", { status: response.status }) };
  throw new RequestError(error, Number(response.headers.get("Retry-After")));
}

async function fetched(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError({ code: "unreachable", message: words("error.unreachable"), hint: words("error.unreachable.hint") });
  }
}

// Asks the question, or verifies the claims, by the tab that is open.
async function send(text) {
  running?.abort();
  const controller = running = new AbortController();
  showLoading();
  try {
    const within = folderInput.value ? { filter: { path: folderInput.value } } : {};
    if (shelfInput.value) within.shelf = shelfInput.value;
    await (tab === "verify" ? verify : ask)(text, within, controller.signal);
  } catch (error) {
    if (error.name !== "AbortError") showError(error, text);
  } finally {
    if (running === controller) {
      running = null;
      results.setAttribute("aria-busy", "false");
    }
  }
}

async function ask(question, within, signal) {
  const result = await post("v1/ask", { question, ...within }, signal);
  let passages = [];
  if (result.answers.length === 0) {
    passages = (await post("v1/retrieve", { question, top_k: 5, ...within }, signal)).hits;
  }
  showResult(result, passages);
  remember(question);
}

async function verify(text, within, signal) {
  const { results: verdicts } = await post("v1/verify", { text, ...within }, signal);
  show(...verdictBlocks(verdicts, { make, foreign, capital, passageCard }));
  showTimings(verdicts[0]);
  announce(verdictsInShort(verdicts));
}

// --- states ---------------------------------------------------------------------------------------------

function showLoading() {
  results.setAttribute("aria-busy", "true");
  byId("examples").hidden = true;
  byId("timings").textContent = "";
  const lines = make("div", "skeleton", make("i"), make("i"), make("i"));
  lines.setAttribute("aria-hidden", "true");
  show(make("div", "panel", make("p", "eyebrow", words("searching")), lines));
  announce(words("searching"));
}

function showResult(result, passages) {
  show(...blocksOf(result, passages));
  showTimings(result);
  announce(inShort(result));
}

function showTimings(result) {
  const stages = Object.entries(result.timings_ms).map(([stage, value]) => `${stage.replaceAll("_", " ")} ${milliseconds(value)}`);
  const read = result.reading ? [words("passages_read", { n: number(result.reading.passages) })] : [];
  byId("timings").textContent = [words("index", { version: result.index_version }), ...stages, ...read].join("  ·  ");
}

function inShort(result) {
  const { heading, reason } = wordingOf(result);
  if (!isAnswered(result)) return heading;
  const { text, confidence: probability } = result.answers[0];
  return reason ? words("short", { heading, text }) : words("short.sure", { heading, text, share: percent(probability) });
}

// A result: the answer, other possibilities, and the evidence.
function blocksOf(result, passages) {
  const answered = isAnswered(result), bears = result.kind === "passage";
  const path = answered ? (result.answers[0].path ?? []).map(stepOf) : [];
  const candidates = result.answers.length ? cardsOf(result.answers) : passages.map(asCard);
  const cards = candidates.filter((card) => path.every((step) => step.key !== card.key));
  const blocks = [panelOf(result)];
  if (result.notice) blocks.push(make("p", "fine notice", `${capital(result.notice)}.`));
  if (result.promise) blocks.push(make("p", "fine promise", words("promised", { promise: promiseInWords(result.promise, "answers") })));
  if (path.length) blocks.push(steps(path));
  if (answered && !bears && result.answers.length > 1) blocks.push(alternatives(result.answers.slice(1)));
  if (cards.length) blocks.push(evidence(cards, answered));
  return blocks;
}

function panelOf(result) {
  if (!isAnswered(result)) return noAnswerPanel(result);
  return result.kind === "passage" ? bearingPanel(result) : answerPanel(result);
}

function showError(error, question) {
  const retry = button(words("error.retry"), () => send(question), "primary");
  const panel = make("div", "panel error", make("p", "eyebrow", words("error.heading")), make("h2", "", capital(error.message)));
  if (error.hint) panel.append(make("p", "", `${capital(error.hint)}.`));
  if (error.requestId) panel.append(make("p", "fine", words("error.request", { id: error.requestId })));
  panel.append(retry);
  show(panel);
  announce(words("error", { message: error.message }));
  if (error.code === "unauthorized") {
    byId("key-row").hidden = false;
    keyInput.focus();
  }
}

function showStart() {
  show();
  announce("");
  byId("timings").textContent = "";
  byId("examples").hidden = tab === "verify" || byId("examples").querySelector("li") === null;
}

function openTab(name) {
  tab = name;
  for (const [each, element] of Object.entries(tabs)) element.setAttribute("aria-pressed", String(each === name));
  byId("question-label").textContent = words(`label.${name}`);
  input.placeholder = words(`placeholder.${name}`);
  byId("send").textContent = words(`tab.${name}`);
}

// --- parts ----------------------------------------------------------------------------------------------

function answerPanel(result) {
  const best = result.answers[0];
  const isLong = result.kind === "list" || best.text.length > LONG;
  const text = foreign("p", isLong ? "answer long" : "answer", ...worded(best));
  const panel = make("div", "panel", make("h2", "eyebrow", wordingOf(result).heading), text, confidence(best.confidence));
  const { title, start, supporting } = best.evidence;
  // The winner of a comparison is named as in the question.
  const byModel = start === null && !supporting ? words("worded") : "";
  if (title) panel.append(make("p", "fine", ...from(title), byModel && ` · ${byModel}`));
  else if (byModel) panel.append(make("p", "fine", byModel));
  if (best.note) panel.append(make("p", "fine note", words("beware", { note: best.note })));
  if (corpus.feedback) panel.append(judging(result.question, best));
  return panel;
}

// The words of an answer; behind each sentence stand the numbers of the passages that it cites, which lead to them.
function worded({ text, citations = [], sentences = [{ text, citations: citations.map((cited) => cited.passage_id) }] }) {
  if (citations.length === 0) return [text];
  const mark = (id) => {
    const at = citations.findIndex((cited) => cited.passage_id === id);
    return button(`[${at + 1}]`, () => visit(keyOf(citations[at])), "cited");
  };
  return sentences.flatMap((sentence) => [`${sentence.text} `, ...(sentence.citations ?? []).map(mark), " "]);
}

function from(title) {
  return [`${words("from")} `, foreign("cite", "", title)];
}

// Of the two buttons "right" is sent at once, "wrong" asks for a better answer first, which may stay empty.
function judging(question, { text: answer, evidence: { passage_id, shelf } }) {
  const row = make("div", "feedback");
  const tell = (text) => {
    row.replaceChildren(make("p", "fine", text));
    announce(text);
  };
  const send = async (judgement) => {
    try {
      await post("v1/feedback", { question, answer, passage_id, shelf, ...judgement });
      tell(words("feedback.kept"));
    } catch (error) {
      tell(words("feedback.failed", { reason: error.message }));
    }
  };
  const askForBetter = () => {
    const better = foreign("input");
    better.setAttribute("aria-label", words("feedback.better"));
    better.placeholder = words("feedback.better");
    const box = make("form", "box", better, make("button", "", words("feedback.send")));
    box.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = better.value.trim();
      send({ verdict: "wrong", ...(text && { better_answer: text }) });
    });
    row.replaceChildren(box);
    better.focus();
  };
  const up = button(words("feedback.right"), () => send({ verdict: "right" })), down = button(words("feedback.wrong"), askForBetter);
  up.setAttribute("aria-label", words("feedback.right.label"));
  down.setAttribute("aria-label", words("feedback.wrong.label"));
  row.append(up, down);
  return row;
}

// The question asks for yes or no, and the reader cannot tell.
function bearingPanel(result) {
  const { text, confidence: probability, evidence: { title } } = result.answers[0];
  const { heading, reason } = wordingOf(result);
  return make(
    "div", "panel", make("h2", "eyebrow", heading), foreign("blockquote", "bearing", text), confidence(probability),
    ...(title ? [make("p", "fine", ...from(title))] : []),
    make("p", "fine", `${reason}.`),
  );
}

function noAnswerPanel(result) {
  const { heading, guess } = wordingOf(result);
  const best = result.answers[0];
  const reason = result.promise && best
    ? `${words("withheld")}.`
    : words("nothing", { share: percent(result.no_answer_confidence) });
  const panel = make("div", "panel no-answer", make("h2", "answer", heading), make("p", "", reason));
  if (best) panel.append(make("p", "fine", `${guess}: `, foreign("q", "guess", best.text), ` — ${words("guess.sure", { share: percent(best.confidence) })}.`));
  return panel;
}

function confidence(probability) {
  const fill = make("span", "fill");
  fill.style.width = `${Math.max(1, Math.min(100, probability * 100))}%`;
  const bar = make("span", "bar", fill);
  bar.setAttribute("role", "meter");
  bar.setAttribute("aria-label", words("confidence"));
  bar.setAttribute("aria-valuemin", "0");
  bar.setAttribute("aria-valuemax", "100");
  bar.setAttribute("aria-valuenow", String(Math.round(probability * 100)));
  const sureness = words("sure", { share: percent(probability), words: inWords(probability) });
  bar.setAttribute("aria-valuetext", sureness);
  return make("p", "confidence", bar, make("span", "words", sureness));
}

function alternatives(answers) {
  const list = make("ol", "alternatives");
  for (const answer of answers) {
    const link = button(answer.text, () => visit(keyOf(answer.evidence)));
    link.dir = "auto";
    list.append(make("li", "", link, make("span", "fine", percent(answer.confidence))));
  }
  return make("section", "", make("h2", "eyebrow", words("others")), list);
}

function evidence(cards, answered) {
  const section = make("section", "evidence", make("h2", "eyebrow", answered ? words("evidence") : words("closest")));
  cards.forEach((card) => section.append(passageCard(card, answered)));
  return section;
}

function steps(path) {
  const compared = path.some((step) => step.question);
  const list = make("ol", compared ? "path" : "path hops");
  for (const step of path) {
    const asked = step.question ? [foreign("p", "fine", step.question)] : [];
    list.append(make("li", "", ...asked, passageCard(step, true)));
  }
  return make("section", "evidence", make("h2", "eyebrow", words("path")), list);
}

function passageCard(card, answered) {
  const text = foreign("p", "passage");
  for (const part of splitBySpans(card.text, card.spans)) {
    if (part.span === null) text.append(part.text);
    else text.append(make("mark", part.span.kind ?? (answered && part.span.rank === 0 ? "best" : "other"), part.text));
  }
  const title = foreign("h3", "", card.number ? `[${card.number}] ` : "", card.title || card.id);
  const article = make(
    "article", "card", make("div", "head", title, make("span", "fine", words("score", { score: number(card.score, 3) }))),
    text, make("p", "fine id", card.location ? place(card.location) : words("passage", { id: card.id })),
  );
  if (card.shelf) article.append(make("p", "fine shelf", words("shelf.of", { shelf: card.shelf })));
  if (card.location) article.append(neighbours(card, text));
  article.dataset.passage = card.key;
  article.tabIndex = -1;
  return article;
}

// Where a passage stands: a link to the file, if the server shows the files of this index.
function place(where) {
  if (!corpus.files || where.path.includes("://")) return placeOf(where);
  const link = make("a", "", placeOf(where));
  const query = new URLSearchParams(where.page && { page: where.page });
  link.href = `v1/files/${asPath(where.path)}?${query}`;
  link.target = "_blank";
  link.rel = "noopener";
  if (corpus.needs_key) {  // a link cannot send the key
    link.addEventListener("click", (event) => {
      event.preventDefault();
      fetchFile(link, where);
    });
  }
  return link;
}

// Text and PDF are opened, which run no scripts of the file; all else is downloaded.
async function fetchFile(link, { path }) {
  const name = path.split("/").at(-1);
  try {
    const response = await fetched(link.href, { headers: keyHeaders() });
    if (!response.ok) throw new RequestError((await response.json()).error);
    const content = await response.blob(), kind = content.type.split(";")[0];
    const place = URL.createObjectURL(content);
    const page = new URL(response.url).searchParams.get("number");  // the fragment of a redirect is not seen here
    const copy = make("a");
    copy.href = page ? `${place}#page=${page}` : place;
    if (kind === "application/pdf" || kind === "text/plain") {
      Object.assign(copy, { target: "_blank", rel: "noopener" });
    } else copy.download = name;
    copy.click();
    setTimeout(() => URL.revokeObjectURL(place), 60_000);
    announce(copy.download ? words("file.downloaded", { name }) : words("file.opened", { name }));
  } catch (error) {
    link.after(make("span", "", ` – ${error.message}`));
    announce(words("error", { message: error.message }));
  }
}

// What stands before and after the passage in its file, loaded when it is asked for.
function neighbours(card, text) {
  const more = button(words("around"), async () => {
    more.disabled = true;
    try {
      const shelf = card.shelf ? `&shelf=${encodeURIComponent(card.shelf)}` : "";
      const value = await request(`v1/passages/${asPath(card.id)}?around=1${shelf}`, { headers: keyHeaders() });
      text.before(...value.before.map(around));
      text.after(...value.after.map(around));
      more.remove();
      announce(value.before.length + value.after.length ? words("around.shown") : words("around.nothing"));
    } catch (error) {
      more.disabled = false;
      announce(words("error", { message: error.message }));
    }
  }, "around");
  return more;
}

function around({ text, title }) {
  const shown = foreign("p", "passage near", text);
  shown.title = title;
  return shown;
}

function asCard(hit) {
  return { key: keyOf(hit), id: hit.passage_id, shelf: hit.shelf, title: hit.title, text: hit.text, score: hit.score, location: hit.location, spans: [] };
}

function visit(key) {
  const card = [...results.querySelectorAll(".card")].find((element) => element.dataset.passage === key);
  card?.scrollIntoView({ block: "center" });
  card?.focus({ preventScroll: true });
}

function capital(text) {
  const [first = "", ...rest] = Array.from(text);
  return first.toUpperCase() + rest.join("");
}

// --- questions to choose from ---------------------------------------------------------------------------

function fillChips(id, questions) {
  const chips = questions.map((question) => {
    const chip = button(question, () => choose(question));
    chip.dir = "auto";
    return make("li", "", chip);
  });
  byId(id).querySelector("ul").replaceChildren(...chips);
  byId(id).hidden = questions.length === 0;
}

function choose(question) {
  openTab("ask");
  input.value = question;
  form.requestSubmit();
}

function remember(question) {
  const place = recent.indexOf(question);
  if (place >= 0) recent.splice(place, 1);
  recent.unshift(question);
  recent.length = Math.min(recent.length, MAX_RECENT);
  fillChips("recent", recent.slice(1));
}

// --- adding files ---------------------------------------------------------------------------------------

function showUploads() {
  byId("upload-row").hidden = !corpus.needs_key || !keyInput.value;
  const lacksShelf = (corpus.shelves ?? []).length > 1 && !shelfInput.value;
  uploadButton.disabled = Boolean(corpus.read_only) || lacksShelf;
  const refusal = corpus.read_only ? words("upload.refused", { reason: corpus.read_only }) : "";
  uploadNote.textContent = refusal || (lacksShelf ? words("upload.shelf") : "");
}

// The tab keeps the key, so that a reload does not ask for it again; a key that is accepted shows the folders.
keyInput.addEventListener("change", async () => {
  sessionStorage.setItem("key", keyInput.value);
  await loadCorpus().catch(() => {});
  fillFolders(folderInput.value);
  fillShelves(shelfInput.value);
  showUploads();
});
keyInput.addEventListener("input", showUploads);

uploadButton.addEventListener("click", () => uploadInput.click());

uploadInput.addEventListener("change", async () => {
  const sent = new FormData();
  for (const file of uploadInput.files) sent.append("file", file);
  const tell = (text) => {
    uploadNote.textContent = text;
    announce(text);
  };
  uploadButton.disabled = true;
  tell(counted("upload.running", uploadInput.files.length));
  try {
    const shelf = shelfInput.value ? `&shelf=${encodeURIComponent(shelfInput.value)}` : "";
    const { documents, unreadable = [], notes = [] } = await post(`v1/documents?wait=true${shelf}`, sent);
    const added = documents.map(({ id, passages }) => `${id} (${counted("passages", passages)})`);
    const lost = unreadable.length ? [words("upload.not_added", { files: unreadable.join("; ") })] : [];
    tell([words("upload.added", { documents: added.join(", ") }), ...lost, ...notes].join(". "));
    await loadCorpus();
    showTagline();
  } catch (error) {
    tell(`${words("upload.failed", { reason: error.message })}${error.hint ? ` ${capital(error.hint)}.` : ""}`);
  } finally {
    uploadButton.disabled = false;
    uploadInput.value = "";  // the same file may be chosen again
  }
});

// --- address, keyboard, start ---------------------------------------------------------------------------

function address(question) {
  const parts = question || tab === "verify" ? [`${tab === "verify" ? "verify" : "q"}=${encodeURIComponent(question)}`] : [];
  if (shelfInput.value) parts.push(`shelf=${encodeURIComponent(shelfInput.value)}`);
  if (folderInput.value) parts.push(`folder=${encodeURIComponent(folderInput.value)}`);
  return parts.length ? `${location.pathname}?${parts.join("&")}` : location.pathname;
}

function fromAddress() {
  const parameters = new URLSearchParams(location.search);
  openTab(parameters.has("verify") ? "verify" : "ask");
  const question = (parameters.get("verify") ?? parameters.get("q") ?? "").trim();
  showTagline();
  fillFolders(parameters.get("folder") ?? "");
  fillShelves(parameters.get("shelf") ?? "");
  input.value = question;
  document.title = question ? words("title.question", { question }) : words("title");
  if (question) send(question);
  else {
    running?.abort();
    showStart();
  }
}

// What an address names is asked for, also where the server does not list it, and then says so.
function offer(select, value) {
  if ([...select.options].every((option) => option.value !== value)) select.append(new Option(value));
  select.value = value;
}

function showTagline() {
  const size = corpus.n_passages;
  if (size) byId("tagline").textContent = counted("tagline.size", size);
}

function fillFolders(chosen) {
  const folders = corpus.folders ?? [];
  folderInput.replaceChildren(new Option(words("folder.all"), ""), ...folders.map((folder) => new Option(folder)));
  offer(folderInput, chosen);
  byId("folder-row").hidden = folderInput.options.length < 2;
}

function fillShelves(chosen) {
  const shelves = corpus.shelves ?? [];
  shelfInput.replaceChildren(new Option(words("shelf.all"), ""), ...shelves.map((shelf) => new Option(shelf)));
  offer(shelfInput, chosen);
  byId("shelf-row").hidden = shelfInput.options.length < 3;
  showUploads();
}

shelfInput.addEventListener("change", () => {
  showUploads();
  if (input.value.trim()) form.requestSubmit();
});

folderInput.addEventListener("change", () => {
  if (input.value.trim()) form.requestSubmit();
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const question = input.value.trim();
  if (!question) {
    input.focus();
    announce(words(`empty.${tab}`));
    return;
  }
  const place = address(question);
  // An address of the browser writes some characters in its way, such as apostrophes.
  const isNew = new URL(place, location.href).href !== location.href;
  if (isNew && place.length <= MAX_ADDRESS) history.pushState(null, "", place);
  document.title = words("title.question", { question });
  send(question);
});

for (const [name, element] of Object.entries(tabs)) {
  element.addEventListener("click", () => {
    openTab(name);
    history.pushState(null, "", address(""));
    fromAddress();
    input.focus();
  });
}

document.addEventListener("keydown", (event) => {
  const isTyping = event.target instanceof HTMLInputElement;
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    input.focus();
    input.select();
  } else if (event.key === "Escape" && !event.isComposing) {
    if (location.search) history.pushState(null, "", address(""));
    fromAddress();
    input.focus();
  }
});

window.addEventListener("popstate", fromAddress);

async function loadCorpus() {
  corpus = await (await fetch("page.json", { headers: keyHeaders() })).json();
}

async function start() {
  try {
    keyInput.value = sessionStorage.getItem("key") ?? "";
    await loadCorpus();
    showUploads();
    fillChips("examples", corpus.examples);
    byId("key-row").hidden = !corpus.needs_key;
    showTagline();
    fillFolders(folderInput.value);
    fillShelves(shelfInput.value);
  } catch {
    // the page works without these; asking will say what is wrong
  }
  byId("examples").hidden ||= results.childElementCount > 0;
  if (!input.value) fromAddress();  // what was typed while the page started stays
  if (!input.value && !matchMedia("(pointer: coarse)").matches) input.focus();
}

fillWords();
openTab(tab);
start();
