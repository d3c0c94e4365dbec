"""Rules for where an answer begins and ends, and whether it has the form that its question asks for.

They are for documents with tables, lists, options and paths, where a reader trained on prose marks too much
or too little, or a word where the question asks for a number.
"""

import regex

_CURRENCIES, _AFTER = tuple("$€£¥"), " \n\t.,;:!?)\"'"
_LONGEST = 200  # characters before and after a span that are looked at
_WHOLE = regex.compile(  # signs that mean nothing in part: the first kind that fits at a place counts
    r"""[\w.+-]+@[\w-]+(?:\.[\w-]+)+                                    # e-mail address
    |[a-z][a-z+.-]*://[^\s<>"']*[\w/]                                  # web address
    |(?<![\w-])--?[A-Za-z][\w-]*(?:=[^\s,;)"']*[^\s,;.)"'])?            # option of a command
    |(?<![\w/])(?:~|\.{1,2})?(?:/[\w.+@%~-]*[\w%-]){1,}/?              # path
    |[$€£¥]\s?\d+(?:[.,]\d+)*                                         # price
    |(?:(?<![^\s(|:])-|\bv)?\b\d+(?:[.,:]\d+)+(?:[-+~]?[a-z]+\.?\d+)?              # version, number, time
    |(?<![^\s(|:])-\d+\b|(?<![^\s(\[`"'])\.[a-z][\w-]*            # negative number, hidden file
    |\b\w+_\w+|\b[A-Za-z]\w*(?:(?:\.(?=[a-z_])|::|->)\w+)+(?:\(\))?     # name in code or of a file
    """,
    regex.VERBOSE,
)

_BLANK_LINE = regex.compile(r"\n\s*\n")
_ROW = regex.compile(r" \| |^\s*\||\|\s*$|^[^;:\n]{1,60}: [^;\n]*; [^;:\n]{1,60}: ")  # a row of a table
_NEXT_CELL = regex.compile(r"; [^;:\n]{1,60}: ")
_PART = regex.compile(r"(?=[^\n|]*\w)[^\s|](?:[^\n|]*[^\s|])?")
_LABEL = regex.compile(r"\p{Lu}(?:(?![.;!?|]\s)[^,:\n])*")  # the name of a field or column
_KIND = (
    r"(?:exceptions?|class(?:es)?|functions?|methods?|options?|switch(?:es)?|flags?|variables?|director(?:y|ies)"
    r"|folders?|files?|settings?|keys?|commands?|packages?|modules?|programs?|propert(?:y|ies)|attributes?"
    r"|parameters?|fields?|directives?|keywords?|macros?|tools?|scripts?|arguments?)"
)
_QUOTED = r"""['"`‘“]\S+['"`’”]"""
_IDENTIFIER = (
    r"(?:--?[A-Za-z][\w=-]*|[~.]?/[\w.+@%~/*-]+|\w+/[\w./*-]*|\$?\w+_\w*|\w*[a-z][A-Z]\w*|[A-Z]{2,}\w*"
    rf"|\w+(?:[.-]\w+)+(?:\(\))?|\w+\(\)|{_QUOTED}(?: and {_QUOTED})?)"
)
_NAMED = regex.compile(
    rf"(?:the |an? )?(?:(?P<name>{_IDENTIFIER})(?:\s[a-z]+)?\s{_KIND}"
    rf"|(?:[a-z]+ )?{_KIND}\s(?P<name>{_IDENTIFIER})|(?P<name>\S+) by default)"
)
_ASKS = {  # form: what questions that ask for it contain; the first that fits counts
    "step": r"(?:^|[,.;:?!]\s+|\band )(?:how (?:do|can|could|should|would|must) (?:i|we|you|one)\b|how to\b"
    r"|what (?:happens|will happen|would happen) (?:when|if|after|once|unless)\b"
    r"|what (?:do|should|must|can) (?:i|we|you) do\b)",
    "number": r"\bhow (?:many|much|long|old|far|tall|high|big|large|heavy|often|fast|deep|wide|few)\b"
    r"|\b(?:what|which) (?:(?:is|was|are) (?:the )?)?(?:\w+ ){0,2}(?:number|percentage|year|size|length|age"
    r"|latitude|longitude|version|score|threshold|port|limit|permissions|id)\b",
    "person": r"\bwho(?:se|m)?\b",
    "option": r"\b(?:which|what) (?:[\w-]+ ){0,2}(?:switch(?:es)?|options?|flags?)\b",
    "name": r"\b(?:which|what) (?:[\w-]+ ){0,2}(?:variable|setting|property|directive|function|class"
    r"|exception|attribute|macro|method|field|keyword)s?\b",
    "path": r"\b(?:which|what) (?:[\w-]+ ){0,2}(?:file|directory|folder|path)\b",
    "address": r"\b(?:which|what) (?:[\w-]+ ){0,2}(?:address|mailing list|url|link)\b"
    r"|\bwhere do (?:i|we) (?:write|mail)\b",
    "date": r"\bwhen\b|\b(?:what|which) (?:date|day|month)\b",
}
_FORMS = {
    "step": r".+",
    "number": r"(?=.*(?:\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty"
    r"|forty|fifty|hundreds?|thousands?|millions?|billions?|dozens?|half|twice|once|zero|none|several)\b))"
    r"(?:\S+\s+){0,7}\S+",
    "person": r"(?=.*\b\p{Lu})[^/_]+",
    "option": r"(?:the )?[`'\"]?-.*",
    "name": rf"(?:the )?{_IDENTIFIER}(?: \S+){{0,2}}",
    "path": r"(?=.*(?:/|\.\w))\S+(?: \S+)?",
    "address": r"(?=.*(?:@|\w\.\w))\S+(?: \S+)?",
    "date": r"(?=.*(?:\d|day\b|morning|century|year|january|february|march|april|may\b|june|july|august"
    r"|september|october|november|december)).*",
}
_YES_NO = regex.compile(
    r"\W*(?:(?:and|but|so|then|also|ok(?:ay)?|well),? )*"
    r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|may|might|must)(?:n['’]t)?\s"
    r"(?!(?:you|anyone|someone) (?:please |also |just )?"
    r"(?:tell|explain|list|describe|give|show|name|help|let)\b)"
    r"(?!.*\bor\b)",
    regex.IGNORECASE | regex.DOTALL,
)
AUXILIARY = r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|may|might|must)"
_OPEN = regex.compile(
    r"\W*(?:(?:and|but|or|so|then|ok(?:ay)?|well)\b,? *)*(?:(?:what|how) about )?"
    r"(?:(?:in|on|at|of|for|from|to|into|by|with|during|after|before|since|under|near|about|between) )?"
    r"(?:who|whom|whose|what|which|when|where|why|how)(?:'s)?\b",
    regex.IGNORECASE,
)
_SECOND_CLAUSE = regex.compile(rf",\s*{AUXILIARY}(?:n't)?\b", regex.IGNORECASE)
_ONE = (
    r"(?:is|was|do|does|did|has|series|species|basis|process|address|class|status|business|news|language)\b"
)
_MANY = r"(?:two|three|four|five|six|seven|eight|nine|ten|\d+|several|some|all|main|various|different)"
_SEVERAL = regex.compile(
    rf"\W*(?:(?:please )?(?:list|name|enumerate|give)(?: me)? (?:the|{_MANY}) (?!.*\b(?:name|number) of\b)"
    rf"|(?:(?:in|on|at|of|for|from|to|by|with) )?(?:which|what) "
    rf"(?:(?:are|were) (?:the|{_MANY}) |{_MANY} [a-z]+s\b"
    rf"|(?:(?!{_ONE})[a-z-]+ ){{0,3}}(?!{_ONE})[a-z]{{3,}}(?<!s)s "
    r"(?:are|were|do|does|did|have|has|can|may|must|should|will)\b)"
    r"|who (?:are|were) the (?:[a-z]+ )*?[a-z]+s\b)",
    regex.IGNORECASE,
)
LIST_MARKER = r"\s*(?:[•▪◦‣–*+-]|\(?\d{1,3}[.)]|\(?[a-z][.)])\s+"
_ITEM = regex.compile(rf"{LIST_MARKER}\S")
_WORD = regex.compile(r"\w+")
_FUNCTION_WORDS = frozenset(
    _WORD.findall(
        """a an the of in on at to for from by with and or is are was were be been do does did has have had
        can could will would should may might must what which who whom whose when where why how it its this
        that these those i you we they he she my your our their his her me us them there not if as about
        into than then so many much"""
    )
)
_NAME = regex.compile(_IDENTIFIER)
_EXPECTED = {form: regex.compile(pattern, regex.IGNORECASE) for form, pattern in _ASKS.items()}
_FORM = {
    form: regex.compile(pattern, regex.DOTALL | (regex.IGNORECASE if form in ("number", "date") else 0))
    for form, pattern in _FORMS.items()
}


def answer_bounds(text: str, start: int, end: int) -> tuple[int, int]:
    """The borders of an answer that a span model marked: whole tokens of one paragraph or of one cell.

    Of a span that crosses a blank line or the border of a table's cell, the first part with a word is kept.
    A label before a value ("No: 4711") and the word that says what an identifier is ("MAX_SIZE config key")
    are left out.

    Example:
        >>> text = "Confirmation No: 4711\\n\\nSet the MAX_SIZE config key."
        >>> text[slice(*answer_bounds(text, 13, 25))], text[slice(*answer_bounds(text, 27, 50))]
        ('4711', 'MAX_SIZE')
    """
    start, end = one_unit(text, *whole_tokens(text, start, end))
    start = _after_label(text, start, end)
    named = _NAMED.fullmatch(text, start, end)
    return named.span("name") if named else (start, end)


def whole_tokens(text: str, start: int, end: int) -> tuple[int, int]:
    """Extend a span so that it cuts no option, version, price, path, address or name in code.

    Example:
        >>> text = "Give --no-cache-dir, or write to help@example.org."
        >>> [text[slice(*whole_tokens(text, at, at + 5))] for at in map(text.index, ("cache", "example"))]
        ['--no-cache-dir', 'help@example.org']
    """
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    if not (before[-1:].strip(" \n\t(\"'") or before[:1] in _CURRENCIES or after.strip(_AFTER)):
        return start, end  # the usual case, without a search
    first = max((text.rfind(blank, 0, start) for blank in " \n\t"), default=-1) + 1
    last = min((place for blank in " \n\t" if (place := text.find(blank, end)) >= 0), default=len(text))
    first, last = max(first - 2, start - _LONGEST, 0), min(last, end + _LONGEST)
    for token in _WHOLE.finditer(text, first, last):  # a price may have a blank after its sign
        if token.start() < start < token.end():
            start = token.start()
        if token.start() < end < token.end():
            end = token.end()
    return start, end


def one_unit(text: str, start: int, end: int) -> tuple[int, int]:
    """The first part of a span that has a word and crosses no blank line and no border of a table's cell.

    Example:
        >>> text = "| r | read |\\n| l | lookup |"
        >>> text[slice(*one_unit(text, 2, 20))]
        'r'
    """
    answer = text[start:end]
    of_table = False
    if "\n" in answer or "|" in answer or "; " in answer:
        first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end - 1)
        lines = text[first : last if last >= 0 else len(text)].split("\n")
        of_table = any(_ROW.search(line) for line in lines)
    if of_table:
        part = _PART.search(answer)
        if part is None:
            return start, end
        cell = _NEXT_CELL.search(part[0])
        return start + part.start(), start + (part.start() + cell.start() if cell else part.end())
    blank = _BLANK_LINE.search(answer.rstrip()) if "\n" in answer else None
    if blank is None:
        return start, end
    has_word = regex.search(r"\w", answer[: blank.start()])
    return (start, start + blank.start()) if has_word else (start + blank.end(), end)


def _after_label(text: str, start: int, end: int) -> int:
    """Where the value begins, if the span begins inside the label of "label: value"."""
    colon = text.find(": ", start, end)
    if colon < 0:
        return start
    ends = ((text.rfind(sign, 0, colon), len(sign)) for sign in ("\n", "; ", "| "))
    first = max((at + length for at, length in ends if at >= 0), default=0)
    label = text[first:colon]
    is_label = _LABEL.fullmatch(label) is not None and len(label.split()) <= 5
    return colon + 2 if is_label and first < start else start


def expected_form(question: str) -> str:
    """The form of answer that the question asks for, or "" if the question does not tell: "number", "person",
    "option" (of a command), "name" (in code), "path" (of a file), "address" (of mail or the web), "date", or
    "step" (what to do, or what happens).

    Example:
        >>> [expected_form(q) for q in ("How long does it take?", "Which switch sorts?", "Why?")]
        ['number', 'option', '']
    """
    return next((form for form, pattern in _EXPECTED.items() if pattern.search(question)), "")


def has_form(answer: str, form: str) -> bool:
    """Whether an answer has a form of `expected_form`; every answer has the form "".

    Example:
        >>> has_form("--sort", "option"), has_form("sorting", "option")
        (True, False)
    """
    return not form or _FORM[form].fullmatch(answer) is not None


def fit_of_form(answer: str, form: str) -> int:
    """1 if an answer has a form of `expected_form`, −1 if not, 0 if no form is asked for, or only steps."""
    return 0 if form in ("", "step") else 1 if has_form(answer, form) else -1


def content_words(text: str) -> frozenset[str]:
    """The words of a text without function words, in lower case and without common endings.

    Example:
        >>> sorted(content_words("When was the bridge opened?"))
        ['bridge', 'open']
    """
    words = (word for word in _WORD.findall(text.lower()) if word not in _FUNCTION_WORDS)
    return frozenset(_stem(word) for word in words)


def _stem(word: str) -> str:
    ending = next((e for e in ("ing", "ed", "es", "s") if word.endswith(e) and len(word) >= len(e) + 3), "")
    return word.removesuffix(ending)


def is_identifier(answer: str) -> bool:
    """Whether an answer is an option, a path, a name in code, or quoted words.

    Example:
        >>> is_identifier("--no-cache-dir"), is_identifier("press q")
        (True, False)
    """
    return _NAME.fullmatch(answer) is not None


def asks_yes_no(question: str) -> bool:
    """Whether a question asks for yes or no: it opens with an auxiliary verb, and offers no choice with "or".

    Example:
        >>> questions = "Does it run?", "Was Ann or Bob first?", "Can you tell me why?", "Who is he?"
        >>> [asks_yes_no(question) for question in questions]
        [True, False, False, False]
    """
    return _YES_NO.match(question) is not None


def can_be_polar(question: str) -> bool:
    """Whether "yes" or "no" can answer a question: not if it asks who, where, when, why, how, what or which.

    Example:
        >>> [can_be_polar(q) for q in ("Is Oslo in Norway?", "Who was first?", "When it rains, is it wet?")]
        [True, False, True]
    """
    return _OPEN.match(question) is None or _SECOND_CLAUSE.search(question) is not None


def asks_several(question: str) -> bool:
    """Whether a question asks for several things: "list the …", "which two …", "what are the …".

    Example:
        >>> [asks_several(q) for q in ("Which two tools does it use?", "What are the steps?", "Who is he?")]
        [True, True, False]
    """
    return _SEVERAL.match(question) is not None


def list_around(text: str, start: int) -> tuple[int, int] | None:
    """The whole list of at least two entries that the place `start` is in or leads to with a colon.

    Example:
        >>> text = "It needs:\\n• a key\\n• a name\\n\\nThen start it."
        >>> [text[slice(*list_around(text, at))] for at in (0, 13)]
        ['• a key\\n• a name', '• a key\\n• a name']
    """
    lines = list(regex.finditer(r"[^\n]*\S[^\n]*", text))
    place = next((n for n, line in enumerate(lines) if start < line.end()), len(lines))
    if place < len(lines) and lines[place][0].rstrip().endswith(":") and _ITEM.match(lines[place][0]) is None:
        place += 1
    first = last = place
    while first > 0 and last < len(lines) and _is_item(lines, first - 1):
        first -= 1
    while last < len(lines) and _is_item(lines, last):
        last += 1
    return (lines[first].start(), lines[last - 1].end()) if last - first > 1 and last > place else None


def _is_item(lines: list[regex.Match[str]], number: int) -> bool:
    return _ITEM.match(lines[number][0]) is not None
