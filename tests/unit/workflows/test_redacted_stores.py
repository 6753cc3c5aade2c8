"""Redacted stores: placeholders that last, a key that is guarded, and no mixing with what was not redacted."""

from __future__ import annotations

import hashlib
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("detect_secrets", reason="pip install 'offline_arl[redact]'")
pytest.importorskip("phonenumbers", reason="pip install 'offline_arl[redact]'")
pytest.importorskip("stdnum", reason="pip install 'offline_arl[redact]'")

from offline_arl.cli.entry import app
from offline_arl.errors import DataError, UsageError
from offline_arl.logs.redaction.config import RedactionConfig
from offline_arl.trajectories.schema import TextPart
from offline_arl.trajectories.store import Store
from offline_arl.workflows.care import select
from offline_arl.workflows.deletion import plan_deletion
from offline_arl.workflows.filters import Filters
from offline_arl.workflows.ingest import ingest
from offline_arl.workflows.redacted_stores import KEY_FILE


def chat(path: Path, *texts: str) -> Path:
    records = [{"messages": [{"role": "user", "content": t}, {"role": "assistant", "content": "ok"}]} for t in texts]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def said(store: Path) -> list[str]:
    found = []
    for trajectory in Store(store).iter_trajectories():
        (part,) = trajectory.messages[0].content or []
        assert isinstance(part, TextPart)
        found.append(part.text)
    return found


def test_placeholders_last_over_files_runs_and_processes(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = ingest(chat(tmp_path / "a.jsonl", "ann@example.com", "+1 415-555-0132"), store, redact=True)
    assert first.redactions == {"email": 1, "phone": 1}
    assert first.to_json()["redactions"] == {"email": 1, "phone": 1}
    program = (
        "import sys; from offline_arl.workflows.ingest import ingest; ingest(*sys.argv[1:], redact=True, workers=2)"
    )
    log = chat(tmp_path / "b.jsonl", "Ann@Example.com", "415-555-0132")
    subprocess.run([sys.executable, "-c", f"if __name__ == '__main__':\n    {program}", log, store], check=True)
    texts = said(store)
    assert texts[0].startswith("<EMAIL_")
    assert texts[1].startswith("<PHONE_")
    assert texts == [*texts[:2], *texts[:2]]


def test_no_hash_of_the_original_is_kept(tmp_path: Path) -> None:
    log = chat(tmp_path / "a.jsonl", "ann@example.com")
    log.write_bytes(log.read_bytes() + b"ann@example.com is no JSON\n")
    for name in ("one", "two"):
        ingest(log, tmp_path / name, redact=True, workers=1 if name == "one" else 2)
    plain = [hashlib.sha256(line.strip()).hexdigest() for line in log.read_bytes().splitlines()]
    hashes = [Store(tmp_path / name).trajectories.collect()["source_sha256"][0] for name in ("one", "two")]
    assert hashes[0] != hashes[1]
    assert not {*hashes} & {*plain}
    for path in tmp_path.glob("*/**/*.jsonl"):
        assert not any(digest in path.read_text() for digest in plain)


def test_another_store_has_other_placeholders(tmp_path: Path) -> None:
    log = chat(tmp_path / "a.jsonl", "ann@example.com")
    for name in ("one", "two"):
        ingest(log, tmp_path / name, redact=True)
    assert said(tmp_path / "one") != said(tmp_path / "two")


def test_several_processes_make_the_same_store(tmp_path: Path) -> None:
    log = chat(tmp_path / "a.jsonl", *(f"user{number % 50}@example.com" for number in range(5_000)))
    one = ingest(log, tmp_path / "one", redact=True)
    (tmp_path / "two").mkdir()
    Store.create(tmp_path / "two")
    (tmp_path / "two" / KEY_FILE).write_text((tmp_path / "one" / KEY_FILE).read_text())
    two = ingest(log, tmp_path / "two", redact=True, workers=2)
    assert one.redactions == two.redactions == {"email": 5_000}
    assert said(tmp_path / "one") == said(tmp_path / "two")


def test_a_rerun_adds_nothing(tmp_path: Path) -> None:
    log = chat(tmp_path / "a.jsonl", "ann@example.com")
    ingest(log, tmp_path / "store", redact=True)
    again = ingest(log, tmp_path / "store", redact=True)
    assert (again.records, again.duplicates, again.redactions) == (1, 1, {})


def test_the_manifest_says_that_the_store_is_redacted_and_with_what(tmp_path: Path) -> None:
    config = RedactionConfig(kinds=("email", "phone"), patterns={"project": "Blue Heron"})
    ingest(chat(tmp_path / "a.jsonl", "Blue Heron"), tmp_path / "store", redact=config)
    entry = Store(tmp_path / "store").manifest.configuration["redaction"]
    assert entry["kinds"] == ["email", "phone", "project"]
    manifest = (tmp_path / "store" / "manifest.json").read_text()
    assert "Heron" not in manifest, "a pattern may be what is to be hidden"
    assert (tmp_path / "store" / KEY_FILE).read_text().strip() not in manifest


def test_the_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    ingest(chat(tmp_path / "a.jsonl", "ann@example.com"), tmp_path / "store", redact=True)
    path = tmp_path / "store" / KEY_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(bytes.fromhex(path.read_text().strip())) == 32


def test_a_store_is_redacted_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    one, two = chat(tmp_path / "a.jsonl", "ann@example.com"), chat(tmp_path / "b.jsonl", "bob@example.com")
    ingest(one, tmp_path / "plain")
    with pytest.raises(UsageError, match="not redacted"):
        ingest(two, tmp_path / "plain", redact=True)
    assert not (tmp_path / "plain" / KEY_FILE).exists()
    ingest(one, tmp_path / "redacted", redact=True)
    with pytest.raises(UsageError, match="redacted records only; ingest with --redact"):
        ingest(two, tmp_path / "redacted")
    with pytest.raises(UsageError, match="other settings"):
        ingest(two, tmp_path / "redacted", redact=RedactionConfig(kinds=("email",)))
    assert len(said(tmp_path / "plain")) == len(said(tmp_path / "redacted")) == 1


def test_a_lost_or_exchanged_key_is_noticed(tmp_path: Path) -> None:
    log = chat(tmp_path / "a.jsonl", "ann@example.com")
    ingest(log, tmp_path / "store", redact=True)
    path = tmp_path / "store" / KEY_FILE
    path.write_text("00" * 32)
    with pytest.raises(DataError, match="not the key"):
        ingest(log, tmp_path / "store", redact=True)
    path.unlink()
    with pytest.raises(DataError, match="restore it from a copy"):
        ingest(log, tmp_path / "store", redact=True)


def test_reasons_of_refusals_do_not_quote_what_was_replaced(tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    good = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}]}
    bad: dict[str, Any] = {"messages": [{"role": "ann@example.com", "content": "hi"}]}
    log.write_text("".join(json.dumps(record) + "\n" for record in (good, bad)))
    report = ingest(log, tmp_path / "store", redact=True)
    assert report.quarantined == 1
    assert "ann@" not in report.reasons[0]
    (part,) = (tmp_path / "store" / "quarantine").iterdir()
    refused = json.loads(part.read_text())
    assert "<EMAIL_" in refused["raw"]
    assert "<EMAIL_" in refused["reason"]
    assert "ann@" not in part.read_text()


def test_the_command_redacts_and_says_what(tmp_path: Path) -> None:
    log = chat(tmp_path / "a.jsonl", "ann@example.com and E-1234", "kept@example.org")
    options = ["--redact", "--redact-pattern", r"BADGE=E-\d+", "--keep", r".*@example\.org"]
    result = CliRunner().invoke(app, ["ingest", str(log), "--store", str(tmp_path / "s"), *options, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["redactions"] == {"badge": 1, "email": 1}
    assert said(tmp_path / "s")[1] == "kept@example.org"
    table = CliRunner().invoke(app, ["ingest", str(log), "--store", str(tmp_path / "t"), *options])
    assert "redacted badge" in table.stdout


def test_phone_numbers_of_other_countries(tmp_path: Path) -> None:
    log = chat(tmp_path / "a.jsonl", "Call me on phone 030 901820, please")
    options = ["--redact", "--phone-region", "DE", "--json"]
    result = CliRunner().invoke(app, ["ingest", str(log), "--store", str(tmp_path / "s"), *options])
    assert json.loads(result.stdout)["redactions"] == {"phone": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep", "x"], "add --redact"),
        (["--redact", "--redact-pattern", "NAME"], "matches nothing at all"),
        (["--redact", "--redact-pattern", "NAME=("], "no regular expression"),
        (["--redact", "--redact-pattern", "email=x"], "none of the kinds"),
    ],
)
def test_wrong_options_are_explained(tmp_path: Path, options: list[str], message: str) -> None:
    log = chat(tmp_path / "a.jsonl", "hi")
    result = CliRunner().invoke(app, ["ingest", str(log), "--store", str(tmp_path / "s"), *options, "--json"])
    assert result.exit_code == 2
    assert message in json.loads(result.stdout)["error"]
    assert not (tmp_path / "s").exists()


def of_user(path: Path, user: str) -> Path:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}]
    path.write_text(json.dumps({"messages": messages, "user_id": user}))
    return path


def test_a_person_is_found_by_the_id_that_was_redacted(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for number, user in enumerate(["ann@example.com", "bob@example.com", "u3"]):
        ingest(of_user(tmp_path / f"{number}.jsonl", user), store, redact=True)
    assert len(plan_deletion(store, Filters(users=("Ann@example.com",))).trajectory_ids) == 1
    assert len(plan_deletion(store, Filters(users=("bob@example.com", "u3"))).trajectory_ids) == 2
    (placeholder,) = plan_deletion(store, Filters(users=("ann@example.com",))).users
    assert placeholder.startswith("<EMAIL_")
    assert len(plan_deletion(store, Filters(users=(placeholder,))).trajectory_ids) == 1
    assert select(store, tmp_path / "some", Filters(users=("ann@example.com",)))["trajectories"] == 1


def test_a_deletion_that_cannot_find_a_person_says_so(tmp_path: Path) -> None:
    """With settings of its own, the store does not tell how ids were replaced."""
    store = tmp_path / "store"
    config = RedactionConfig(patterns={"TICKET": r"T-\d+"})
    ingest(of_user(tmp_path / "a.jsonl", "ann@example.com"), store, redact=config)
    arguments = ["delete", str(store), "--user", "ann@example.com", "--yes"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert "no trajectory fits these filters" in result.stdout
    assert "the store is redacted" in result.stdout
    assert len(Store(store)) == 1


def test_without_redaction_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    program = (
        "import sys; from offline_arl.workflows.ingest import ingest; ingest(*sys.argv[1:]);"
        "sys.exit(any('redaction' in name or 'detect_secrets' in name for name in sys.modules))"
    )
    log = chat(tmp_path / "a.jsonl", "hi")
    subprocess.run([sys.executable, "-c", program, log, tmp_path / "store"], check=True)
