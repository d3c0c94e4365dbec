"""Dates and quantities in short texts, as numbers that can be compared."""

import re

from rag.data.salient import MONTHS
from readers.llm.wording import SCALES

Value = tuple[str | float, ...]
"""What is measured ("date", "length", …; "" for a number without a unit), and numbers, the
weightiest first: year, month and day."""


def read_table(text: str) -> dict[str, tuple[str, str]]:
    """The words of each line from the third on, with the first two."""
    entries = dict[str, tuple[str, str]]()
    for line in text.strip().splitlines():
        first, second, *names = line.split()
        entries.update(dict.fromkeys(names, (first, second)))
    return entries


_MONTHS = MONTHS.lower()
_YEAR = re.compile(r"(?<![\d.,])\d{3,4}(?!,?\d|'?s\b|\s*years|.*(?<![a-z])b\.?c)")
_MONTH = re.compile(
    r"(?:(?P<day>\d\d?)(?:st|nd|rd|th)? (?:of )?)?"
    rf"\b(?P<month>{_MONTHS})\b(?: (?P<day_behind>\d\d?)\b)?"
)
_NUMBER = re.compile(
    r"(?P<refused>(?<!\w)[-−–]\s?|(?:minus|negative|between) )?(?P<currency>[$€£])?\s?"
    # "1,5", "1.024.000" and "1.10.2" are no numbers that everyone reads alike.
    r"(?<!\d)(?<!\d[.,])(?P<digits>\d+(?:(?:,\d{2,3})*,\d{3})?(?:\.\d+)?)(?![.,]?\d)"
    # Of "5 to 6", "1/2", "3 × 4" and "10^6", too, the first number is not the value.
    r"(?P<range>\s*(?:[-−–/×x^e]|to|and|or)\s*\d)?"
    r"(?:[\s-]*(?P<scale>thousand|million|billion|trillion|bn\b|(?(currency)[kmb]\b|(?<=\d)[kb]\b)))?"
    r"(?:[^\S\n]|-)*(?P<square>sq(?:uare|\.)? )?(?:(?:°|degrees?)\s?(?=[cf]))?"
    r"(?P<unit>%|[a-zµμ]*)(?P<rate>(?:/(?:sq(?:uare|\.)? )?[a-z]+)?)(?P<squared>²|2\b)?"
)
_SCALES = {**SCALES, "k": 10**3, "m": 10**6, "b": 10**9, "bn": 10**9}
# A dimension, the value of a unit in it, and its names.
_UNITS = read_table(
    """
    length 1 m metre metres meter meters
    length 1000 km kilometre kilometres kilometer kilometers
    length 0.01 cm centimetre centimetres centimeter centimeters
    length 0.001 mm millimetre millimetres millimeter millimeters
    length 0.3048 ft foot feet
    length 1609.344 mi mile miles
    length 0.0254 inch inches
    length 0.9144 yd yard yards
    volume 1 l litre litres liter liters
    volume 0.001 ml millilitre millilitres milliliter milliliters
    gallons 1 gal gallon gallons
    area 1e4 ha hectare hectares
    area 4046.856 acre acres
    mass 1 kg kilogram kilograms
    mass 0.001 g gram grams
    mass 0.45359237 lb lbs pound pounds
    mass 0.0283495 oz ounce ounces
    mass 1000 t ton tons tonne tonnes
    speed 1 m/s metre/second metres/second meter/second meters/second
    speed 1e3 kbps kbit/s
    speed 1e6 mbps mbit/s
    speed 1e9 gbps gbit/s
    speed 0.2777778 km/h kmh kph kilometre/hour kilometres/hour kilometer/hour kilometers/hour
    speed 0.44704 mph mi/h mile/hour miles/hour
    speed 0.5144444 knot knots
    time 1e-9 ns nanosecond nanoseconds
    time 1e-6 µs μs us microsecond microseconds
    time 0.001 ms millisecond milliseconds
    time 1 s sec secs second seconds
    time 60 min mins minute minutes
    time 3600 h hr hrs hour hours
    time 86400 day days
    time 604800 week weeks
    time 2629800 month months
    time 31557600 year years
    information 1 byte bytes
    information 0.125 bit bits
    information 1e3 kb kilobyte kilobytes
    information 1e6 mb megabyte megabytes
    information 1e9 gb gigabyte gigabytes
    information 1e12 tb terabyte terabytes
    information 1e15 pb petabyte petabytes
    information 1e18 eb exabyte exabytes
    information 1024 kib
    information 1048576 mib
    information 1073741824 gib
    information 1099511627776 tib
    information 1.126e15 pib
    information 1.153e18 eib
    bits 1e3 kbit kbits kilobit kilobits
    bits 1e6 mbit mbits megabit megabits
    bits 1e9 gbit gbits gigabit gigabits
    power 1 w watt watts
    power 1e3 kw kilowatt kilowatts
    power 1e9 gw gigawatt gigawatts
    megawatts 1 mw megawatt megawatts
    celsius 1 c celsius
    fahrenheit 1 f fahrenheit
    frequency 1 hz hertz
    frequency 1e3 khz
    frequency 1e6 mhz
    frequency 1e9 ghz
    dollars 1 $ dollar dollars usd
    euros 1 € euro euros eur
    pounds 1 £ gbp
    lakhs 1 lakh lakhs
    lakhs 100 crore crores
    share 1 % percent
    """
)
# What stands behind a number with its unit and goes on in a smaller one: "6 ft 2 in", "2 h and 5 min".
_PART = re.compile(r"\.?(?:,|,? and)?[\s-]*(?P<digits>\d+(?:\.\d+)?)[¼-¾]?[\s-]*(?P<unit>[a-z]+)")
# "6'2"", "6-foot-2".
_FEET = re.compile(
    r"(?<=\d)(?:\s?['’′]\s?|-foot-)(\d{1,2}(?:\.\d+)?)(?![\d.])(?:[\"”″]|[\s-]?in(?:ch(?:es)?)?\b)?"
)
# "1:54.93", "2:05:10".
_CLOCK = re.compile(
    r"(?<![\d:])(?:(?P<hours>\d{1,2}):)?(?P<minutes>\d{1,2}):(?P<seconds>[0-5]\d(?:\.\d+)?)(?![\d:])"
)
# Units that say something else where they stand alone.
_OF_PARTS = {"length in": "inch", "time m": "min"}


def parse_date(text: str) -> Value | None:
    """The first date of a text in lower case: year, month and day, as far as it states them.

    Example:
        >>> parse_date("10 october 1813"), parse_date("may 1813"), parse_date("500 bc")
        (('date', 1813.0, 10.0, 10.0), ('date', 1813.0, 5.0), None)
    """
    year = _YEAR.search(text)
    if year is None:
        return None
    numbers = [float(year[0])]
    # A month behind the year is of another date, or the verb "may".
    month = _MONTH.search(text, 0, year.end())
    if month is not None:
        numbers.append(1.0 + _MONTHS.split("|").index(month["month"]))
        day = month["day"] or month["day_behind"]
        if day:
            numbers.append(float(day))
    return "date", *numbers


def parse_quantity(text: str) -> Value | None:
    """The first number of a text in lower case, in the base unit of its dimension.

    Returns:
        None also below zero, and for a range of numbers.

    Example:
        >>> list(map(parse_quantity, ("2 km wide", "44,000", "$3.5 million", "tall")))
        [('length', 2000.0), ('', 44000.0), ('dollars', 3500000.0), None]
        >>> parse_quantity("2 h 30 min")
        ('time', 9000.0)
    """
    # Of "$5 a month" and "$5 monthly", too.
    text = re.sub(r" (?:per |an? |(?=(?:hour|dai|week|month|year|annual)ly\b))", "/", text)
    text = _FEET.sub(r" ft \1 in", text)
    text = _CLOCK.sub(_in_seconds, text)
    found = _NUMBER.search(text)
    if found is None or found["refused"] or found["range"] or "below" in text:
        return None
    number = float(found["digits"].replace(",", "")) * _SCALES.get(found["scale"], 1.0)
    unit = (found["currency"] or found["unit"]) + found["rate"]
    if unit in ("st", "nd", "rd", "th"):
        return "rank", number
    # Other rates are comparable if they are stated alike.
    dimension, factor = _UNITS.get(unit, (unit if "/" in unit else "", "1"))
    size = float(factor)
    is_square = found["square"] or found["squared"]
    if dimension == "length" and is_square:
        return "area", number * size**2
    number *= size
    part = _PART.match(text, found.end())
    while part is not None:
        unit = _OF_PARTS.get(f"{dimension} {part['unit']}", part["unit"])
        of, factor = _UNITS.get(unit, ("", "1"))
        if of != dimension or float(factor) >= size:
            break
        size = float(factor)
        number += float(part["digits"]) * size
        part = _PART.match(text, part.end())
    return dimension, number


def _in_seconds(clock: re.Match[str]) -> str:
    """A time such as "1:54.93" in words that `_NUMBER` reads."""
    minutes = 60 * float(clock["hours"] or 0) + float(clock["minutes"])
    return f" {60 * minutes + float(clock['seconds'])} s "
