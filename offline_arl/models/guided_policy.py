"""Value-guided policies on disk: the folder of the behavior policy, how values steer it, and the heads.

    policy/config.json             with an architecture name of its own
    policy/model.safetensors ...   the behavior policy
    policy/value_guidance.json     `GuidanceConfig`
    policy/value_guidance/         the token-level heads

Transformers goes by the model type and loads the behavior policy. A server goes by the architecture: one that cannot
guide refuses the folder instead of serving the behavior policy in its place. The heads have a folder of their own
because servers take every safetensors file beside config.json for weights of the model.
"""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import msgspec

from offline_arl.errors import DataError, UsageError, reason_of
from offline_arl.models.token_heads import TokenValueHeads, load_token_heads, save_token_heads
from offline_arl.models.value_guidance import GuidanceConfig, ValueGuidance

GUIDANCE_NAME = "value_guidance.json"
HEADS_FOLDER = "value_guidance"
ARCHITECTURE_PREFIX = "ValueGuided"


def is_value_guided(policy: str | Path) -> bool:
    """Whether a policy folder is that of a value-guided policy."""
    return (Path(policy) / GUIDANCE_NAME).is_file()


def load_value_guidance(policy: str | Path) -> ValueGuidance:
    """Read heads and settings of a value-guided policy.

    Raises:
        DataError: A file is missing or damaged.
    """
    path = Path(policy) / GUIDANCE_NAME
    try:
        config = msgspec.json.decode(path.read_bytes(), type=GuidanceConfig)
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"{path}: cannot read how values steer ({reason_of(error)}); make the policy again") from error
    return ValueGuidance(load_token_heads(Path(policy) / HEADS_FOLDER), config)


def architecture(policy: str | Path) -> str:
    """The architecture that config.json names, which a server goes by.

    Raises:
        DataError: The file is missing or names none.
    """
    return str(_settings(Path(policy))["architectures"][0])


def save_value_guided_policy(
    behavior: str | Path, heads: TokenValueHeads, config: GuidanceConfig, output: str | Path
) -> None:
    """Copy a policy folder and add heads and settings; the folder appears complete or not at all.

    Raises:
        DataError: `behavior` is no model folder, or the heads do not fit it.
        UsageError: It is guided by values already.
    """
    behavior, output = Path(behavior), Path(output)
    if is_value_guided(behavior):
        raise UsageError(f"{behavior}: is guided by values already; give the behavior policy")
    check_heads_fit(heads, behavior)
    settings = _settings(behavior)
    settings["architectures"] = [f"{ARCHITECTURE_PREFIX}{name}" for name in settings["architectures"]]
    ValueGuidance(heads, config)  # refuses a support outside the vocabulary
    temporary = output.parent / f".{output.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        shutil.copytree(behavior, temporary, ignore=shutil.ignore_patterns("checkpoint-*"))
        (temporary / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
        save_token_heads(heads, temporary / HEADS_FOLDER)
        (temporary / GUIDANCE_NAME).write_bytes(msgspec.json.encode(config) + b"\n")
        if output.exists():
            shutil.rmtree(output)
        temporary.rename(output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_heads_fit(heads: TokenValueHeads, policy: str | Path) -> None:
    """Compare the sizes of heads with those of a policy.

    Raises:
        DataError: `policy` is no model folder, or states or vocabulary are of another size.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(policy, trust_remote_code=False).get_text_config()
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{policy}: is no model folder ({reason}); give one that save_pretrained wrote") from error
    shape = heads.shape
    if (shape.vocabulary_size, shape.state_size) != (config.vocab_size, config.hidden_size):
        raise DataError(
            f"the value heads are for {shape.vocabulary_size} tokens and states of {shape.state_size}, "
            f"{policy} has {config.vocab_size} and {config.hidden_size}; train the heads on the states of this policy"
        )


def _settings(policy: Path) -> dict[str, Any]:
    """The content of config.json."""
    path = policy / "config.json"
    try:
        settings: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read ({reason_of(error)}); give a folder that save_pretrained wrote"
        ) from error
    if not settings.get("architectures"):
        raise DataError(f"{path}: names no architecture; give a folder that save_pretrained wrote")
    return settings
