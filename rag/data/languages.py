"""Languages of questions that a model's vocabulary does not know, by rule.

A script is recognised by its letters; German, French, Spanish, Italian, Portuguese and Dutch by a question
word and one more of their commonest words. A vocabulary knows a script if enough of its tokens are written in
it, and one of these languages if it has most of these words whole. Byte-level vocabularies (BART, GPT-2) hide
their letters; nothing is stated about them.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

_MANY_TOKENS = 600  # of a script that a vocabulary knows; bert-base-uncased has 488 CJK tokens, 86 Cyrillic
_ENGLISH = frozenset(
    ["who", "what", "when", "where", "which", "why", "how", "whose", "whom", "did", "does", "the", "are"]
)
_QUESTION_WORDS = {
    "German": "wer was wann wo warum wie welche welcher welches woher wohin wieviel wieviele",
    "French": "qui que quoi quand où pourquoi comment combien quel quelle quels quelles",
    "Spanish": "quién quiénes qué cuándo dónde cómo cuánto cuántos cuántas cuál cuáles",
    "Italian": "chi che quando dove perché come quanto quanti quante quale quali",
    "Portuguese": "quem que quando onde como quanto quantos quantas qual quais",
    "Dutch": "wie wat wanneer waar waarom hoe hoeveel welke welk",
}
_COMMON_WORDS = {
    "German": "der die das den dem ein eine ist sind war wurde wurden hat und von im nicht es für liegt",
    "French": "le la les des du un une est sont était a été dans et sur il elle pour avec se",
    "Spanish": "el la los las del un una es son fue está en y por se para con de",
    "Italian": "il lo la gli le del della di un una è sono fu era nel nella ha si per con",
    "Portuguese": "o os as do da dos das um uma é são foi está em no na não se de",
    "Dutch": "de het een is zijn was werd heeft van in op niet er voor met ligt",
}


def language_of(text: str) -> str:
    """The language or script of a question; "" for English and what is not recognised.

    Example:
        >>> [language_of(q) for q in ("Wo beginnt die Donau?", "Где начинается Дунай?", "Who was El Cid?")]
        ['German', 'Cyrillic', '']
    """
    scripts = Counter(_script(char) for char in text if char.isalpha())
    if not scripts:
        return ""
    script = scripts.most_common(1)[0][0]
    if script != "LATIN":
        return {"CJK": "Chinese or Japanese", "HIRAGANA": "Chinese or Japanese"}.get(script, script.title())
    words = Counter(re.findall(r"\w+", unicodedata.normalize("NFC", text.lower())))
    if _ENGLISH & words.keys():
        return ""
    matches = {
        name: sum(words[word] for word in _COMMON_WORDS[name].split())
        for name, asked in _QUESTION_WORDS.items()
        if words.keys() & set(asked.split())
    }
    name = max(matches, key=lambda one: matches[one], default="")
    return name if name and matches[name] else ""


def knows(vocabulary: Collection[str], language: str) -> bool:
    """Whether a model with these tokens can know a language of `language_of`.

    Example:
        >>> knows(["who", "##se", "[UNK]"], "German"), knows(["wer", "welche", "wurde", "Ġthe"], "Cyrillic")
        (False, True)
    """
    if any(token.startswith("Ġ") for token in vocabulary):  # byte-level
        return True
    pieces = {_plain(token) for token in vocabulary}
    if language in _QUESTION_WORDS:
        words = {_plain(word) for word in f"{_QUESTION_WORDS[language]} {_COMMON_WORDS[language]}".split()}
        long = {word for word in words if len(word) > 3}
        return 2 * len(long & pieces) >= len(long)
    script = "CJK" if language.startswith("Chinese") else language.upper()
    return sum(1 for piece in pieces if piece and _script(piece[0]) == script) >= _MANY_TOKENS


class LanguageNotices:
    """States which models of a pipeline do not know the language of a question.

    Args:
        models: by name; a vocabulary is looked for in each, and in what it searches with.
    """

    def __init__(self, models: Mapping[str, Any]) -> None:
        self._models = dict(models)
        self._notices: dict[str, str] = {"": ""}  # by language

    def __call__(self, question: str) -> str:
        """A clause, or "" where every model may know the language."""
        language = language_of(question)
        if language not in self._notices:
            vocabularies = {name: _vocabulary(model) for name, model in self._models.items()}
            without = [
                name for name, tokens in vocabularies.items() if tokens and not knows(tokens, language)
            ]
            models = " and the ".join(without) + (" do" if len(without) > 1 else " does")
            text = f"the question seems to be in {language}, which the {models} not know"
            self._notices[language] = text if without else ""
        return self._notices[language]


def _vocabulary(model: Any) -> Collection[str]:
    """Tokens of a model, or of the encoder that a retriever asks with; empty if there are none to see."""
    if hasattr(model, "vocabulary"):
        return model.vocabulary
    tokenizer: Any = getattr(model, "tokenizer", None)
    if hasattr(tokenizer, "get_vocab"):
        return tokenizer.get_vocab()
    parts = [getattr(model, name, None) for name in ("encoder", "dense", "first")]
    found = (_vocabulary(part) for part in (*parts, *getattr(model, "members", ())) if part is not None)
    return next(filter(None, found), ())


def _plain(token: str) -> str:
    """A token without the mark of its place in a word and without accents."""
    bare = unicodedata.normalize("NFD", token.removeprefix("##").removeprefix("▁").lower())
    return "".join(char for char in bare if not unicodedata.combining(char))


def _script(char: str) -> str:
    """Script of a letter, by the first word of its Unicode name."""
    return unicodedata.name(char, "").partition(" ")[0]
