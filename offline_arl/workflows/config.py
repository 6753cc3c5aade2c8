"""Pipeline files: what a YAML file may say, how `--set` changes it, and one-line errors that name the key.

A pipeline is a name, a seed and an ordered mapping of stages. What the stages have in common (`source`, `model`,
`environment`, `safety`) may stand once at the top; a stage that does not set it takes it from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from offline_arl.environments.safety_config import SafetyConfig
from offline_arl.errors import UsageError, alternatives, either
from offline_arl.trajectories.yaml_text import parse_yaml
from offline_arl.workflows.stages import STAGE_TYPES, AnyStage, Ingest, Stage, stage_type

_INHERITED = ("model", "environment", "safety")
_PLAIN = (int, float, str)  # types whose values are written alike in Python and in YAML
_STAGE_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Pipeline(BaseModel):
    """A pipeline, checked: every stage refers only to earlier ones that produce what it needs."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    description: str = ""
    seed: int = Field(0, ge=0)
    source: tuple[str, ...] | str | None = None  # log files or folders; relative to the working directory
    model: str = "tiny"
    environment: str = "support_desk"
    safety: SafetyConfig | None = None
    stages: dict[str, AnyStage] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, raw: Any) -> Any:
        """Give each stage the top-level values that it does not set itself."""
        if not isinstance(raw, dict) or not isinstance(raw.get("stages"), dict):
            return raw
        shared = {key: raw.get(key, cls.model_fields[key].default) for key in _INHERITED}
        stages = {}
        for name, stage in raw["stages"].items():
            kind = stage_type(stage) if isinstance(stage, dict) else None
            if kind is not None:
                stage = {**{key: value for key, value in shared.items() if key in kind.model_fields}, **stage}
                if kind is Ingest and "logs" not in stage:
                    stage.setdefault("source", raw.get("source"))
            stages[name] = stage
        return {**raw, "stages": stages}

    @field_validator("stages")
    @classmethod
    def _check(cls, stages: dict[str, Stage]) -> dict[str, Stage]:
        """Names that can be folders; references that point backwards to a stage that makes the artifact."""
        seen: dict[str, Stage] = {}
        for name, stage in stages.items():
            if not _STAGE_NAME.fullmatch(name):
                raise ValueError(f"stage name {name!r} must be lower-case letters, digits and _")
            for field, reference, artifact in stage.references():
                makers = [key for key, earlier in seen.items() if artifact in earlier.produces]
                if reference not in makers:
                    raise ValueError(
                        f"stages.{name}.{field}: {reference!r} is no earlier stage that makes a {artifact}; "
                        f"{alternatives(reference, makers)}"
                    )
                form, forms = getattr(seen[reference], "form", None), stage.forms(field)
                if artifact == "dataset" and forms and form not in forms:
                    raise ValueError(
                        f"stages.{name}.{field}: {reference!r} makes a dataset of form {form}, and {field} takes "
                        f"{either(forms)}"
                    )
            if isinstance(stage, Ingest) and stage.logs is not None and stage.source is not None:
                raise ValueError(f"stages.{name} has both 'logs' and 'source'; keep one")
            seen[name] = stage
        return stages


def load_pipeline(path: str | Path, overrides: Sequence[str] = ()) -> Pipeline:
    """Read a pipeline file.

    Args:
        path: The YAML file.
        overrides: `key=value` texts as `--set` takes them: dotted keys, values in YAML
            (`seed=1`, `stages.bc.learning_rate=1e-3`).

    Raises:
        UsageError: The file is missing, is no YAML, or says something that no pipeline can; the message is one
            line that names the file, the key and, for an unknown key, its closest matches.
    """
    where = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{where}: cannot read the pipeline file ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: the pipeline file is not UTF-8 text") from error
    raw = _parse_yaml(text, where)
    if not isinstance(raw, dict):
        raise UsageError(f"{where}: a pipeline file is a mapping with the keys name, seed and stages")
    for override in overrides:
        _apply_override(raw, override, where)
    return parse_pipeline(raw, where)


def parse_pipeline(raw: dict[str, Any], where: str) -> Pipeline:
    """Check a pipeline given as plain data; `where` names its origin in messages.

    Raises:
        UsageError: As `load_pipeline`.
    """
    try:
        return Pipeline.model_validate(raw)
    except ValidationError as error:
        raise UsageError(_describe(error, raw, where)) from error


def parse_stage(raw: dict[str, Any], overrides: Sequence[str], *, where: str) -> Stage:
    """Check the configuration of one stage given as plain data; `where` names its origin in messages.

    Raises:
        UsageError: As `load_pipeline`.
    """
    kind = stage_type(raw)
    if kind is None:
        raise UsageError(f"{where}: unknown kind of stage; kinds: {_kinds()}")
    raw = dict(raw)
    for override in overrides:
        _apply_override(raw, override, where, top=kind)
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise UsageError(_describe(error, raw, where, top=kind)) from error


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return parse_yaml(text)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{where}{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise UsageError(f"{where}: not valid YAML: nested too deeply") from error


def _apply_override(raw: dict[str, Any], override: str, where: str, top: type[BaseModel] | None = None) -> None:
    """Set one dotted key in the plain data of a pipeline file (or of a stage, of class `top`)."""
    key, value = _split(override)
    node: dict[str, Any] = raw
    model: type[BaseModel] | None = Pipeline if top is None else top
    parts = key.split(".")
    for depth, part in enumerate(parts):
        path = ".".join(parts[: depth + 1])
        last = depth == len(parts) - 1
        if model is None:  # inside `stages`: the stage's name
            if part not in node:
                raise UsageError(_unknown(path, part, node, where))
            if last:
                raise UsageError(f"--set {path}: name a key of the stage, for example {path}.{_example(node[part])}")
            model = stage_type(node[part]) if isinstance(node[part], dict) else None
            if model is None:
                raise UsageError(f"{where}: stages.{part} has no known kind")
        else:
            if part not in model.model_fields:
                raise UsageError(_unknown(path, part, model.model_fields, where, model))
            if last:
                node[part] = value
                return
            model = _nested_model(model, part, path, key, where)
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise UsageError(f"{where}: {path} is not a mapping, so --set {key} cannot reach into it")


def _split(override: str) -> tuple[str, Any]:
    """The key and the parsed value of `key=value`."""
    key, separator, text = override.partition("=")
    key = key.strip()
    if not separator or not key:
        raise UsageError(f"--set {override}: expected key=value, for example --set seed=1")
    return key, _parse_yaml(text, f"--set {key}")


def _nested_model(model: type[BaseModel], part: str, path: str, key: str, where: str) -> type[BaseModel] | None:
    """The class below a field, or None for the mapping of stages."""
    if model is Pipeline and part == "stages":
        return None
    below = _model_of(model, part)
    if below is not None:
        return below
    raise UsageError(f"{where}: {path} has no keys of its own, so --set {key} names nothing")


def _model_of(model: type[BaseModel], field: str) -> type[BaseModel] | None:
    """The class of a field that holds a configuration, also one that may be None."""
    if field not in model.model_fields:
        return None
    annotation = model.model_fields[field].annotation
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _example(stage: Any) -> str:
    kind = stage_type(stage) if isinstance(stage, dict) else None
    return "KEY=VALUE" if kind is None else f"{list(kind.model_fields)[-1]}=VALUE"


def _unknown(path: str, part: str, known: Iterable[str], where: str, model: type[BaseModel] | None = None) -> str:
    """The message about a key that `model` (None: the mapping of stages) does not have; suggestions are whole keys."""
    before = path.removesuffix(part)
    blocks = {} if model is None else {field: _model_of(model, field) for field in model.model_fields}
    below = [f"{before}{field}.{part}" for field, block in blocks.items() if block and part in block.model_fields]
    if below:
        return f"{where}: unknown key {path!r}; did you mean {' or '.join(below)}?"
    return f"{where}: unknown key {path!r}; {alternatives(part, list(known), prefix=before)}"


def _describe(error: ValidationError, raw: dict[str, Any], where: str, top: type[BaseModel] = Pipeline) -> str:
    """The first problem of a pipeline file (or of a stage, of class `top`) in one line."""
    problems = error.errors(include_url=False)
    first = problems[0]
    location, model = _locate(first["loc"], raw, top)
    path = ".".join(str(part) for part in location)
    kind = first["type"]
    if kind == "extra_forbidden":
        text = _unknown(path, str(location[-1]), model.model_fields, where, model)
    elif kind == "missing":
        text = f"{where}: the key {path!r} is missing"
    elif kind in ("union_tag_not_found", "union_tag_invalid"):
        text = f"{where}: {path} is of no known kind; kinds: {_kinds()}"
    elif kind == "model_type" and (block := _model_of(model, str(location[-1]))) is not None:
        example = _block_example(model, block, str(location[-1]))
        text = f"{where}: {path}: is a block of settings, not {first['input']!r}; write {example}"
    else:
        message = first["msg"].removeprefix("Value error, ")
        own = kind == "value_error" and path in ("", "stages")  # these messages name the key themselves
        shown = "" if own or isinstance(first["input"], dict | list) else f", not {first['input']!r}"
        text = f"{where}: {message}" if own else f"{where}: {path}: {message[0].lower()}{message[1:]}{shown}"
    return text if len(problems) == 1 else f"{text} (and {len(problems) - 1} more)"


def _block_example(model: type[BaseModel], block: type[BaseModel], field: str) -> str:
    """How a block of settings is written: its defaults, some of its keys, and null where it may be left out.

    Fields that are worth an example have it in `Field(examples=...)`.
    """
    ways = []
    if not any(info.is_required() for info in block.model_fields.values()):
        ways.append("{}")
    keys = {name: info.examples[0] for name, info in block.model_fields.items() if info.examples}
    if not keys:
        plain = {name: info.default for name, info in block.model_fields.items() if type(info.default) in _PLAIN}
        keys = dict(list(plain.items())[:1])
    if keys:
        ways.append("{" + ", ".join(f"{name}: {value}" for name, value in keys.items()) + "}")
    if type(None) in get_args(model.model_fields[field].annotation):
        ways.append("null")
    return " or ".join(ways)


def _locate(
    loc: tuple[int | str, ...], raw: dict[str, Any], top: type[BaseModel]
) -> tuple[list[int | str], type[BaseModel]]:
    """Pydantic's location without the union tags it puts in, and the class that has the key at its end."""
    before: list[int | str] = []
    rest = list(loc)
    model = top
    if top is Pipeline and len(rest) > 2 and rest[0] == "stages":
        before = rest[:2]
        kind = stage_type(raw["stages"][rest[1]])
        if kind is None:
            return before, Stage
        model = kind
        rest = rest[4 if _has_two_tags(kind) else 3 :]
    for part in rest[:-1]:
        model = _model_of(model, str(part)) or model
    return [*before, *rest], model


def _has_two_tags(kind: type[Stage]) -> bool:
    """Whether stages of this kind are told apart by `algorithm` or `form` as well (pydantic then reports two tags)."""
    name = kind.model_fields["kind"].annotation
    return sum(other.model_fields["kind"].annotation == name for other in STAGE_TYPES) > 1


def _kinds() -> str:
    """The kinds as a pipeline file writes them, with their algorithms or forms."""
    names = []
    for kind in STAGE_TYPES:
        second = "algorithm" if "algorithm" in kind.model_fields else "form"
        texts = [
            "|".join(kind.model_fields[key].annotation.__args__)  # type: ignore[union-attr]
            for key in ("kind", second)
            if key in kind.model_fields
        ]
        names.append(texts[0] if len(texts) == 1 else f"{texts[0]} ({second} {texts[1]})")
    return ", ".join(names)
