"""Folders of LoRA adapters as policies: loaded on the model that they were trained on, and merged into it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offline_arl.errors import UsageError, reason_of
from offline_arl.optional import require
from offline_arl.trajectories.places import located, object_in, seen_from

CONFIG_NAME = "adapter_config.json"
_BASE_NAME = "base_model.json"  # where the base model lies as seen from here; PEFT's own file has no place for it


def is_adapter(name_or_path: str | Path) -> bool:
    """Whether a folder holds adapters instead of a whole model."""
    return (Path(name_or_path) / CONFIG_NAME).is_file()


def is_model_folder(folder: str | Path) -> bool:
    """Whether a folder holds the configuration of a model or of adapters."""
    return (Path(folder) / "config.json").is_file() or is_adapter(folder)


def adapter_base(folder: str | Path) -> str:
    """The folder or name of the model that adapters belong to.

    Raises:
        UsageError: The configuration is damaged, or names a folder that is not there.
    """
    path = Path(folder) / CONFIG_NAME
    try:
        base = json.loads(path.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{path}: cannot read the adapters' configuration ({reason_of(error)}); save them again"
        ) from error
    if not isinstance(base, str) or not base:
        raise UsageError(f"{path} names no base_model_name_or_path; write there which model the adapters belong to")
    found = located(folder, base, _relative_base(Path(folder)))
    if found is not None:
        return str(found)
    if Path(base).is_absolute() or base.startswith(".") or base.count("/") > 1:  # no name of a hub
        raise UsageError(
            f"{path}: the model {base} that the adapters belong to is not there; change base_model_name_or_path"
        )
    return base


def remember_base(folder: str | Path, place: str | Path) -> None:
    """Make adapters that PEFT has saved find a base model that is a folder, from elsewhere and when both were moved.

    Args:
        folder: Where PEFT has saved them.
        place: Where they will lie.
    """
    path = Path(folder) / CONFIG_NAME
    settings = json.loads(path.read_text(encoding="utf-8"))
    base = settings.get("base_model_name_or_path")
    if not base or not Path(base).is_dir():
        return
    settings["base_model_name_or_path"] = str(Path(base).absolute())
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    relative = {"relative": seen_from(place, base)}
    (Path(folder) / _BASE_NAME).write_text(json.dumps(relative) + "\n", encoding="utf-8")


def _relative_base(folder: Path) -> str | None:
    relative = object_in(folder / _BASE_NAME).get("relative")
    return relative if isinstance(relative, str) else None


def load_merged(folder: str | Path, dtype: str) -> Any:
    """The model of `adapter_base` with the adapters merged into its weights.

    Raises:
        MissingDependencyError: peft is not installed.
        UsageError: The model or the adapters cannot be loaded.
    """
    from offline_arl.models.policy import load_model

    peft = require("peft", extra="train")
    base = load_model(adapter_base(folder), dtype)
    try:
        adapted = peft.PeftModel.from_pretrained(base, str(folder), is_trainable=False)
    except Exception as error:  # damaged files give errors of many classes
        reason = " ".join(str(error).split())[:300]
        raise UsageError(
            f"cannot load the adapters of {str(folder)!r}: {type(error).__name__}: {reason}; save them again"
        ) from error
    return adapted.merge_and_unload()


@contextmanager
def whole_policy(name_or_path: str | Path, dtype: str) -> Iterator[str | Path]:
    """A folder with all weights, for programs that read it themselves: the same one, or a merged copy for the block."""
    if not is_adapter(name_or_path):
        yield name_or_path
        return
    from offline_arl.models.policy import load_policy, save_policy

    with tempfile.TemporaryDirectory(prefix="offline_arl-") as name:
        save_policy(*load_policy(name_or_path, dtype), Path(name) / "policy")
        yield Path(name) / "policy"


def merged_state(model: Any) -> dict[str, Any]:
    """The state dict that a model would have if its adapters were merged into it; that of a plain model as it is.

    The model is left alone: merging in place and taking the adapters out again would round its weights each time,
    and they are the reference that the adapters are held to.
    """
    if not hasattr(model, "peft_config"):
        state: dict[str, Any] = model.state_dict()
        return state
    layers = require("peft.tuners.lora", extra="train")
    base = model.get_base_model()
    merged = {
        name.replace(".base_layer.", "."): value for name, value in base.state_dict().items() if ".lora_" not in name
    }
    for name, module in base.named_modules():
        if isinstance(module, layers.LoraLayer):
            for adapter in module.active_adapters:
                weight = merged[f"{name}.weight"]
                merged[f"{name}.weight"] = weight + module.get_delta_weight(adapter).to(weight)
    return merged
