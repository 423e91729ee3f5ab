"""README and the pages of docs do what they say: code, tables, commands and links.

`make docs` checks the site that they become.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from benchmarks import scale
from docs.site import reference
from tokflow.cli.app import COMMANDS
from tokflow.exports import FORMATS
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import load_datasets
from tokflow.sequences.packing import PACKERS
from tokflow_tests.cli.commands import run
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.tiny import write_raw, write_yaml

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("examples/**/*.md")),
]


README = (ROOT / "README.md").read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def datasets_of(text: str, folder: Path) -> list[Dataset]:
    """Return the datasets that the first YAML of a text declares."""
    (folder / "my.yaml").write_text(blocks(text, "yaml")[0], encoding="utf-8")
    return load_datasets(folder / "my.yaml")


def test_the_yaml_of_a_page_declares_what_the_page_says(tmp_path: Path):
    texts = README, text_of("data.md"), text_of("records.md")

    [mine], [code], [recorded] = (datasets_of(text, tmp_path) for text in texts)

    assert len(blocks(README, "yaml")[0].splitlines()) == 6  # "six lines"
    assert mine.name == "mine"
    assert [export.name for export in mine.exports] == ["bin", "parquet"]
    assert len(FORMATS) == 19  # "any of nineteen formats"
    assert code.name == "stack_c"
    assert code.split.parts["train"].characters == 100_000_000
    assert code.packing.sequence_length == 1536
    assert [export.name for export in code.exports] == ["bin", "pickle", "parquet"]
    assert code.exports[1].options.shard_size == 500_000_000
    wiki, crawl = (recorded.card.card_of(of) for of in recorded.card.sources)
    assert (wiki.license, crawl.license) == ("cc-by-sa-4.0", "odc-by")
    assert recorded.card.source_of("wiki/de.jsonl.zst") == "wiki/*"


def test_the_site_has_every_page_of_docs():
    named = set(re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert {page.name for page in ROOT.glob("docs/*.md")} <= named
    linked = set(links(ROOT / "docs/index.md")) | {"index.md", "tutorial.md"}
    assert {page.name for page in ROOT.glob("docs/*.md")} <= linked


def test_each_dataset_of_chats_is_one_for_the_trainer_under_whose_name_it_stands(tmp_path: Path):
    sections = re.split(r"^## ", text_of("chats.md"), flags=re.MULTILINE)[1:5]
    found = {}
    for section in sections:
        [dataset] = datasets_of(section, tmp_path)
        found[section.splitlines()[0].lower()] = dataset.exports[0].name

    assert found == {name: name for name in ("trl", "axolotl", "torchtitan", "megatron-bridge")}


def first_cells(page: str, heading: str) -> list[str]:
    """Return the names in the first column of the table under a heading."""
    section = text_of(page).split(f"# {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def test_tables_have_a_row_for_each_format_and_strategy_and_for_no_command_that_is_not():
    assert sorted(first_cells("formats.md", "Formats")) == sorted(FORMATS)
    assert sorted(first_cells("packing.md", "Strategies")) == sorted(PACKERS)
    told = {*re.findall(r"^\| `tokflow ([\w-]+)", text_of("running.md"), re.MULTILINE)}
    assert {"run", "plan", "verify", "schema"} <= told <= {*COMMANDS}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_code_of_a_page_can_be_read_and_its_links_lead_somewhere(page: Path):
    text = page.read_text(encoding="utf-8")

    for block in blocks(text, "python"):
        compile(block, page.name, "exec")
    for block in blocks(text, "yaml"):
        yaml.safe_load(block)
    for target in links(page):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{target}: no such file"
        assert not anchor or anchor in anchors(there), f"{target}: no such heading"


def links(page: Path) -> Iterator[str]:
    """Yield the links of a page into the repository, and its pictures."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    for target in re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`]*`", "", text)):
        if "://" not in target:
            yield target


def anchors(page: Path) -> set[str]:
    """Return what links may name in a page, as web sites of repositories and mkdocs write it."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_code_page_names_files_that_exist_for_each_thing_to_add():
    rows = re.findall(r"^\| (an? [^|]+) \| ([^|]*`[^|]+) \|$", text_of("code.md"), re.MULTILINE)

    places = {thing: re.findall(r"`(tokflow/[\w/.]+)`", where) for thing, where in rows}

    assert [*places] == [
        "a raw source",
        "a split rule",
        "a stage",
        "a store on another cloud",
        "a number of the closing table",
    ]
    assert all(places.values())
    assert [path for of in places.values() for path in of if not (ROOT / path).is_file()] == []


SCALE = text_of("scale.md")
JOBS = {
    "SLURM_ARRAY_TASK_ID": "64",
    "JOB_COMPLETION_INDEX": "63",
    "AWS_BATCH_JOB_ARRAY_INDEX": "63",
}
"""The last of 64 jobs, as each scheduler numbers it."""


@pytest.mark.slow
def test_the_tables_are_those_of_the_benchmark():
    printed = ["\n".join(table(scale.FINEWEB)) + "\n" for table in scale.TABLES.values()]

    assert blocks(SCALE, "text") == printed, "run `make bench-scale` and paste its tables"


def _words_of(script: str) -> list[str]:
    """Return the words that a script of the page calls tokflow with, as the shell makes them."""
    shown = f'tokflow() {{ printf "%s\\n" "$@"; }}\n{script}'
    environment = {**os.environ, **JOBS}
    done = subprocess.run(["sh", "-c", shown], env=environment, capture_output=True, check=True)
    return done.stdout.decode().splitlines()


def test_the_line_of_each_scheduler_builds_the_last_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    write_raw(tmp_path, {f"{n:02}.jsonl": [f"{n}"] for n in range(64)})
    write_yaml(tmp_path, name="web").rename("web.yaml")
    [job] = map(yaml.safe_load, blocks(SCALE, "yaml"))
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    scripts = [script for script in [*blocks(SCALE, "sh"), command[2]] if "--shard" in script]

    lines = [_words_of(script) for script in scripts]

    assert len(lines) == 3
    assert all(line == lines[0] for line in lines)
    result = run(*lines[0])
    assert result.exit_code == 0, result.output
    assert [path.name for path in (tmp_path / "store/web/tokens").iterdir()] == ["63.jsonl"]


def test_every_line_for_the_shell_has_options_that_there_are():
    for script in blocks(SCALE, "sh"):
        assert run(*_words_of(script), "--help").exit_code == 0, script


OBJECT_STORES = text_of("object_stores.md")

PERMISSIONS = {
    "LIST": "s3:ListBucket",
    "GET": "s3:GetObject",
    "HEAD": "s3:GetObject",
    "PUT": "s3:PutObject",
    "COPY": "s3:PutObject",
    "BEGIN": "s3:PutObject",
    "PART": "s3:PutObject",
    "PART_COPY": "s3:PutObject",
    "COMPLETE": "s3:PutObject",
    "DELETE": "s3:DeleteObject",
    "ABORT": "s3:AbortMultipartUpload",
    "UPLOADS": "s3:ListBucketMultipartUploads",
}
"""By the kind of request; there is no other, such as of the bucket itself."""


def test_the_commands_and_the_code_of_the_page_work(
    tmp_path: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    [declared], [commands], [code] = (
        blocks(OBJECT_STORES, language) for language in ("yaml", "sh", "python")
    )
    monkeypatch.chdir(tmp_path)
    object_store.put("raw/a.jsonl", b'{"text": "Some text of a page."}\n' * 40)
    Path("web.yaml").write_text(declared.replace("s3://bucket", object_store.url))

    with object_store.counted() as count:
        for line in commands.replace("s3://bucket", object_store.url).splitlines():
            result = run(*line.split()[1:])
            assert result.exit_code == 0, result.output
            assert str(tmp_path / "cache") not in result.output
        found: dict = {}
        exec(code.replace("s3://bucket", object_store.url), found)

    assert found["batch"]["input_ids"].shape == (8, 16)
    assert count["UPLOADS"] > 0
    assert {*count} <= {*PERMISSIONS}


def test_the_policy_of_the_page_allows_what_servers_see_and_no_more():
    policy, rule = map(json.loads, blocks(OBJECT_STORES, "json"))
    allowed = [action for part in policy["Statement"] for action in part["Action"]]

    assert sorted(allowed) == sorted({*PERMISSIONS.values()})
    assert sorted(re.findall(r"^\| `(s3:\w+)`", OBJECT_STORES, re.M)) == sorted(allowed)
    assert rule["Rules"][0]["Status"] == "Enabled"


def test_every_command_has_a_section():
    page = "\n".join(reference.command_line())

    assert re.findall(r"^## tokflow ([\w-]+)$", page, re.MULTILINE) == sorted(COMMANDS)
    assert "`-o, --output FILE`" in page
    assert "`--private, --public`" in page
    assert "\\[tool.dg.project\\]" in page


def test_every_field_of_a_yaml_has_an_anchor_and_says_what_it_takes():
    page = "\n".join(reference.yaml_fields())

    anchors = re.findall(r"^### `\w+` \{ #([\w.\-]+) \}$", page, re.MULTILINE)
    assert len(anchors) == len({*anchors})
    assert {field.removesuffix("-field") for field in anchors} > {*Dataset.model_fields}
    assert "\nwhole number from 1 to 16,777,216 · default `1024`\n" in page
    assert "\ntext · required\n" in page
    assert all(f"(#{name})" in page for name in ("raw", "documents.limit", "split.parts.NAME"))
