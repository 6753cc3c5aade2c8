"""Pipeline files: inheritance, references, `--set`, and one-line errors that name file, key and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from offline_arl.errors import UsageError
from offline_arl.workflows.config import Pipeline, load_pipeline, parse_stage
from offline_arl.workflows.stages import Dataset, Evaluate, Ingest, InitialPolicy, Online, TrainCloning, TrainExtraction

PIPELINE = """\
name: example
model: tiny
environment: support_desk
stages:
  logs: {kind: generate_logs, trajectories: 20}
  store: {kind: ingest, logs: logs}
  start: {kind: initial_policy, store: store}
  data: {kind: dataset, form: bc, store: store, policy: start}
  bc: {kind: train, algorithm: bc, dataset: data, policy: start, learning_rate: 1e-4}
  evaluation: {kind: evaluate, policies: [start, bc], store: store}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "example.yaml"
    path.write_text(PIPELINE)
    return path


def changed(file: Path, **stages: object) -> Path:
    """The file with some stages replaced, or removed where the value is None."""
    raw = yaml.safe_load(PIPELINE)
    for name, stage in stages.items():
        if stage is None:
            del raw["stages"][name]
        else:
            raw["stages"][name] = stage
    file.write_text(yaml.safe_dump(raw, sort_keys=False))
    return file


def test_stages_keep_their_order_and_inherit_what_they_do_not_set(file: Path) -> None:
    pipeline = load_pipeline(file, ["model=some/model"])
    assert list(pipeline.stages) == ["logs", "store", "start", "data", "bc", "evaluation"]
    start, evaluation = pipeline.stages["start"], pipeline.stages["evaluation"]
    assert isinstance(start, InitialPolicy)
    assert start.model == "some/model"
    assert isinstance(evaluation, Evaluate)
    assert evaluation.environment == "support_desk"


def test_a_number_in_exponent_form_is_a_number_though_yaml_reads_text(file: Path) -> None:
    stage = load_pipeline(file).stages["bc"]
    assert isinstance(stage, TrainCloning)
    assert stage.learning_rate == 1e-4


def test_a_stage_that_reads_generated_logs_does_not_inherit_the_source(file: Path) -> None:
    stage = load_pipeline(file, ["source=mine.jsonl"]).stages["store"]
    assert isinstance(stage, Ingest)
    assert (stage.logs, stage.source) == ("logs", None)
    alone = load_pipeline(changed(file, logs=None, store={"kind": "ingest"}), ["source=mine.jsonl"]).stages["store"]
    assert isinstance(alone, Ingest)
    assert (alone.logs, alone.source) == (None, "mine.jsonl")


def test_references_name_the_field_the_stage_and_the_artifact(file: Path) -> None:
    stage = load_pipeline(file).stages["evaluation"]
    assert list(stage.references()) == [
        ("policies", "start", "policy"),
        ("policies", "bc", "policy"),
        ("store", "store", "store"),
    ]


@pytest.mark.parametrize(
    ("override", "stage", "field", "value"),
    [
        ("stages.logs.trajectories=7", "logs", "trajectories", 7),
        ("stages.bc.learning_rate=2e-3", "bc", "learning_rate", 2e-3),
        ("stages.store.format=openai_chat", "store", "format", "openai_chat"),
        ("stages.bc.algorithm=filtered_bc", "bc", "algorithm", "filtered_bc"),
        ("stages.evaluation.policies=[bc]", "evaluation", "policies", ("bc",)),
    ],
)
def test_set_changes_a_key_with_a_value_of_its_type(
    file: Path, override: str, stage: str, field: str, value: object
) -> None:
    assert getattr(load_pipeline(file, [override]).stages[stage], field) == value


def test_set_reaches_into_a_mapping_that_the_file_does_not_have(file: Path) -> None:
    data = load_pipeline(file, ["stages.data.rewards.step_cost=0.5"]).stages["data"]
    assert isinstance(data, Dataset)
    assert data.rewards.step_cost == 0.5


def test_set_reaches_into_a_configuration_that_may_be_left_out(file: Path) -> None:
    path = changed(file, grpo={"kind": "online", "algorithm": "grpo", "policy": "bc"})
    grpo = load_pipeline(path, ["stages.grpo.gate.minimum_success=0.5"]).stages["grpo"]
    assert isinstance(grpo, Online)
    assert grpo.gate is not None
    assert grpo.gate.minimum_success == 0.5
    with pytest.raises(
        UsageError, match=r"'stages\.grpo\.gate\.minimum_succes'; did you mean stages\.grpo\.gate\.minimum_success "
    ):
        load_pipeline(path, ["stages.grpo.gate.minimum_succes=0.5"])


def test_the_last_of_two_settings_of_a_key_wins(file: Path) -> None:
    assert load_pipeline(file, ["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sed=1", ["unknown key 'sed'", "did you mean seed"]),
        ("stages.bcc.learning_rate=1", ["unknown key 'stages.bcc'", "did you mean stages.bc?"]),
        ("stages.bc.learningrate=1", ["unknown key 'stages.bc.learningrate'", "did you mean stages.bc.learning_rate?"]),
        (
            "stages.data.rewards.step_costs=1",
            ["'stages.data.rewards.step_costs'", "did you mean stages.data.rewards.step_cost?"],
        ),
        ("stages.bc.algorithm=iql", ["'stages.bc.values' is missing"]),
        ("stages.bc.kind=trainn", ["stages.bc is of no known kind", "train (algorithm bc|filtered_bc)"]),
        ("stages.data.form=bcc", ["stages.data is of no known kind", "dataset (form bc|filtered_bc", "(form pairs)"]),
        ("stages.bc.learning_rate=.inf", ["stages.bc.learning_rate", "finite number", "not inf"]),
        ("stages.evaluation.policies=[bc, bc]", ["stages.evaluation.policies: 'bc' stands twice"]),
        ("stages.evaluation.policies=[behavior]", ["'behavior' is the name of the logs"]),
        ("stages.evaluation.policies=[../bc]", ["'../bc' is no name"]),
        ("stages.bc.learning_rate=-1", ["stages.bc.learning_rate", "greater than 0", "not -1"]),
        ("stages.bc.policy=strat", ["stages.bc.policy: 'strat' is no earlier stage that makes a policy", "start"]),
        ("stages.bc.policy=store", ["'store' is no earlier stage that makes a policy"]),
        ("stages.start.store=data", ["'data' is no earlier stage that makes a store"]),
        ("seed=x", ["seed", "integer", "not 'x'"]),
        ("seed.x=1", ["seed has no keys of its own"]),
        ("stages.bc=1", ["name a key of the stage"]),
        ("seed", ["--set seed", "key=value"]),
        ("=1", ["key=value"]),
        ("source=[a", ["--set source", "not valid YAML"]),
    ],
)
def test_a_wrong_setting_is_a_one_line_error_that_names_the_key(file: Path, override: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        load_pipeline(file, [override])
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["is a mapping"]),
        ("- a\n- b\n", ["is a mapping"]),
        ("name: x\nstages: {a: [}\n", [".yaml:2: not valid YAML"]),
        ("name: x\nseed: 1\nseed: 2\n", [".yaml:3", "key 'seed' stands twice"]),
        ("name: x\nstages: {}\n", ["stages", "at least 1 item"]),
        ("name: x\n? [1, 2]\n: 3\n", [".yaml:2: not valid YAML: a key is a list or a mapping"]),
        ("[" * 3000, ["not valid YAML: nested too deeply"]),
        ("stages: {a: {kind: generate_logs}}\n", ["the key 'name' is missing"]),
        ("name: x\nstages: {a: {kind: generate_logs, trajectoris: 3}}\n", ["'stages.a.trajectoris'", "trajectories"]),
        ("name: x\nstages: {a: {trajectories: 3}}\n", ["stages.a is of no known kind"]),
        ("name: x\nstages: {A b: {kind: generate_logs}}\n", ["stage name 'A b'"]),
        ("name: x\nstages: {a: 3}\n", ["stages.a"]),
        ("name: x\ncolour: red\nstages: {a: {kind: generate_logs}}\n", ["unknown key 'colour'", "known: name"]),
        (
            "name: x\nstages: {a: {kind: ingest, logs: a}}\n",
            ["'a' is no earlier stage that makes a logs", "there are none"],
        ),
    ],
)
def test_a_wrong_file_is_a_one_line_error_that_names_it(file: Path, text: str, words: list[str]) -> None:
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_pipeline(file)
    message = str(caught.value)
    assert message.startswith(str(file))
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_a_missing_file_and_one_that_is_no_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.yaml: cannot read the pipeline file \(No such file"):
        load_pipeline(tmp_path / "nothing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_pipeline(tmp_path / "binary.yaml")


def test_logs_and_source_exclude_one_another(file: Path) -> None:
    path = changed(file, store={"kind": "ingest", "logs": "logs", "source": "x.jsonl"})
    with pytest.raises(UsageError, match=r"stages\.store has both 'logs' and 'source'"):
        load_pipeline(path)


def test_several_problems_are_counted(file: Path) -> None:
    path = changed(file, data={"kind": "dataset", "form": "bc"})
    with pytest.raises(UsageError, match=r"'stages\.data\.store' is missing \(and 1 more\)$"):
        load_pipeline(path)


def test_a_pipeline_is_the_same_after_a_round_trip_through_plain_data(file: Path) -> None:
    pipeline = load_pipeline(file, ["seed=3"])
    assert Pipeline.model_validate(pipeline.model_dump(mode="json")) == pipeline


def test_one_stage_is_parsed_and_changed_like_a_file() -> None:
    raw = {"kind": "train", "algorithm": "iql", "dataset": "d", "policy": "p", "values": "v"}
    stage = parse_stage(raw, ["inverse_temperature=5", "epochs=1.5"], where="iql")
    assert isinstance(stage, TrainExtraction)
    assert (stage.inverse_temperature, stage.epochs) == (5.0, 1.5)
    with pytest.raises(UsageError, match=r"iql: unknown key 'epoch'; did you mean epochs\?"):
        parse_stage(raw, ["epoch=1"], where="iql")
    with pytest.raises(UsageError, match="iql: max_weight: input should be greater than 0, not 0"):
        parse_stage(raw, ["max_weight=0"], where="iql")


ONLINE = {"kind": "online", "algorithm": "grpo", "policy": "p", "environment": "support_desk"}


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("curriculum=true", "online: curriculum: is a block of settings, not True; write {} or {levels: 3} or null"),
        ("gate=0.2", "online: gate: is a block of settings, not 0.2; write {} or {minimum_success: 0.2} or null"),
        ("length=200", "online: length: is a block of settings, not 200; write {free: 200, limit: 400} or null"),
        ("stop=10", "online: stop: is a block of settings, not 10; write {} or {environment_steps: 50000}"),
        ("curriculum.level=3", "online: unknown key 'curriculum.level'; did you mean curriculum.levels?"),
        ("curriculum={level: 3}", "online: unknown key 'curriculum.level'; did you mean curriculum.levels?"),
        ("levels=3", "online: unknown key 'levels'; did you mean curriculum.levels?"),
        ("minimum_tasks=3", "online: unknown key 'minimum_tasks'; did you mean gate.minimum_tasks?"),
        (
            "validation_tasks=40",
            "validation_tasks is 40 and the gate needs gate.minimum_tasks, 100: set validation_tasks=100",
        ),
    ],
)
def test_blocks_of_settings_and_what_is_in_them_are_named_as_they_are_written(override: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_stage(ONLINE, [override], where="online")
    assert told in str(caught.value)


def test_a_gate_that_judges_by_fewer_tasks_or_none_takes_fewer() -> None:
    for settings in (["gate.minimum_tasks=40"], ["gate=null"]):
        assert parse_stage(ONLINE, ["validation_tasks=40", *settings], where="online")


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        (
            {**ONLINE, "policy": "bc", "replay": "transitions"},
            "stages.last.replay: 'transitions' makes a dataset of form transitions, and replay takes bc, filtered_bc "
            "or return_conditioned",
        ),
        (
            {"kind": "train", "algorithm": "iql_values", "dataset": "data", "policy": "bc"},
            "stages.last.dataset: 'data' makes a dataset of form bc, and dataset takes transitions",
        ),
        ({"kind": "train", "algorithm": "dpo", "dataset": "data", "policy": "bc"}, "and dataset takes pairs"),
        (
            {"kind": "train", "algorithm": "dt", "dataset": "data", "policy": "bc"},
            "and dataset takes return_conditioned",
        ),
    ],
)
def test_a_dataset_of_another_form_is_told_before_anything_runs(
    file: Path, stage: dict[str, object], told: str
) -> None:
    transitions = {"kind": "dataset", "form": "transitions", "store": "store", "policy": "start"}
    with pytest.raises(UsageError) as caught:
        load_pipeline(changed(file, transitions=transitions, last=stage))
    assert told in str(caught.value)
