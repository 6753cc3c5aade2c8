"""Personal data: e-mail addresses, account and card numbers, phone numbers, IP addresses.

What is a number is checked as far as it can be (check digits, numbering plans). What then still could be the number
of an order is told by the words before it. Where they hide a number, and another place of the record gives it away,
it is replaced in both.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Literal

from offline_arl import optional
from offline_arl.logs.redaction.config import Kind
from offline_arl.logs.redaction.findings import Finding, words, words_before

# Nine digits, apart from one another by three separators at most.
_DIGITS_GATE = r"[0-9](?:[ .()/\-]{0,3}[0-9]){8}"
_NUMBER_OF_SOMETHING = re.compile(
    r"(?:(?<![a-z])(?:order|invoice|ticket|tracking|parcel|shipment|ref(?:erence)?|case|sku|part|model|serial|item|product"
    r"|version|build|commit|isbn|issn|id|ids|uuid|sha|hash|confirmation|booking|reservation|flight|batch|lot|run|job"
    r"|request|trace|span|session|message|msg|error|code|line|offset|size|bytes|timestamp|time|epoch|price|total|amount"
    r"|doi|rfc|upc|ean|gtin|asin|node|port|pid|seed|step|checksum)s?[^a-z0-9\n]{0,3}(?:id|no|number|num|key)?|#|№)"
    r"(?: +(?:is|was|of))?[^a-z0-9\n]{0,4}\Z"
)


class Emails:
    """E-mail addresses."""

    kind: Kind = "email"
    gate = r"@"
    _form = re.compile(
        r"(?<![\w.%+\-])([\w%+\-](?:[\w.%+'\-]{0,62}[\w%+\-])?)@"
        r"((?:[^\W_](?:[\w\-]{0,61}[^\W_])?\.){1,6}([A-Za-z]{2,24}))(?![\w(\[]|-\w|\.\w+\()"
    )
    # Names of domains with more than two letters that people have addresses in. The whole list would make addresses
    # of `x@self.weight` and `logo@2x.webp`.
    _domains = words(
        """com org net edu gov mil int info biz name pro app dev cloud online shop store tech site xyz email agency
        company digital global health life live media network news page solutions studio systems team today work works
        world zone example test invalid local localhost corp internal intranet lan museum travel jobs mobi coop aero
        asia cat tel bank club design group ltd space top vip website wiki blog art care center community consulting
        education energy engineering events expert finance foundation fund games guru institute international law
        legal link llc love marketing money photos photography press project recipes rest reviews rocks run school
        science services social software solar support surf swiss taxi technology tips tools town toys university
        ventures video wine academy accountants apartments bio boutique build builders business capital careers cash
        chat church city claims clinic coach codes coffee computer construction contractors cool country credit
        creditcard dating deals delivery dental direct directory discount doctor dog domains enterprises equipment
        estate exchange express fit fitness flights florist football gallery gifts gmbh guide haus holdings holiday
        homes hospital host house immo industries ink insure jetzt kitchen land lawyer lease limited loans management
        market mba men mortgage movie nyc london berlin paris tokyo wien hamburg koeln amsterdam one ooo parts
        partners pet pharmacy pics pizza plumbing plus properties pub realtor rent rentals repair report restaurant
        sale sarl security singles style supply sydney tax tours training vacations vet villas vision watch yoga
        онлайн рф"""
    )
    _address = re.compile(r"://[^\s/@]*:\Z")  # what follows is a password, and one that `UrlCredentials` left alone
    _files = words("js ts py md rs sh so ps cc pl")

    def find(self, text: str, key: str) -> Iterator[Finding]:
        if "@" not in text:
            return
        for match in self._form.finditer(text):
            user, host, last = match[1], match[2].lower(), match[3].lower()
            if len(last) > 2 and last not in self._domains:
                continue
            if self._address.search(text[max(0, match.start() - 100) : match.start()]):
                continue
            if user == "git" or (last in self._files and re.match(r"\d+x?\.", host)):
                continue
            yield Finding(match.start(), match.end(), self.kind, "EMAIL", f"{user.lower()}@{host}")


class BankAccounts:
    """International bank account numbers with the right length and check digits."""

    kind: Kind = "iban"
    gate = r"[A-Z]{2}[0-9]{2}[ -]?[A-Z0-9]{4}[ -]?[A-Z0-9]{4}|[a-z]{2}[0-9]{2}[ -][a-z0-9]{4}[ -][a-z0-9]{4}"
    _form = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,4})?(?![A-Za-z0-9])")
    _lower = re.compile(r"(?<![A-Za-z0-9])[a-z]{2}\d{2}(?:[ -][a-z0-9]{4}){2,7}(?:[ -][a-z0-9]{1,4})?(?![A-Za-z0-9])")

    def __init__(self) -> None:
        self._iban: ModuleType = optional.require("stdnum.iban", extra="redact")

    def find(self, text: str, key: str) -> Iterator[Finding]:
        for form in (self._form, self._lower):
            for match in form.finditer(text):
                found = match[0]
                # The words after it may look like one more group.
                while len(found) >= 15:
                    if self._iban.is_valid(found, check_country=False):
                        value = re.sub("[ -]", "", found).upper()
                        yield Finding(match.start(), match.start() + len(found), self.kind, "IBAN", value)
                        break
                    found = found[: max(found.rfind(" "), found.rfind("-"), 0)]


class CreditCards:
    """Card numbers of the known networks with the right length, grouping and check digit."""

    kind: Kind = "credit_card"
    gate = _DIGITS_GATE
    _form = re.compile(r"(?<![\w\-#/+%$])(?<!\d[.,])\d(?:[ -]?\d){11,18}(?![\w%]|-\w|[.,]\d)")
    _networks = re.compile(
        r"4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}"
        r"|6(?:011|5\d\d|4[4-9]\d)\d{12}|35(?:2[89]|[3-8]\d)\d{12}|3(?:0[0-5]|[68]\d)\d{11}|62\d{14}"
    )
    _groups = frozenset({"4-4-4-4", "4-6-5", "4-6-4", "4-4-4-4-3", "4-4-5", "16", "15"})
    _words = re.compile(
        r"card|visa|master|amex|american express|discover|maestro|credit|debit|(?<![a-z])(?:pan|cc)(?![a-z])"
    )

    def __init__(self) -> None:
        self._luhn: ModuleType = optional.require("stdnum.luhn", extra="redact")

    def find(self, text: str, key: str) -> Iterator[Finding]:
        for match in self._form.finditer(text):
            digits = re.sub("[ -]", "", match[0])
            if not self._networks.fullmatch(digits) or not self._luhn.is_valid(digits) or len(set(digits)) < 2:
                continue
            groups = "-".join(str(len(group)) for group in re.split("[ -]", match[0]))
            before = words_before(text, match.start(), key)
            named = self._words.search(before) is not None
            if not named and (
                groups not in self._groups or _NUMBER_OF_SOMETHING.search(before) or before.rstrip()[-1:] == "="
            ):
                continue
            yield Finding(match.start(), match.end(), self.kind, "CREDIT_CARD", digits, by_context=True)


class SocialSecurityNumbers:
    """Social security numbers of the United States, as 123-45-6789; in another form where words say what it is."""

    kind: Kind = "us_ssn"
    gate = _DIGITS_GATE
    _form = re.compile(r"(?<![\w\-#/+$.])\d{3}([- ]?)\d{2}\1\d{4}(?![\w%]|-\w|[.,]\d)")
    _words = re.compile(r"(?<![a-z])(?:ssn|social|social security|tax ?id|taxpayer|itin|tin)(?![a-z])")

    def __init__(self) -> None:
        self._ssn: ModuleType = optional.require("stdnum.us.ssn", extra="redact")

    def find(self, text: str, key: str) -> Iterator[Finding]:
        for match in self._form.finditer(text):
            digits = re.sub("[- ]", "", match[0])
            before = words_before(text, match.start(), key)
            named = self._words.search(before.replace("_", " ")) is not None
            if not named and (match[1] != "-" or _NUMBER_OF_SOMETHING.search(before)):
                continue
            if self._ssn.is_valid(digits):
                yield Finding(match.start(), match.end(), self.kind, "SSN", digits, by_context=True)


class PhoneNumbers:
    """Phone numbers that the numbering plan of their country knows.

    With a country code they are recognized anywhere. Without one they must be of a chosen region, and be written in
    groups or stand behind a word that says what they are.
    """

    kind: Kind = "phone"
    gate = _DIGITS_GATE
    _international = re.compile(r"(?<![\w+.\-/=])\+[1-9](?:[ .()/\-]{0,2}\d){7,14}(?!\d)")
    _american = re.compile(
        r"(?<![\w+.\-/#$=])(?:1[ .-])?(?:\(\d{3}\)[ -]?|\d{3}(?P<mark>[ .-]))\d{3}(?(mark)(?P=mark)|[ .-])\d{4}"
        r"(?![\w%]|[-.,]\d)"
    )
    _national = re.compile(r"(?<![\w+.\-/#$=])\(?0\d(?:[ .()/\-]{0,2}\d){6,12}(?![\w%]|[-.,]\d)")
    _digits = re.compile(r"(?<![\w+.\-/#$])[1-9]\d{8,11}(?![\w%]|[-.,]\d)")
    _words = re.compile(
        r"phone|(?<![a-z])(?:tel|telephone|call|called|calling|callback|mobile|cell|fax|whatsapp|sms|text|dial|reach|ring"
        r"|number(?: on file)? is)(?![a-z])"
    )

    def __init__(self, regions: tuple[str, ...]) -> None:
        self._phones: ModuleType = optional.require("phonenumbers", extra="redact")
        self._regions = regions

    def find(self, text: str, key: str) -> Iterator[Finding]:
        for match in self._international.finditer(text):
            yield from self._valid(match[0], match.start(), None, by_context=True)
        if "US" in self._regions or "CA" in self._regions:
            for match in self._american.finditer(text):
                before = words_before(text, match.start(), key)
                named = self._words.search(before) is not None
                if named or (match["mark"] != " " and not _NUMBER_OF_SOMETHING.search(before)):
                    yield from self._valid(match[0], match.start(), "US", by_context=True)
        for form in (self._national, self._digits):
            for match in form.finditer(text):
                before = words_before(text, match.start(), key)
                if self._words.search(before) is not None and not _NUMBER_OF_SOMETHING.search(before):
                    for region in self._regions:
                        yield from self._valid(match[0], match.start(), region, by_context=True)

    def _valid(self, found: str, start: int, region: str | None, *, by_context: bool) -> Iterator[Finding]:
        phones = self._phones
        while len(found) >= 8:
            try:
                number = phones.parse(found, region)
            except phones.NumberParseException:
                return
            if phones.is_valid_number(number):
                value = phones.format_number(number, phones.PhoneNumberFormat.E164)
                yield Finding(start, start + len(found), self.kind, "PHONE", value, by_context)
                return
            # The digits after it may belong to something else: "+14155550123 2024".
            shorter = re.sub(r"[ .()/\-]+\d+$", "", found)
            if shorter == found:
                return
            found = shorter


class IpAddresses:
    """IP addresses, version 4 and 6."""

    kind: Kind = "ip_address"
    gate = r"[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]|[23fF][0-9a-fA-F]{3}:[0-9a-fA-F:]*:"
    _v4 = re.compile(r"(?<![\w.\-^~<>])(?<![=~<>!]=)(?<![\w.]/)\d{1,3}(?:\.\d{1,3}){3}(?![\w\-]|\.\w)")
    # Only those that are given to networks today, and local ones: times and `std::` look like others.
    _v6 = re.compile(
        r"(?<![\w:.])[23][0-9a-fA-F]{3}(?::{1,2}[0-9a-fA-F]{1,4}){1,7}(?:::)?(?![\w:])|(?<![\w:.])f[cdef][0-9a-fA-F]{2}(?::{1,2}[0-9a-fA-F]{1,4}){1,7}(?![\w:])"
    )
    _version = re.compile(
        r"(?:version|release|chapter|section|build|kernel|firmware|driver|clause|oid|(?<![a-z])(?:v|ver|sec))\W{0,4}\Z"
    )
    # Name servers for everyone, in half of all examples: they belong to nobody in particular.
    _everyones = words("8.8.8.8 8.8.4.4 1.1.1.1 1.0.0.1 9.9.9.9 208.67.222.222 208.67.220.220")

    def __init__(self, which: Literal["public", "all"]) -> None:
        self._all = which == "all"

    def find(self, text: str, key: str) -> Iterator[Finding]:
        for match in self._v4.finditer(text):
            if self._version.search(words_before(text, match.start(), key)) is None:
                yield from self._finding(match)
        if text.count(":") >= 2:
            for match in self._v6.finditer(text):
                yield from self._finding(match)

    def _finding(self, match: re.Match[str]) -> Iterator[Finding]:
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            return
        value = str(address)
        if self._all or (
            address.is_global and not address.is_multicast and value not in self._everyones and not value.endswith(".0")
        ):
            yield Finding(match.start(), match.end(), self.kind, "IP", value)
