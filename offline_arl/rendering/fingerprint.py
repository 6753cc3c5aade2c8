"""Name a tokenizer and chat template, so that recorded token ids are used only where they mean the same."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from offline_arl.rendering.template import ChatTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Raise it when the same messages come out as other token ids.
_RENDERING_VERSION = "1"
# What decides the ids of a text. Padding and truncation are left out: they change with every use.
_TOKENIZER_PARTS = ("normalizer", "pre_tokenizer", "model")
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "cls_token", "mask_token")


def fingerprint(tokenizer: PreTrainedTokenizerBase, template: ChatTemplate, *, history_steps: int | None = None) -> str:
    """A short hash of everything that decides token ids: vocabulary, merges, control tokens, template, window."""
    digest = hashlib.sha256(_RENDERING_VERSION.encode())
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        parts = msgspec.json.decode(backend.to_str().encode(), type=dict[str, msgspec.Raw])
        for part in _TOKENIZER_PARTS:
            digest.update(bytes(parts.get(part, msgspec.Raw(b"null"))))
    else:
        digest.update(msgspec.json.encode(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])))
    added = [
        (index, token.content, token.special, token.lstrip, token.rstrip, token.normalized)
        for index, token in sorted(tokenizer.added_tokens_decoder.items())
    ]
    digest.update(msgspec.json.encode(added))
    digest.update(template.source.encode("utf-8", "surrogatepass"))
    digest.update(repr(sorted(template.arguments.items())).encode("utf-8", "surrogatepass"))
    # A template may write these; the padding token is left out, which training code sets at will.
    named = [(name, text) for name, text in sorted(tokenizer.special_tokens_map.items()) if name in _NAMED_TOKENS]
    digest.update(repr(named).encode("utf-8", "surrogatepass"))
    if history_steps is not None:
        digest.update(f"history_steps {history_steps}".encode())
    return digest.hexdigest()[:16]
