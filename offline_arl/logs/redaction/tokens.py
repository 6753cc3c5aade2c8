"""Keys and tokens that can be told by their form: those of providers, JSON web tokens, private keys.

The forms come from detect-secrets where it knows them; the rest is from the providers' own descriptions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from offline_arl import optional
from offline_arl.logs.redaction.config import Kind
from offline_arl.logs.redaction.findings import Finding

# Plugins of detect-secrets: module, class, label. That for OpenAI is left out: it is slow on long texts of dashes.
_PLUGINS = (
    ("aws", "AWSKeyDetector", "AWS_KEY"),
    ("discord", "DiscordBotTokenDetector", "DISCORD_TOKEN"),
    ("github_token", "GitHubTokenDetector", "GITHUB_TOKEN"),
    ("gitlab_token", "GitLabTokenDetector", "GITLAB_TOKEN"),
    ("mailchimp", "MailchimpDetector", "MAILCHIMP_KEY"),
    ("pypi_token", "PypiTokenDetector", "PYPI_TOKEN"),
    ("sendgrid", "SendGridDetector", "SENDGRID_KEY"),
    ("slack", "SlackDetector", "SLACK_TOKEN"),
    ("square_oauth", "SquareOAuthDetector", "SQUARE_KEY"),
    ("stripe", "StripeDetector", "STRIPE_KEY"),
    ("telegram_token", "TelegramBotTokenDetector", "TELEGRAM_TOKEN"),
)
# What detect-secrets has no form for, or an older one.
_FORMS = (
    ("ANTHROPIC_KEY", r"sk-ant-[a-z]{1,12}[0-9]{2}-[A-Za-z0-9_-]{20,}"),
    ("OPENAI_KEY", r"sk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{20,}|sk-[A-Za-z0-9]{48}|sess-[A-Za-z0-9]{40}"),
    ("OPENROUTER_KEY", r"sk-or-v1-[0-9a-f]{64}"),
    ("LANGFUSE_KEY", r"sk-lf-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    ("LANGSMITH_KEY", r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}"),
    ("AWS_KEY", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}|ABSK[A-Za-z0-9+/]{109,269}={0,2}"),
    ("AZURE_KEY", r"(?<=AccountKey=)[A-Za-z0-9+/]{86}==|(?<=SharedAccessKey=)[A-Za-z0-9+/]{43}="),
    ("GITHUB_TOKEN", r"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}"),
    (
        "GITLAB_TOKEN",
        r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat)-[A-Za-z0-9_-]{20,64}(?:\.[0-9a-z]{2}\.[0-9a-z]{9})?",
    ),
    ("GOOGLE_KEY", r"AIza[A-Za-z0-9_-]{35}|GOCSPX-[A-Za-z0-9_-]{28}|ya29\.[A-Za-z0-9_-]{20,}|1//0[A-Za-z0-9_-]{40,}"),
    ("HUGGINGFACE_TOKEN", r"(?:hf|api_org)_[A-Za-z0-9]{34,37}"),
    ("SLACK_TOKEN", r"xox[abeoprs]-[A-Za-z0-9-]{20,}|xapp-[0-9]-[A-Za-z0-9-]{20,}"),
    ("STRIPE_KEY", r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/]{32,}"),
    ("TWILIO_KEY", r"SK[0-9a-f]{32}"),
    ("NPM_TOKEN", r"npm_[A-Za-z0-9]{36}"),
    ("DIGITALOCEAN_TOKEN", r"do[opr]_v1_[0-9a-f]{64}"),
    ("SHOPIFY_TOKEN", r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    ("DATABRICKS_TOKEN", r"dapi[0-9a-f]{32}(?:-[0-9])?"),
    ("GROQ_KEY", r"gsk_[A-Za-z0-9]{48,56}"),
    ("XAI_KEY", r"xai-[A-Za-z0-9]{70,90}"),
    ("NVIDIA_KEY", r"nvapi-[A-Za-z0-9_-]{60,70}"),
    ("REPLICATE_TOKEN", r"r8_[A-Za-z0-9]{37}"),
    ("PERPLEXITY_KEY", r"pplx-[A-Za-z0-9]{48}"),
    ("TAVILY_KEY", r"tvly-(?:dev-|prod-)?[A-Za-z0-9]{28,40}"),
    ("LINEAR_KEY", r"lin_api_[A-Za-z0-9]{40}"),
    ("NOTION_TOKEN", r"ntn_[A-Za-z0-9]{43,50}|secret_[A-Za-z0-9]{43}"),
    ("PINECONE_KEY", r"pcsk_[A-Za-z0-9_]{60,80}"),
    ("ATLASSIAN_TOKEN", r"ATATT3[A-Za-z0-9_=-]{40,}"),
    ("DOCKER_TOKEN", r"dckr_pat_[A-Za-z0-9_-]{27}"),
    ("VAULT_TOKEN", r"hv[sb]\.[A-Za-z0-9_-]{24,}"),
    ("POSTMAN_KEY", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),
    ("AGE_KEY", r"AGE-SECRET-KEY-1[0-9A-Z]{58}"),
    # Other services and gateways that follow OpenAI: the last part must look drawn at random, see `_is_random`.
    ("API_KEY", r"sk-[A-Za-z0-9_-]{20,}"),
)
# What the forms above begin with, or hold where they begin with nothing in particular.
_GATE = (
    r"sk-[A-Za-z0-9_-]{20}|[rs]k_(?:live|test)_|whsec_|AKIA|ASIA|ABIA|ACCA|A3T|ABSK|AccessKey=|AccountKey=|gh[opusr]_|github_pat_"
    r"|gl[a-z]{2,5}-|GR1348941|AIza|GOCSPX-|ya29\.|1//0|hf_|api_org_|xox[abeoprs]-|xapp-|hooks\.slack\.com|npm_|pypi-"
    r"|SG\.|sq0csp-|lsv2_|sess-|SK[0-9a-f]{8}|do[opr]_v1_|shp(?:at|ca|pa|ss)_|dapi|gsk_|xai-|nvapi-|r8_|pplx-|tvly-"
    r"|lin_api_|ntn_|secret_|pcsk_|ATATT3|dckr_pat_|hv[sb]\.|PMAK-|AGE-SECRET-KEY|[0-9a-z]-us[0-9]"
    r"|[0-9]{8}:[A-Za-z0-9_-]{30}|[MNO][A-Za-z0-9_-]{22,25}\.[A-Za-z0-9_-]{6}\."
)
_MIN_DISTINCT = 6


class ApiKeys:
    """Keys and tokens of providers."""

    kind: Kind = "api_key"
    gate = _GATE

    def __init__(self) -> None:
        forms = [*_FORMS[:-1]]
        for module, name, label in _PLUGINS:
            plugin = getattr(optional.require(f"detect_secrets.plugins.{module}", extra="redact"), name)
            # Forms that need words beside them, or have none of their own, are for `credentials`.
            forms += [
                (label, pattern.pattern)
                for pattern in plugin.denylist
                if not pattern.flags & re.IGNORECASE and "(?:key|" not in pattern.pattern
            ]
            if name == "SlackDetector":
                forms.append(("SLACK_WEBHOOK", plugin.denylist[1].pattern))
        forms.append(_FORMS[-1])
        self._labels = [label for label, _ in forms]
        self._forms = [re.compile(f"{_before(label)}(?:{pattern})(?![A-Za-z0-9_])") for label, pattern in forms]
        self._gate = re.compile(_GATE)

    def find(self, text: str, key: str) -> Iterator[Finding]:
        if self._gate.search(text) is None:
            return
        for label, form in zip(self._labels, self._forms, strict=True):
            for match in form.finditer(text):
                value = match[0].rstrip("-")
                if len(set(value)) >= _MIN_DISTINCT + 4 and (label != "API_KEY" or _is_random(value)):
                    yield Finding(match.start(), match.start() + len(value), self.kind, label, value)


def _before(label: str) -> str:
    """What may not stand before a key."""
    if label == "TELEGRAM_TOKEN":  # in addresses it follows "bot"
        return "(?<![0-9])"
    # Long texts in URL-safe base 64 hold `-sk-` by chance.
    return "(?<![A-Za-z0-9_-])" if label == "API_KEY" else "(?<![A-Za-z0-9])"


def _is_random(key: str) -> bool:
    """Whether a part of a key is long and mixed: `sk-estimator-container-id-12` is no key."""
    parts = re.split("[-_]", key)
    return any(len(part) >= 16 and re.search("[0-9]", part) and re.search("[A-Za-z]", part) for part in parts)


class JsonWebTokens:
    """Signed tokens (JWT) whose header and payload are JSON."""

    kind: Kind = "jwt"
    gate = r"eyJ"
    _form = re.compile(
        r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?(?:\.[A-Za-z0-9_-]+){0,2}"
    )

    def __init__(self) -> None:
        plugin = optional.require("detect_secrets.plugins.jwt", extra="redact").JwtTokenDetector
        self._is_valid = plugin.is_formally_valid

    def find(self, text: str, key: str) -> Iterator[Finding]:
        if "eyJ" not in text:
            return
        for match in self._form.finditer(text):
            # Encrypted ones (five parts) have a readable header only.
            head = match[0] if match[0].count(".") <= 2 else match[0].partition(".")[0]
            if self._is_valid(head):
                yield Finding(match.start(), match.end(), self.kind, "JWT", match[0])


class PrivateKeys:
    """Private keys in PEM and PuTTY form, from their first to their last line.

    One without a last line was cut off; it reaches as far as what can be part of a key.
    """

    kind: Kind = "private_key"
    gate = r"PRIVATE KEY|Private-Lines"
    _name = r"(?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"
    _pem = re.compile(
        rf"-----BEGIN {_name}(?:(?:(?!-----)[A-Za-z0-9+/=:,.()_\s-]){{0,20000}}-----END {_name}"
        r"|[A-Za-z0-9+/=\s]{100,20000})"
    )
    _putty = re.compile(r"Private-Lines: ?\d+\s+((?:[A-Za-z0-9+/=]{1,64}\s+)*[A-Za-z0-9+/=]{16,64})")

    def find(self, text: str, key: str) -> Iterator[Finding]:
        if "PRIVATE KEY" in text:
            for match in self._pem.finditer(text):
                end = match.start() + len(match[0].rstrip())
                yield Finding(match.start(), end, self.kind, "PRIVATE_KEY", "".join(match[0].split()))
        if "Private-Lines" in text:
            for match in self._putty.finditer(text):
                yield Finding(match.start(1), match.end(1), self.kind, "PRIVATE_KEY", "".join(match[1].split()))
