from pathlib import Path

from tokflow.store.remembered import CheckMemory

NAME = "checks.jsonl"


def test_a_line_that_was_cut_off_costs_itself_alone(tmp_path: Path):
    CheckMemory(tmp_path).keep("closes", "tokens/a/1", "d1", [])
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"no": "line"}\n7\n[[], 1, 2]\n["closes", "tokens/b/1", "d')

    CheckMemory(tmp_path).keep("closes", "tokens/c/1", "d1", ["wrong"])

    memory = CheckMemory(tmp_path)
    found = [memory.find("closes", f"tokens/{key}/1", "d1") for key in "abc"]
    assert found == [[], None, ["wrong"]]


def test_what_cannot_be_written_is_computed_again(tmp_path: Path):
    (tmp_path / "nowhere").write_text("no folder")

    CheckMemory(tmp_path / "nowhere").keep("closes", "tokens/a/1", "d1", ["wrong"])

    assert CheckMemory(tmp_path / "nowhere").find("closes", "tokens/a/1", "d1") is None
