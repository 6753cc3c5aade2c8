"""A policy as a model folder that `vllm serve` runs with tools, as does whatever else reads Hugging Face folders."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from offline_arl.errors import UsageError
from offline_arl.models.guided_policy import is_value_guided
from offline_arl.models.policy import DTYPES, load_policy, save_policy
from offline_arl.models.reranked_policy import is_reranked
from offline_arl.rendering import Renderer
from offline_arl.workflows.single import new_folder

SERVING_NAME = "serving.json"

# How vLLM calls the parser of each form of tool calls (`vllm serve --tool-call-parser`).
_PARSERS = {"hermes": "hermes", "llama3_json": "llama3_json", "mistral": "mistral", "qwen_xml": "qwen3_xml"}


@dataclass(frozen=True)
class ExportedModel:
    """What was written. `command` serves it on this machine alone; `notes` say what a server cannot do by itself."""

    output: str
    parameters: int
    dtype: str
    tool_format: str
    tool_call_parser: str | None
    stop_token_ids: list[int]
    max_model_len: int | None
    command: str
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def export_model(policy: str | Path, output: str | Path, *, dtype: str = "bfloat16") -> ExportedModel:
    """Write a policy so that a server runs it as it was trained: merged weights, its chat template, its stop tokens.

    Args:
        policy: Folder of a policy, or of LoRA adapters, which are merged.
        output: Folder to make; it holds the model, and `serving.json` with the command that serves it.
        dtype: Of the weights: "bfloat16", "float16" or "float32".

    Raises:
        UsageError: The policy cannot be loaded or is more than a model, the dtype is unknown, or `output` is not empty.
    """
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}; choose one of {', '.join(DTYPES)}")
    for is_more, remedy in (
        (is_value_guided, "fold it (train value_folded), or serve its folder as it is with vLLM (docs/pipelines.md)"),
        (is_reranked, "it samples several candidates a step; export the policy that it draws them from"),
    ):
        if is_more(policy):
            raise UsageError(f"{policy}: is a model and values that guide it, which no plain server knows; {remedy}")
    model, tokenizer = load_policy(policy, dtype)
    renderer = Renderer(tokenizer)
    tokenizer.chat_template = renderer.chat_template
    stops = list(renderer.stop_token_ids)
    model.generation_config.eos_token_id = stops if len(stops) > 1 else stops[0]
    parser = _PARSERS.get(renderer.tool_format)
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    command = ["vllm", "serve", str(output), "--host", "127.0.0.1", "--served-model-name", Path(output).name]
    if parser is not None:
        command += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    exported = ExportedModel(
        output=str(output),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype=dtype,
        tool_format=renderer.tool_format,
        tool_call_parser=parser,
        stop_token_ids=stops,
        max_model_len=length,
        command=shlex.join(command),
        notes=_notes(renderer, Path(policy), parser),
    )
    with new_folder(output) as work:
        save_policy(model, tokenizer, work / "model")
        for path in (work / "model").iterdir():
            path.rename(work / path.name)
        (work / "model").rmdir()
        text = msgspec.json.format(msgspec.json.encode(exported.as_dict()), indent=2)
        (work / SERVING_NAME).write_bytes(text + b"\n")
    return exported


def _notes(renderer: Renderer, policy: Path, parser: str | None) -> list[str]:
    notes = []
    if parser is None and renderer.tool_format != "none":
        notes.append(
            f"vLLM has no parser that is known to read calls in the form {renderer.tool_format!r}; see its "
            "documentation of --tool-call-parser"
        )
    if renderer.history_steps is not None:
        notes.append(
            f"the policy was trained to see the last {renderer.history_steps} steps only: send the system prompt and "
            "those, not the whole conversation"
        )
    if (policy / "return_conditioning.json").is_file():
        notes.append(
            "the policy expects the return it is asked for in the messages (return_conditioning.json in its folder); a "
            "client has to write it there"
        )
    return notes
