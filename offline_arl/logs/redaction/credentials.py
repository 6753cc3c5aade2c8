"""What is secret because of the words beside it: passwords, bearer tokens, the credentials in an address.

A value that is found here is labelled SECRET whatever stands beside it, so that a password has one placeholder in
the address, the assignment and the header where it occurs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from offline_arl.logs.redaction.config import Kind
from offline_arl.logs.redaction.findings import Finding, words

LABEL = "SECRET"
_PASSWORD_NAME = r"passwords?|passwd|passphrase|passcode|pwd|pgpassword|mysql_pwd|sshpass"
_KEY_NAME = (
    r"secret|secret[_-]?key|secret[_-]?access[_-]?key|client[_-]?secret|shared[_-]?secret|signing[_-]?secret"
    r"|webhook[_-]?secret|api[_-]?key|api[_-]?secret|api[_-]?token|app[_-]?secret|access[_-]?key|account[_-]?key"
    r"|private[_-]?key|encryption[_-]?key|master[_-]?key|license[_-]?key|auth[_-]?key|service[_-]?key"
    r"|access[_-]?token|auth[_-]?token|refresh[_-]?token|bearer[_-]?token|session[_-]?token|security[_-]?token"
    r"|id[_-]?token|bot[_-]?token|oauth[_-]?token|deploy[_-]?token|personal[_-]?access[_-]?token|token"
    r"|credentials?|connect\.sid|phpsessid|jsessionid"
)
# JSON keys whose value is secret, with what may stand before the name: `db_password`, `x-api-key`, `awsSecretKey`.
_SECRET_KEY = re.compile(rf"(?:.*[_.\-\s])?(?:{_PASSWORD_NAME}|{_KEY_NAME})", re.IGNORECASE)
# What a JSON key that `class_of_key` knows has in it, for Rust's regular expressions.
KEY_GATE = r"(?i:pass|pwd|secret|key|token|credential|session|sid|authorization|cookie|\\u00)"
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_HEADER_KEY = re.compile(r"(?:.*\.)?(?:proxy-)?authorization|(?:.*\.)?(?:set-)?cookie", re.IGNORECASE)
# Tokens that are no secrets.
_HARMLESS_KEY = re.compile(
    r".*(?:page|continuation|cursor|next|sync|csrf|xsrf|idempotency|special|pad|eos|bos|unk|mask|stop|image|start|end)"
    r"[_-]?tokens?",
    re.IGNORECASE,
)
# Words that stand where a secret would: types, placeholders of documentation, what others put in its place.
_NO_SECRET = words(
    """password passwort passwd pwd secret token key string str int text true false null none nil undefined empty
    required optional hidden redacted masked removed filtered changeme change_me change-me placeholder example test
    admin root user username default value foo bar baz todo tbd n/a unknown invalid wrong correct expired basic bearer
    yes no on off auto env os self input prompt getpass bytes object any number boolean file path strong weak reset
    forgot login incorrect missing not_set unset disabled enabled"""
)
_STAND_IN = re.compile(
    r"[<{\[(%$*&@#].*|.*(?:\$\{|\{\{|\$\(|%\(|\*\*\*|\.\.\.|…|xxxx|your[_-]|example|placeholder|redacted|dummy|insert)"
    r".*|[xX*.•_#-]+",
    re.IGNORECASE | re.DOTALL,
)
_CODE = re.compile(
    r"[A-Za-z_]\w*(?:(?:\.|::|->)[A-Za-z_]\w*)+(?:\(.*|\[.*)?|[A-Za-z_]+(?:[_-][A-Za-z]+)+|[\w.]+[(\[].*|/.*|\.{1,2}/.*"
)


@lru_cache(maxsize=4096)
def class_of_key(key: str) -> str:
    """Whether what stands under a JSON key is a credential: "secret", "header" (with a scheme or a name), or ""."""
    if len(key) > 80 or _HARMLESS_KEY.fullmatch(key):
        return ""
    if _HEADER_KEY.fullmatch(key):
        return "header"
    return "secret" if _SECRET_KEY.fullmatch(key) or _SECRET_KEY.fullmatch(_CAMEL.sub("_", key)) else ""


def is_password_key(key: str) -> bool:
    """Whether the key names a password, which people choose, and not a key that a machine drew."""
    return re.search(_PASSWORD_NAME, key, re.IGNORECASE) is not None


def is_secret(value: str, *, chosen: bool, quoted: bool) -> bool:
    """Whether a value at the place of a secret is one, and not a word, a variable or a stand-in.

    Args:
        value: The value.
        chosen: People choose such values (a password); otherwise it must look as if drawn at random.
        quoted: It stands in quotes or is a JSON string, so it is no piece of code.
    """
    if not 4 <= len(value) <= 4096 or value.lower() in _NO_SECRET or not value.isascii() or re.search(r"\s", value):
        return False
    if _STAND_IN.fullmatch(value):
        return False
    has_digit = re.search("[0-9]", value) is not None
    if not chosen:
        return len(value) >= 12 and has_digit and re.search("[A-Za-z]", value) is not None and not _is_dull(value)
    if _CODE.fullmatch(value) and not (quoted and has_digit and not re.search(r"[(\[/]", value)):
        return False
    if value.isdigit():
        return quoted or len(value) >= 6
    if has_digit or re.search(r"[^A-Za-z0-9_.\-]", value.rstrip(".,:;!?)")):
        return quoted or len(value) >= 6
    return quoted and len(value) >= 16 and value.islower() and value.isalpha()


def _is_dull(value: str) -> bool:
    """Names with a number in them, paths and versions: `gpt-4o-realtime`, `v2/keys/list`."""
    if re.fullmatch(r"[a-z]+(?:[-_./:][a-z]*\d{0,4}[a-z]?)*", value, re.IGNORECASE):
        return True
    return len(set(value)) < 6


class Assignments:
    """Passwords and keys in assignments, settings, options and sentences."""

    kind: Kind = "password"
    _names = rf"{_PASSWORD_NAME}|{_KEY_NAME}"
    gate = (
        rf"(?i:(?:{_names})[\\\\\"'`*\])]*\s*[:=]|-(?:{_names})[ \\\\]|-(?:u|-user)[ =]"
        r"|(?:password|passphrase|passcode|pwd|pin)(?: for| is| was|'s| to)[: ])"
    )
    # name, then `=`, `:`, `=>`, `:=`; for options a blank will do.
    _assignment = re.compile(
        rf"(?i)(?<![A-Za-z0-9])(?P<name>(?:[A-Za-z0-9]+[_.-]){{0,4}}(?:{_names}))"
        r"\\*[\"'`*\])]{0,3}\s{0,3}(?:=>|:=|={1,2}|:)\s{0,4}"
        r"(?:(?P<quote>\\*[\"'`])(?P<quoted>[^\"'`\n\\]{1,4096})(?P=quote)|(?P<plain>[^\s\"'`,;<>&|\\]{4,4096}))"
    )
    _option = re.compile(
        rf"(?i)(?<![A-Za-z0-9-])--?(?P<name>(?:[a-z0-9]+-){{0,3}}(?:{_names}))\s+[\"']?(?P<plain>[^\s\"'`,;<>&|-][^\s\"'`;<>&|]{{3,256}})"
    )
    _user = re.compile(r"(?<![\w-])(?:-u|--user)[ =][\"']?[^\s:\"'@/]{1,64}:(?P<plain>[^\s\"'`]{4,256})")
    _sentence = re.compile(
        r"(?i)\b(?:password|passphrase|passcode|pwd|pin)(?: for(?: [\w.@-]{1,30}){1,4}?)?(?: is| was|'s| to)"
        r"[: ]{1,2}[\"'`*]{0,2}(?P<plain>[^\s\"'`*,<>]{4,256})"
    )

    def find(self, text: str, key: str) -> Iterator[Finding]:
        for match in self._assignment.finditer(text):
            name = match["name"]
            if _HARMLESS_KEY.fullmatch(name):
                continue
            quoted = match["quoted"] is not None
            if not quoted and _is_code_after(text, match):
                continue
            yield from self._finding(match, "quoted" if quoted else "plain", is_password_key(name), quoted=quoted)
        for match in self._option.finditer(text):
            yield from self._finding(match, "plain", is_password_key(match["name"]), quoted=False)
        for form in (self._user, self._sentence):
            for match in form.finditer(text):
                yield from self._finding(match, "plain", chosen=True, quoted=False)

    def _finding(self, match: re.Match[str], group: str, chosen: bool, *, quoted: bool) -> Iterator[Finding]:
        value = match[group] if quoted else match[group].rstrip(".,:?)}]")
        if is_secret(value, chosen=chosen, quoted=quoted):
            start = match.start(group)
            yield Finding(start, start + len(value), self.kind, LABEL, value, by_context=True)


def _is_code_after(text: str, match: re.Match[str]) -> bool:
    """Whether the value is an expression: `token = load(path)`, `password: str = ""`."""
    value = match["plain"]
    return "(" in value or bool(re.match(r"\s*(?:=|\()", text[match.end() : match.end() + 3]))


class UrlCredentials:
    """Passwords in addresses, as in `scheme://user:password@host`. The name of the user stays."""

    kind: Kind = "url_credentials"
    gate = r"@"
    _form = re.compile(
        r"(?i)(?<![A-Za-z0-9])[a-z][a-z0-9+.\-]{1,20}:\\?/\\?/[^\s/:@\"'<>\\]{0,64}:"
        r"([^\s/@\"'<>\\]{1,256}(?:@[^\s/@\"'<>\\:.]{1,64})?)@(?=[A-Za-z0-9\[_])"
    )

    def find(self, text: str, key: str) -> Iterator[Finding]:
        if "://" not in text:
            return
        for match in self._form.finditer(text):
            value = match[1]
            if value.lower() not in _NO_SECRET and not _STAND_IN.fullmatch(value):
                yield Finding(match.start(1), match.end(1), self.kind, LABEL, value, by_context=len(value) >= 4)


class Authorization:
    """What follows `Authorization:`, `Bearer` or `Cookie:`."""

    kind: Kind = "authorization"
    gate = r"(?i:authorization|bearer|cookie)"
    _header = re.compile(
        r"(?i)\bauthorization[\"'`]{0,2}\s{0,2}[:=]\s{0,2}[\"'`]?(?:(?:bearer|basic|token|apikey|digest|negotiate)\s+)?"
        r"(?P<value>[A-Za-z0-9._~+/=\-]{8,8192})"
    )
    _bearer = re.compile(r"(?i)\bbearer\s{1,2}(?P<value>[A-Za-z0-9._~+/=\-]{12,8192})")
    _cookie = re.compile(r"(?i)\b(?:set-)?cookie[\"']{0,2}\s{0,2}:\s{0,2}[\"']?(?P<value>[^\n\"']{8,8192})")
    _pair = re.compile(r"[\w.-]{1,80}=([^\s;,\"]{8,4096})")

    def find(self, text: str, key: str) -> Iterator[Finding]:
        for match in self._header.finditer(text):
            yield from self._finding(match["value"], match.start("value"), chosen=True)
        for match in self._bearer.finditer(text):
            yield from self._finding(match["value"], match.start("value"))
        for match in self._cookie.finditer(text):
            yield from self.in_header(match["value"], offset=match.start("value"))

    def in_header(self, text: str, *, offset: int = 0) -> Iterator[Finding]:
        """What is secret in the value of a header, which may be a scheme and a token, a token, or cookies."""
        match = re.fullmatch(r"(?:[A-Za-z]{3,12}\s+)?([A-Za-z0-9._~+/=\-]{8,8192})", text)
        if match is not None and "=" not in match[1].rstrip("="):
            yield from self._finding(match[1], offset + match.start(1), chosen=True)
            return
        for match in self._pair.finditer(text):
            yield from self._finding(match[1], offset + match.start(1))

    def _finding(self, value: str, start: int, *, chosen: bool = False) -> Iterator[Finding]:
        if is_secret(value, chosen=chosen, quoted=True) or (value.endswith("=") and len(value) >= 12):
            yield Finding(start, start + len(value), self.kind, LABEL, value, by_context=True)
