"""Numbers and dates of spreadsheets as a sheet shows them, by the format of their cell."""

import datetime
import operator
import re
from decimal import ROUND_HALF_UP, Context, Decimal

_LITERAL = r'"[^"]*"|\\.|_.|\*.|\[[^\]]*\]'
_TOKEN = re.compile(rf"{_LITERAL}|General|[0#?][0#?.,]*|\.[0#?]+|.")
_DATE_TOKEN = re.compile(rf"\[(?:h+|m+|s+)\]|{_LITERAL}|AM/PM|y+|m+|d+|h+|s+|.", re.IGNORECASE)
# Of a section, outside of quotes.
_END = re.compile(r';(?=(?:[^"]*"[^"]*")*[^"]*$)')
_PATTERN = re.compile(r"\.?[0#?]")
_GROUP = re.compile("[0#]+")  # of the digits of a telephone number
_CONDITION = re.compile(r"\[(?P<sign>[<>=]+)(?P<bound>-?[\d.]+)\]")
_HOLDS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "<>": operator.ne,
}
_COLOUR = re.compile(r"\[[A-Za-z]")
_TIME = re.compile(r"[\s_]*h.*", re.IGNORECASE)
# The least number that is not written with all its digits.
_TOO_LARGE = 1e21
# Enough digits for any smaller number with all decimals that a format may have.
_DIGITS = Context(prec=80)
# Dates that each country writes in its way.
_LOCAL = ("general", "mm-dd-yy", "m/d/yy h:mm")
_DECIMALS = re.compile(r"(?<=s)\.0+", re.IGNORECASE)
_DIRECTIVES = {
    "y": "%y",
    "yyyy": "%Y",
    "m": "%m",
    "mmm": "%b",
    "mmmm": "%B",
    "mmmmm": "%b",
    "d": "%d",
    "ddd": "%a",
    "dddd": "%A",
    "h": "%H",
    "s": "%S",
    "am/pm": "%p",
}
_SECONDS_OF_UNIT = {"h": 3600, "m": 60, "s": 1}


def format_value(value: object, number_format: str = "General") -> str:
    """The text of a cell's value.

    Fractions, powers of ten and sections of words alone are not followed, midnight is left out, and
    dates in the format of the reader's country are written as 2024-05-31.

    Example:
        >>> format_value(0.256, "0.0%"), format_value(1234.5, '#,##0.00 "€"')
        ('25.6%', '1,234.50 €')
        >>> format_value(4155550123, "[<=9999999]###-####;(###) ###-####")
        '(415) 555-0123'
        >>> format_value(datetime.datetime(2024, 5, 31), "d mmmm yyyy")
        '31 May 2024'
        >>> format_value(datetime.timedelta(hours=26, minutes=30), "[h]:mm")
        '26:30'
    """
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        return _number(value, number_format)
    section = _END.split(number_format)[0]
    if isinstance(value, datetime.time):
        if section.lower() in _LOCAL:
            return value.isoformat().removesuffix(":00")
        # The day that a sheet shows for none.
        value = datetime.datetime.combine(datetime.date(1899, 12, 30), value)
    if isinstance(value, datetime.date):
        return _date(value, section)
    if isinstance(value, datetime.timedelta):
        return _duration(value, section)
    return str(value)


def _number(value: float, number_format: str) -> str:
    general = f"{value:.12g}" if isinstance(value, float) else str(value)
    sections = _END.split(number_format)
    section = sections[0]
    has_own_sign = False
    if _CONDITION.search(section):
        section = _fitting(value, sections)
    elif value < 0 and len(sections) > 1:
        has_own_sign = True
        section = sections[1]
    elif value == 0 and len(sections) > 2:
        section = sections[2]
    if not section:
        return ""
    tokens = _TOKEN.findall(section)
    patterns = [token for token in tokens if token == "General" or _PATTERN.match(token)]
    if not patterns or abs(value) >= _TOO_LARGE:
        return general
    amount = abs(Decimal(repr(value)))
    if "%" in tokens:
        amount = amount.scaleb(2)
    digits = [general.lstrip("-")]
    if len(patterns) > 1:
        if amount % 1 or not all(map(_GROUP.fullmatch, patterns)) or {"/", "E"} & {*tokens}:
            return general
        digits = _groups(amount, patterns)
    elif patterns[0] != "General":
        digits = [_digits(amount, patterns[0])]
    parts = []
    for token in tokens:
        if token in patterns:
            parts.append(digits.pop(0))
        else:
            parts.append(_literal(token))
    text = "".join(parts).strip()
    if _COLOUR.search(section) and not re.search("[-(]", text):
        # A sheet shows these in red, without a sign.
        has_own_sign = False
    is_negative = value < 0 and not has_own_sign and re.search("[1-9]", text) is not None
    return f"-{text}" if is_negative else text


def _fitting(value: float, sections: list[str]) -> str:
    """The first section whose condition a number meets, or that has none; "General" without such."""
    for section in sections:
        condition = _CONDITION.search(section)
        if condition is None or _HOLDS[condition["sign"]](value, float(condition["bound"])):
            return section
    return "General"


def _groups(amount: Decimal, patterns: list[str]) -> list[str]:
    """The digits of a whole number, in groups of the patterns' lengths from the last one on."""
    digits = str(int(amount)).zfill("".join(patterns).count("0"))
    groups: list[str] = []
    for pattern in reversed(patterns[1:]):
        groups.insert(0, digits[-len(pattern) :])
        digits = digits[: -len(pattern)]
    return [digits, *groups]


def _literal(token: str) -> str:
    """The text of a part of a format that is neither digits nor a part of a date."""
    if token.startswith("[$"):
        return token[2:-1].partition("-")[0]
    if token[0] in "[_*":
        return ""
    return token.strip('"') if token[0] == '"' else token[-1]


def _digits(amount: Decimal, pattern: str) -> str:
    scaled = pattern.rstrip(",")
    amount = amount.scaleb(3 * (len(scaled) - len(pattern)))
    whole, _, fraction = scaled.partition(".")
    if not amount and "0" not in pattern:
        return ""
    unit = Decimal(1).scaleb(-len(fraction))
    left, _, right = f"{amount.quantize(unit, ROUND_HALF_UP, _DIGITS):f}".partition(".")
    n_needed = len(fraction.rstrip("#?"))
    right = right[:n_needed] + right[n_needed:].rstrip("0")
    left = f"{int(left):,}" if "," in whole else left.zfill(whole.count("0"))
    return f"{left}.{right}" if right else left


def _date(value: datetime.date, section: str) -> str:
    if not isinstance(value, datetime.datetime):
        value = datetime.datetime.combine(value, datetime.time())
    if section.lower() in _LOCAL:
        return value.isoformat(sep=" ", timespec="minutes").removesuffix(" 00:00")
    if value.time() == datetime.time():
        section = _TIME.sub("", section) or section
    decimals = f".{value.microsecond:06}"
    section = _DECIMALS.sub(lambda zeros: f'"{decimals[: len(zeros[0])]}"', section)
    # As openpyxl calls "mm:ss.0".
    tokens = _DATE_TOKEN.findall(section.replace("mmss", "mm:ss"))
    units = [token.lower() for token in tokens if _is_unit(token)]
    has_halves_of_day = "am/pm" in units
    before = ""
    parts: list[str] = []
    for token in tokens:
        if not _is_unit(token):
            parts.append(_literal(token))
            continue
        unit = units.pop(0)
        is_minute = before[:1] == "h" or "".join(units)[:1] == "s"
        before = unit
        directive = _DIRECTIVES.get(unit) or _DIRECTIVES[unit[0]]
        if unit in ("m", "mm") and is_minute:
            directive = "%M"
        elif unit[0] == "h" and has_halves_of_day:
            directive = "%I"
        text = value.strftime(directive)
        if unit == "mmmmm":
            text = text[0]
        elif len(unit) == 1 and unit != "y":
            text = text.lstrip("0") or "0"
        parts.append(text)
    return "".join(parts).strip()


def _is_unit(token: str) -> bool:
    return token[0] in "ymdhsYMDHS" or token.lower() == "am/pm"


def _duration(value: datetime.timedelta, section: str) -> str:
    """Hours, minutes and seconds, of which the first may be more than a day or an hour has."""
    remaining_s = round(abs(value).total_seconds())
    parts = ["-" if value < datetime.timedelta() else ""]
    for token in _DATE_TOKEN.findall(section):
        unit = token.strip("[]").lower()
        unit_s = _SECONDS_OF_UNIT.get(unit[:1])
        if unit_s is None:
            parts.append(_literal(token))
        else:
            amount, remaining_s = divmod(remaining_s, unit_s)
            parts.append(str(amount).zfill(len(unit)))
    return "".join(parts).strip()
