"""Tokenizers in the style of well-known model families, trained here: nothing is downloaded.

Chat templates of Qwen and Llama are read from the installed TRL package without importing it; Hermes, SmolLM2,
Mistral and Gemma styles are written out, short, with the facts of their formats.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.benchmarks.tau_bench import TauBenchAdapter
from offline_arl.models.tiny import train_tiny_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.trajectories.schema import Trajectory

AIRLINE = Path(__file__).parents[4] / "shared" / "real_logs" / "tau-bench" / "gpt-4o-airline.json"

# The word pattern of the Qwen and Llama 3 tokenizers: line breaks after blanks join in one piece.
_WORDS = "|".join(
    [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
_SAMPLE = [
    "Hello, how can I help you with your reservation today?\n\nPlease give me your user id.",
    'tool call {"name": "get_user_details", "arguments": {"user_id": "mia_li_3668"}} result',
    "I have booked the flight. Is there anything else?\nThank you, goodbye!",
]

_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
          "<|eom_id|>", "<|python_tag|>")  # fmt: skip
_QWEN_ADDED = ("<tool_call>", "</tool_call>", "<think>", "</think>")
_MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
            "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")  # fmt: skip

HERMES = """\
{%- if tools -%}<|im_start|>system
Function signatures: <tools>{% for tool in tools %}{{ tool | tojson }} {% endfor %}</tools><|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
<|im_start|>assistant
{{ message.content }}
{%- for call in message.tool_calls or [] -%}
{{ '\\n' if message.content or not loop.first else '' }}<tool_call>
{"arguments": {{ call.function.arguments | tojson }}, "name": {{ call.function.name | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == 'tool' -%}
<|im_start|>tool
<tool_response>
{"name": {{ message.name | tojson }}, "content": {{ message.content | tojson }}}
</tool_response><|im_end|>
{% else -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""

SMOLLM2 = """\
{%- if messages[0].role != 'system' -%}<|im_start|>system
You are a helpful assistant<|im_end|>
{% endif -%}
{%- for message in messages -%}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""

MISTRAL = """\
{{- bos_token -}}
{%- if tools -%}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' and message.tool_calls -%}
{{ message.content }}[TOOL_CALLS][
{%- for call in message.tool_calls -%}
{%- if call.id | length != 9 -%}{{ raise_exception('call ids must have nine characters') }}{%- endif -%}
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}
{{- ', ' if not loop.last else '' -}}
{%- endfor -%}]{{ eos_token }}
{%- elif message.role == 'assistant' -%}{{ message.content }}{{ eos_token }}
{%- elif message.role == 'tool' -%}[TOOL_RESULTS]{"content": {{ message.content | tojson }}}[/TOOL_RESULTS]
{%- else -%}[INST]{{ message.content }}[/INST]
{%- endif -%}
{%- endfor -%}"""

# No system role, no tools, strict alternation.
GEMMA = """\
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}
{%- for message in messages -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles must alternate') }}{%- endif -%}
<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}
{{ message.content | trim }}<end_of_turn>
{% endfor -%}
{%- if add_generation_prompt -%}<start_of_turn>model
{% endif -%}"""


def trl_template(name: str) -> str:
    """A chat template that TRL ships, by name; read as a file, TRL is not imported."""
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.origin is None:
        pytest.skip("trl is not installed")
    return (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def build_tokenizer(
    special: tuple[str, ...], *, eos: str, template: Any, added: tuple[str, ...] = (), bos: str | None = None
) -> PreTrainedTokenizerFast:
    """A small byte-level BPE with the given control tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_SAMPLE, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, bos_token=bos, chat_template=template)


@cache
def family_tokenizer(name: str) -> PreTrainedTokenizerFast:
    match name:
        case "qwen2.5":
            return build_tokenizer(_CHATML, eos="<|im_end|>", added=_QWEN_ADDED, template=trl_template("qwen2_5"))
        case "qwen3":
            return build_tokenizer(_CHATML, eos="<|im_end|>", added=_QWEN_ADDED, template=trl_template("qwen3"))
        case "qwen3.5":
            return build_tokenizer(_CHATML, eos="<|im_end|>", added=_QWEN_ADDED, template=trl_template("qwen3_5_think"))
        case "llama3.1" | "llama3.2":
            template = trl_template(name.replace(".", "_"))
            return build_tokenizer(_LLAMA, eos="<|eot_id|>", bos="<|begin_of_text|>", template=template)
        case "hermes":
            templates = {"default": SMOLLM2, "tool_use": HERMES}
            return build_tokenizer(_CHATML, eos="<|im_end|>", template=templates)
        case "smollm2":
            return build_tokenizer(_CHATML, eos="<|im_end|>", template=SMOLLM2)
        case "mistral":
            return build_tokenizer(_MISTRAL, eos="</s>", bos="<s>", template=MISTRAL)
        case "gemma":
            special = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
            return build_tokenizer(special, eos="<eos>", bos="<bos>", template=GEMMA)
        case "tiny":
            return train_tiny_tokenizer(_SAMPLE * 3, vocabulary_size=400)
    raise ValueError(name)


@cache
def family_renderer(name: str) -> Renderer:
    if name == "qwen3-original":
        return Renderer(family_tokenizer("qwen3"), training_template=False)
    return Renderer(family_tokenizer(name))


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[[str], PreTrainedTokenizerFast]:
    """A family's tokenizer by name."""
    return family_tokenizer


@pytest.fixture(scope="session")
def renderer_of() -> Callable[[str], Renderer]:
    """A family's renderer by name; "qwen3" uses TRL's training variant, "qwen3-original" the original."""
    return family_renderer


@pytest.fixture(scope="session")
def trl_template_of() -> Callable[[str], str]:
    """A chat template that TRL ships, by name."""
    return trl_template


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    """Builds a tokenizer with other control tokens or another template."""
    return build_tokenizer


@pytest.fixture(scope="session")
def airline() -> list[Trajectory]:
    """Some of 200 real customer-service trajectories, 20 of them."""
    if not AIRLINE.exists():
        pytest.skip(f"real logs are missing: {AIRLINE}")
    records = json.loads(AIRLINE.read_text(encoding="utf-8"))[::10]
    adapter = TauBenchAdapter()
    return [
        trajectory
        for position, record in enumerate(records)
        for trajectory in adapter.convert(RawRecord(AIRLINE.name, AIRLINE.name, position, json.dumps(record).encode()))
    ]


@pytest.fixture(scope="session")
def tools() -> list[dict[str, Any]]:
    """Two tools in OpenAI form."""

    def tool(name: str, key: str) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {key: {"type": "string", "description": "an id"}}}
        return {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": parameters}}

    return [tool("get_user_details", "user_id"), tool("cancel_reservation", "reservation_id")]
