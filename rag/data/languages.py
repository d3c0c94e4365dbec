"""Languages of texts: those with an analyser for BM25, and the language of a sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import regex

from rag.core.log import get_logger
from rag.core.optional import require

ENGLISH = "en"
AUTO = "auto"
_WORDS_AS_THEY_ARE = "standard.Standard"
# Chinese and Korean have no dictionary in the jar: their words are pairs of characters.
_PAIRS_OF_CHARACTERS = "cjk.CJK"
_NAMES = {
    "ar": "ar.Arabic",
    "bg": "bg.Bulgarian",
    "bn": "bn.Bengali",
    "ca": "ca.Catalan",
    "cs": "cz.Czech",
    "da": "da.Danish",
    "de": "de.German",
    "el": "el.Greek",
    "es": "es.Spanish",
    "et": "et.Estonian",
    "eu": "eu.Basque",
    "fa": "fa.Persian",
    "fi": "fi.Finnish",
    "fr": "fr.French",
    "ga": "ga.Irish",
    "gl": "gl.Galician",
    "he": _WORDS_AS_THEY_ARE,
    "hi": "hi.Hindi",
    "hr": _WORDS_AS_THEY_ARE,
    "hu": "hu.Hungarian",
    "hy": "hy.Armenian",
    "id": "id.Indonesian",
    "it": "it.Italian",
    "ja": "ja.Japanese",
    "ko": _PAIRS_OF_CHARACTERS,
    "lt": "lt.Lithuanian",
    "lv": "lv.Latvian",
    "ne": "ne.Nepali",
    "nl": "nl.Dutch",
    "no": "no.Norwegian",
    "pl": "morfologik.Morfologik",
    "pt": "pt.Portuguese",
    "ro": "ro.Romanian",
    "ru": "ru.Russian",
    "sk": _WORDS_AS_THEY_ARE,
    "sl": _WORDS_AS_THEY_ARE,
    "sq": _WORDS_AS_THEY_ARE,
    "sr": "sr.Serbian",
    "sv": "sv.Swedish",
    "ta": "ta.Tamil",
    "te": "te.Telugu",
    "th": _WORDS_AS_THEY_ARE,  # of `pairs_of_characters`
    "tr": "tr.Turkish",
    "uk": "uk.UkrainianMorfologik",
    "vi": _WORDS_AS_THEY_ARE,
    "zh": _PAIRS_OF_CHARACTERS,
}
ANALYZERS = {code: f"org.apache.lucene.analysis.{name}Analyzer" for code, name in _NAMES.items()}
"""Lucene's classes for languages other than English, by the code of ISO 639-1."""

WITHOUT_SPACES = frozenset({"ja", "th", "zh"})
"""Languages that put no spaces between words."""

_THAI = regex.compile(r"\p{Thai}+")

# Codes of varieties, as the detector names them.
_VARIETIES = {"arz": "ar", "ary": "ar", "nn": "no", "wuu": "zh", "yue": "zh"}
_LEAST_LETTERS = 200
_MOST_LETTERS = 20_000
_LETTERS_OF_A_TEXT = 1_000
_SHARE = 0.5

log = get_logger(__name__)


def pairs_of_characters(text: str, language: str) -> str:
    """A Thai text with spaces between its pairs of characters, whose words Java's dictionary alone
    would tell, which the package's Java lacks; a text in another language as it is.

    Example:
        >>> pairs_of_characters("ดานูบ 2 km", "th")
        'ดา านู นูบ 2 km'
    """
    if language != "th":
        return text
    return _THAI.sub(lambda run: " ".join(_pairs(run[0])), text)


def _pairs(run: str) -> list[str]:
    # Vowels and tones above and below belong to their consonant.
    characters = regex.findall(r"\X", run)
    if len(characters) == 1:
        return characters
    return [first + second for first, second in pairwise(characters)]


def detect_language(texts: Iterable[str]) -> str:
    """The language of more than half of a sample's letters, which a line says; English where there
    are few letters, no such language, or no analyser of it.

    Reads no more texts than it needs: 20,000 letters.

    Raises:
        MissingDependencyError: the package `py3langid` is not installed.

    Source: Lui and Baldwin 2012, "langid.py: An Off-the-shelf Language Identification Tool".
    """
    langid = require("py3langid.langid", extra="languages")
    classify = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE).classify
    letters = Counter[str]()
    for text in texts:
        beginning = text[:_LETTERS_OF_A_TEXT]
        code, _ = classify(beginning)
        letters[_VARIETIES.get(code, code)] += sum(map(str.isalpha, beginning))
        if letters.total() >= _MOST_LETTERS:
            break
    for language, count in letters.most_common(1):
        is_most = count > _SHARE * letters.total() and count >= _LEAST_LETTERS
        if is_most and (language == ENGLISH or language in ANALYZERS):
            log.info("language: %s (%d of %d letters)", language, count, letters.total())
            return language
        log.warning(
            "language: English rules, as most letters are of no language that is known here "
            "(%s has %d of %d); set the language otherwise",
            language,
            count,
            letters.total(),
        )
    return ENGLISH
