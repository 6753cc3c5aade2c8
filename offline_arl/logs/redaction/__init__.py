"""Replacing secrets and personal data in log records by stable placeholders, before anything of them is kept.

`redactor.Redactor` does it; `config.RedactionConfig` says what is looked for. The detectors are in `tokens` (what a
provider's key looks like), `credentials` (what is secret because of the words beside it) and `personal`.
"""
