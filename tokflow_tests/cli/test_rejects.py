from pathlib import Path

from tokflow_tests.cli.commands import json_of, run
from tokflow_tests.tiny import build, declare_small, write_raw

REJECT = {"on_bad_document": "reject"}


def test_rejects_are_listed_with_their_lines_and_in_json(tmp_path: Path):
    write_raw(tmp_path, {"a.jsonl": ["good"], "b.jsonl": ["good"]})
    with (tmp_path / "raw/b.jsonl").open("a") as file:
        file.write('{"text": null}\n{"text": 5}\n{"a": 1, "b": 2}\nno JSON\n')
    build(declare_small(tmp_path, documents=REJECT, exports=["bin"]))
    config = ["--config", tmp_path / "dataset.yaml"]

    assert run("rejects", *config).stdout.splitlines() == [
        "b.jsonl, line 2: expected a string in 'text', found null",
        "b.jsonl, line 3: expected a string in 'text', found the number 5",
        "b.jsonl, line 4: expected the key 'text', found the keys 'a', 'b'",
        "b.jsonl, line 5: expected a JSON object, found b'no JSON' (JSON is malformed: invalid "
        "character (byte 4))",
        "small: 4 rejects",
    ]
    [of_small] = json_of("rejects", *config)["datasets"]
    assert [(of["raw_file"], of["row"]) for of in of_small["rejects"]] == [
        ("b.jsonl", 1),
        ("b.jsonl", 2),
        ("b.jsonl", 3),
        ("b.jsonl", 4),
    ]
    assert run("rejects", *config, "--partition", "a.jsonl").stdout == "small: 0 rejects\n"
    assert (
        "rejected: 4 documents: 1 something else in place of a JSON object, 1 null in place of a "
        "string in 'text', 1 number in place of a string in 'text', 1 other keys in place of the "
        "key 'text'; `tokflow rejects` with the same NAME or --config lists them"
    ) in run("run", *config).stdout
