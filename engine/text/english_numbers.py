"""Numbers, sums of money, abbreviations and symbols in English lyrics as words, as ACE-Step reads them. Pure."""

from __future__ import annotations

import re

ONES = (
    "", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SCALES = ((1_000_000_000, " billion"), (1_000_000, " million"), (1000, " thousand"), (100, " hundred"))
ABBREVIATIONS = {
    "mrs": "misess", "mr": "mister", "dr": "doctor", "st": "saint", "co": "company", "jr": "junior", "maj": "major",
    "gen": "general", "drs": "doctors", "rev": "reverend", "lt": "lieutenant", "hon": "honorable", "sgt": "sergeant",
    "capt": "captain", "esq": "esquire", "ltd": "limited", "col": "colonel", "ft": "fort",
}  # fmt: skip
SYMBOLS = {
    "&": "and", "@": "at", "%": "percent", "#": "hash", "$": "dollar", "£": "pound", "°": "degree",
}  # fmt: skip
THOUSANDS = re.compile(r"\b\d{1,3}(,\d{3})*(\.\d+)?\b")
DECIMAL = re.compile(r"[0-9]+[.,][0-9]+")
ORDINAL = re.compile(r"([0-9]+)(?:st|nd|rd|th)")
NUMBER = re.compile(r"[0-9]+")
ABBREVIATION = re.compile(r"\b(" + "|".join(ABBREVIATIONS) + r")\.", re.IGNORECASE)
SUMS = tuple(
    re.compile(pattern)
    for pattern in (
        r"£[0-9.,]*[0-9]+|[0-9.,]*[0-9]+£",
        r"\$[0-9.,]*[0-9]+|[0-9.,]*[0-9]+\$",
        r"[0-9.,]*[0-9]+€|€[0-9.,]*[0-9]+",
    )
)


def whole_number(number: int) -> str:
    """Return a number of at least 0 in words; zero has none."""
    if number < len(ONES):
        return ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens] + (f" {ONES[ones]}" if ones else "")
    size, name = next(item for item in SCALES if number >= item[0])
    count, rest = divmod(number, size)
    return whole_number(count) + name + (f" {whole_number(rest)}" if rest else "")


def spoken_integer(number: int) -> str:
    """Return a number of at least 0 in words."""
    return "zero" if number == 0 else whole_number(number)


def spoken_decimal(number: float) -> str:
    """Return a number with each of its decimals in words. Raises ValueError for one that is too large to be written."""
    if number == 0:
        return "zero"
    whole, point, decimals = str(number).partition(".")
    if not point or not whole.isdigit() or not decimals.isdigit():
        raise ValueError(f"number: too large to be read; got {number}, expected less than 1e16")
    return f"{whole_number(int(whole))} point " + " ".join(ONES[int(digit)] or "zero" for digit in decimals)


def with_spoken_numbers(text: str) -> str:
    """Return a text whose numbers are words, or the text as it is where one of them cannot be read."""
    spoken = THOUSANDS.sub(lambda match: match.group().replace(",", ""), text)
    try:
        for pattern in SUMS:
            spoken = pattern.sub(lambda match: spoken_decimal(_amount(match.group())), spoken)
    except ValueError:
        pass
    try:
        spoken = DECIMAL.sub(lambda match: spoken_decimal(float(match.group().replace(",", "."))), spoken)
    except ValueError:
        return text
    spoken = ORDINAL.sub(lambda match: spoken_integer(int(match.group(1))), spoken)
    return NUMBER.sub(lambda match: spoken_integer(int(match.group())), spoken)


def _amount(text: str) -> float:
    """Return the amount of a sum of money. Raises ValueError for one with several points."""
    return float(re.sub(r"[^\d.]", "", text.replace(",", ".")))


def with_spoken_abbreviations(text: str) -> str:
    """Return a text with titles and the like written out."""
    return ABBREVIATION.sub(lambda match: ABBREVIATIONS[match.group(1).lower()], text)


def with_spoken_symbols(text: str) -> str:
    """Return a text with symbols as words, without blanks at its ends."""
    for symbol, word in SYMBOLS.items():
        text = text.replace(symbol, f" {word} ").replace("  ", " ")
    return text.strip()
