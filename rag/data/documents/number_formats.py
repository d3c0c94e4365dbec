"""Numbers and dates of spreadsheets as a sheet shows them, by the format of their cell."""

import datetime
import re
from decimal import ROUND_HALF_UP, Context, Decimal

_LITERAL = r'"[^"]*"|\\.|_.|\*.|\[[^\]]*\]'
_TOKEN = re.compile(rf"{_LITERAL}|General|[0#?][0#?.,]*|\.[0#?]+|.")
_DATE_TOKEN = re.compile(rf"{_LITERAL}|AM/PM|y+|m+|d+|h+|s+|.", re.IGNORECASE)
_END = re.compile(r';(?=(?:[^"]*"[^"]*")*[^"]*$)')  # of a section, outside of quotes
_PATTERN = re.compile(r"\.?[0#?]")
_TIME = re.compile(r"[\s_]*h.*", re.IGNORECASE)
_LARGEST = 1e21  # that is written with all its digits
_DIGITS = Context(prec=80)  # enough for it with all decimals that a format may have
_LOCAL = ("general", "mm-dd-yy", "m/d/yy h:mm")  # dates that each country writes in its way
_DATE_CODES = {
    "y": "%y",
    "yyyy": "%Y",
    "m": "%m",
    "mmm": "%b",
    "mmmm": "%B",
    "d": "%d",
    "ddd": "%a",
    "dddd": "%A",
    "h": "%H",
    "s": "%S",
    "am/pm": "%p",
}


def shown(value: object, number_format: str = "General") -> str:
    """The text of a cell's value.

    Formats with conditions, fractions or powers of ten are not followed, midnight is left out, and
    dates in the format of the reader's country are written as 2024-05-31.

    Example:
        >>> shown(0.256, "0.0%"), shown(1234.5, '#,##0.00 "€"'), shown(-3, "0;(0)")
        ('25.6%', '1,234.50 €', '(3)')
        >>> shown(datetime.datetime(2024, 5, 31), "d mmmm yyyy")
        '31 May 2024'
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, datetime.date):
        return _date(value, _END.split(number_format)[0])
    if isinstance(value, datetime.time):
        return value.isoformat().removesuffix(":00")
    if isinstance(value, (int, float)):
        return _number(value, number_format)
    return str(value)


def _number(value: float, number_format: str) -> str:
    usual = f"{value:.12g}" if isinstance(value, float) else str(value)
    sections = _END.split(number_format)
    place = 1 if value < 0 and len(sections) > 1 else 0
    if value == 0 and len(sections) > 2:
        place = 2
    if not sections[place]:
        return ""
    tokens = _TOKEN.findall(sections[place])
    patterns = [token for token in tokens if token == "General" or _PATTERN.match(token)]
    has_condition = any(re.match(r"\[[<>=]", token) for token in tokens)
    if len(patterns) != 1 or has_condition or abs(value) >= _LARGEST:
        return usual
    amount = abs(Decimal(repr(value)))
    if "%" in tokens:
        amount = amount.scaleb(2)
    parts = list[str]()
    for token in tokens:
        if token == patterns[0]:
            parts.append(usual.lstrip("-") if token == "General" else _digits(amount, token))
        else:
            parts.append(_literal(token))
    text = "".join(parts).strip()
    is_negative = value < 0 and place == 0 and re.search("[1-9]", text) is not None
    return f"-{text}" if is_negative else text


def _literal(token: str) -> str:
    """The text of a part of a format that is neither digits nor a part of a date."""
    if token[0] == "[":
        return token[2:-1].partition("-")[0] if token[1:2] == "$" else ""
    if token[0] in "_*":
        return ""
    return token.strip('"') if token[0] == '"' else token[-1]


def _digits(amount: Decimal, pattern: str) -> str:
    scaled = pattern.rstrip(",")
    amount = amount.scaleb(3 * (len(scaled) - len(pattern)))
    whole, _, fraction = scaled.partition(".")
    unit = Decimal(1).scaleb(-len(fraction))
    left, _, right = f"{amount.quantize(unit, ROUND_HALF_UP, _DIGITS):f}".partition(".")
    n_needed = len(fraction.rstrip("#?"))
    right = right[:n_needed] + right[n_needed:].rstrip("0")
    left = f"{int(left):,}" if "," in whole else left.zfill(whole.count("0"))
    return f"{left}.{right}" if right else left


def _date(value: datetime.date, number_format: str) -> str:
    if not isinstance(value, datetime.datetime):
        value = datetime.datetime.combine(value, datetime.time())
    if number_format.lower() in _LOCAL:
        return value.isoformat(sep=" ", timespec="minutes").removesuffix(" 00:00")
    if value.time() == datetime.time():
        number_format = _TIME.sub("", number_format)
    tokens = [
        token.lower() if token[0] not in '"\\' else token
        for token in _DATE_TOKEN.findall(number_format)
    ]
    codes = [token if token in _DATE_CODES or token[0] in "ymdhs" else "" for token in tokens]
    parts = list[str]()
    before = ""
    for number, (token, code) in enumerate(zip(tokens, codes, strict=True)):
        following = next(filter(None, codes[number + 1 :]), "")
        if not code:
            parts.append(_literal(token))
            continue
        is_minute = code in ("m", "mm") and (before[:1] == "h" or following[:1] == "s")
        directive = "%M" if is_minute else _DATE_CODES.get(code) or _DATE_CODES[code[0]]
        if directive == "%H" and "am/pm" in codes:
            directive = "%I"
        text = value.strftime(directive)
        parts.append(text.lstrip("0") or "0" if len(code) == 1 and code != "y" else text)
        before = code
    return "".join(parts).strip()
