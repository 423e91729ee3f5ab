"""Mixtures, built: their tokens can be read, for those of `bytes` are bytes of UTF-8."""

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from tokflow.audit.trace import trace_tokens
from tokflow.audit.verify import verify_dataset, verify_path
from tokflow.errors import ConfigError, MissingOutputError
from tokflow.exports.reading import open_export
from tokflow.pipeline.dataset import Dataset
from tokflow.pipeline.declared import load_datasets
from tokflow.pipeline.gc import find_garbage, remove_all
from tokflow.pipeline.mixture import graph_of
from tokflow.pipeline.plan import make_plan
from tokflow.pipeline.run import build_dataset
from tokflow_tests.chats import save_chat_tokenizer
from tokflow_tests.cli.commands import json_of, run
from tokflow_tests.outputs import problems_of
from tokflow_tests.tiny import EOS, build, load_dataset, write_texts

CODE = {"a.jsonl": ["aa", "ab", "ac", "ad"], "b.jsonl": ["ba", "bb"]}
"""18 tokens."""

PROSE = {"c.jsonl": [f"p{n:02d}" for n in range(20)], "d.jsonl": ["val1", "val2"]}
"""80 tokens and 10."""

SPLIT = {"parts": {"train": {"files": "[a-c].jsonl"}, "validation": {"files": "d.jsonl"}}}


def declare_source(folder: Path, name: str, files: dict[str, list[str]], **more: Any) -> Path:
    for key, texts in files.items():
        write_texts(folder / name / key, texts)
    fields = {
        "name": name,
        "raw": {"files": f"{name}/*.jsonl"},
        "tokenizer": {"kind": "bytes"},
        "store": "store",
        **more,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(fields, sort_keys=False))
    return path


def declare_mixture(folder: Path, mixture: dict[str, Any], **more: Any) -> Dataset:
    """Return a mixture of CODE and PROSE, rows of 4 tokens, source by source in file order."""
    for name, files, own in (("code", CODE, {}), ("prose", PROSE, {"split": SPLIT})):
        if not (folder / f"{name}.yaml").exists():
            declare_source(folder, name, files, **own)
    for name, source in mixture["sources"].items():
        source["config"] = f"{name.partition('.')[0]}.yaml"
    fields = {
        "name": "mixed",
        "mixture": mixture,
        "packing": {"sequence_length": 4},
        "shuffle": {},
        "exports": ["bin", "parquet"],
        "store": "store",
        **more,
    }
    path = folder / "mixed.yaml"
    path.write_text(yaml.safe_dump(fields, sort_keys=False))
    return load_dataset(path)


def documents_of(dataset: Dataset, part: str, name: str = "bin") -> list[str]:
    folder = graph_of(dataset).named("export", name).folder
    read = open_export(folder).read(part)
    tokens = [token for some in read for token in some["token_ids"].tolist()]
    return bytes(token if token != EOS else 32 for token in tokens).decode().split()


def test_a_mixture_builds_its_sources_and_repeats_one_as_often_as_it_says(tmp_path: Path):
    sources = {"code": {"epochs": 2}, "prose": {"epochs": 1}}
    dataset = declare_mixture(tmp_path, {"sources": sources})

    built = build(dataset)

    assert documents_of(dataset, "train") == [
        *CODE["a.jsonl"] * 2,
        *CODE["b.jsonl"] * 2,
        *PROSE["c.jsonl"],
    ]
    assert documents_of(dataset, "validation") == PROSE["d.jsonl"]
    assert make_plan(dataset).is_up_to_date
    assert not (tmp_path / "store/code/sequences").exists()
    details = built.export("bin").manifest.details["mixture"]
    assert details["code"]["train"] == {
        "planned_tokens": 36,
        "planned_epochs": 2.0,
        "available_tokens": 18,
        "tokens": 36,
        "epochs": 2.0,
        "num_budget_cuts": 0,
    }


def test_realised_tokens_are_the_planned_ones_and_the_last_document_keeps_its_eos(tmp_path: Path):
    sources = {"code": {"weight": 0.6, "max_epochs": 4}, "prose": {"weight": 0.4}}
    dataset = declare_mixture(tmp_path, {"sources": sources, "tokens": 78})

    built = build(dataset)

    details = built.export("bin").manifest.details["mixture"]
    assert [details[name]["train"]["tokens"] for name in sources] == [47, 31]  # 46.8 and 31.2
    documents = documents_of(dataset, "train")
    code = [text for text in documents if not text.startswith("p")]
    assert sorted(map(len, code)) == [1] + [2] * 15  # two passes, 3 documents, 1 token and EOS
    assert {code.count(text) for text in CODE["a.jsonl"] + CODE["b.jsonl"]} == {2, 3}
    prose = [text for text in documents if text.startswith("p")]
    assert len(set(prose)) == len(prose) == 8  # 7 whole and one of 2 tokens and EOS
    assert sorted(map(len, prose)) == [2] + [3] * 7


@pytest.mark.parametrize("bos", ["none", "first"])
def test_a_document_that_the_budget_cuts_is_counted_with_the_characters_that_end_in_it(
    tmp_path: Path, bos: str
):
    text = "aé漢😀bcdefg"
    declare_source(tmp_path, "code", {"a.jsonl": [text]}, tokenizer={"kind": "bytes", "bos": bos})
    num_bos = int(bos == "first")
    for num_bytes in (0, 2, 3, 5, 9, 11):
        sources = {"code": {"tokens": num_bos + num_bytes + 1}}
        dataset = declare_mixture(tmp_path, {"sources": sources}, exports=["bin"])

        [split] = build(dataset).of("split")

        counts = split.manifest.counts
        assert counts["train.num_tokens"] == num_bos + num_bytes + 1
        assert counts["train.num_chars"] == len(text.encode()[:num_bytes].decode(errors="ignore"))
        assert counts["train.num_budget_cuts"] == 1
    assert problems_of(dataset) == []


def test_every_output_of_a_mixture_verifies_and_leads_to_its_source(tmp_path: Path):
    sources = {"code": {"epochs": 2.5}, "prose": {"epochs": 0.5}}
    dataset = declare_mixture(tmp_path, {"sources": sources})
    built = build(dataset)

    found = [*verify_dataset(dataset), *verify_path(tmp_path / "store/mixed")]

    assert [problem for of in found for problem in (*of.problems, *of.notes)] == []
    for name in ("bin", "parquet"):
        folder = built.export(name).folder
        [*origins] = trace_tokens(folder, part="train", start=0, stop=120)
        texts = CODE | PROSE
        assert {origin.raw_file for origin in origins} >= {"code/a.jsonl", "code@2/a.jsonl"}
        for origin in origins:
            text = texts[origin.raw_file.partition("/")[2]][origin.row]
            assert origin.text == text[origin.char_start : origin.char_stop]


def test_another_tokenizer_is_refused_by_name_before_anything_is_tokenized(tmp_path: Path):
    declare_source(tmp_path, "code", CODE)
    path = declare_source(tmp_path, "prose", PROSE)
    fields = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**fields, "tokenizer": {"kind": "bytes", "eos": "none"}}))
    dataset = declare_mixture(
        tmp_path, {"sources": {"code": {"epochs": 1}, "prose": {"epochs": 1}}}
    )

    with pytest.raises(ConfigError) as caught:
        build_dataset(dataset)

    assert "mixture.sources.prose: expected the EOS of code, 256" in str(caught.value)
    assert not (tmp_path / "store/code/tokens").exists()


def test_a_plan_says_what_the_sources_lack_and_what_cannot_be_mixed(tmp_path: Path):
    sources = {"code": {"weight": 1}, "prose": {"weight": 1}}
    dataset = declare_mixture(tmp_path, {"sources": sources, "tokens": 60})

    before = make_plan(dataset)
    with pytest.raises(ConfigError) as caught:
        build_dataset(dataset)
    after = make_plan(dataset)

    waiting = {of.stage: of.reason for of in before.own if of in before.missing}
    assert waiting["split"] == "missing (waits for the splits of its sources)"
    assert {of.output.graph.dataset.name for of in before.missing if of.stage == "tokens"} == {
        "code",
        "prose",
    }
    needed = "30, which are 1.67 epochs of the 18 that it has"
    assert needed in str(caught.value)
    assert [needed in str(bad.error) for bad in after.bad] == [True]
    assert {of.stage for of in after.planned} == {"tokenizer", "tokens", "split"}


def test_a_plan_of_several_has_what_mixtures_need_of_a_source_once(tmp_path: Path):
    declare_mixture(tmp_path, {"sources": {"code": {"epochs": 1}, "prose": {"epochs": 1}}})
    fields = yaml.safe_load((tmp_path / "mixed.yaml").read_text())
    (tmp_path / "again.yaml").write_text(yaml.safe_dump({**fields, "name": "again"}))
    configs = [arg for name in ("mixed", "code", "again") for arg in ("--config", f"{name}.yaml")]

    document = json_of("plan", *(tmp_path / arg if "." in arg else arg for arg in configs))

    missing = {
        plan["dataset"]: [(of["dataset"], of["stage"], of["name"]) for of in plan["missing"]]
        for plan in document["datasets"]
    }
    listed = [of for outputs in missing.values() for of in outputs]
    assert len(listed) == len(set(listed))
    assert {of for of, _, _ in missing["mixed"]} == {"prose", "mixed"}
    assert {of for of, _, _ in missing["code"]} == {"code"}
    assert {of for of, _, _ in missing["again"]} == {"again"}
    num_bytes = {plan["dataset"]: plan["num_bytes"] for plan in document["datasets"]}
    sizes = {
        name: sum(path.stat().st_size for path in (tmp_path / name).iterdir())
        for name in ("code", "prose")
    }
    assert num_bytes == {"mixed": sizes["prose"], "code": sizes["code"], "again": 0}


def test_other_weights_remake_no_token_and_a_new_file_of_a_source_is_taken_up(tmp_path: Path):
    declare_mixture(tmp_path, {"sources": {"code": {"epochs": 1}, "prose": {"epochs": 1}}})
    mixture = {"sources": {"code": {"epochs": 2}, "prose": {"epochs": 1}}}
    build(load_dataset(tmp_path / "mixed.yaml"))

    changed = make_plan(declare_mixture(tmp_path, mixture))
    write_texts(tmp_path / "code/z.jsonl", ["za"])
    added = make_plan(load_dataset(tmp_path / "mixed.yaml"))
    build(load_dataset(tmp_path / "mixed.yaml"))

    assert [(of.output.graph.dataset.name, of.stage, of.name) for of in changed.missing] == [
        ("mixed", "split", "code/a.jsonl"),
        ("mixed", "split", "code/b.jsonl"),
        ("mixed", "sequences", "code/a.jsonl"),
        ("mixed", "sequences", "code/b.jsonl"),
        ("mixed", "export", "bin"),
        ("mixed", "export", "parquet"),
    ]
    assert [of.name for of in added.missing if of.stage == "tokens"] == ["z.jsonl"]
    assert documents_of(load_dataset(tmp_path / "mixed.yaml"), "train").count("za") == 2


SHUFFLES: list[dict[str, Any] | None] = [
    None,
    {"seed": 3, "documents": "file"},
    {"seed": 3, "documents": "file", "sequences": True},
    {"seed": 3, "documents": "dataset"},
]


def test_a_shuffle_of_a_mixture_loses_and_repeats_nothing_more(tmp_path: Path):
    mixture = {"sources": {"code": {"epochs": 3}, "prose": {"epochs": 1}}}
    plain = declare_mixture(tmp_path, mixture)
    build(plain)
    expected = documents_of(plain, "train")
    path = tmp_path / "mixed.yaml"
    fields = yaml.safe_load(path.read_text())
    del fields["shuffle"]
    for shuffle in SHUFFLES:
        more = {} if shuffle is None else {"shuffle": shuffle}
        path.write_text(yaml.safe_dump({**fields, **more}))
        shuffled = load_dataset(path)

        build(shuffled)

        found = documents_of(shuffled, "train")
        assert sorted(found) == sorted(expected)
        assert found != expected
        assert problems_of(shuffled) == []
        if shuffle is None:
            assert shuffled.shuffle.documents == "dataset"
        elif shuffle["documents"] == "file":
            assert len({found.index(text) for text in CODE["a.jsonl"]}) == 4
            assert found[:4] != found[4:8]  # passes have orders of their own, or are mixed


def test_what_a_source_cut_stays_cut_and_groups_are_partitions(tmp_path: Path):
    split = {"boundary": "character", "parts": {"train": {"characters": 5}, "rest": {"start": 5}}}
    declare_source(tmp_path, "code", CODE, split=split)
    declare_source(tmp_path, "prose", PROSE, raw={"files": "prose/*.jsonl", "group": 2})
    dataset = declare_mixture(
        tmp_path, {"sources": {"code": {"epochs": 2}, "prose": {"epochs": 1.5}}}
    )

    built = build(dataset)

    documents = documents_of(dataset, "train")
    assert [text for text in documents if text[0] in "ab"] == ["aa", "ab", "a"] * 2 + [
        *["ba", "bb"] * 2  # of another file, 4 characters
    ]
    assert documents_of(dataset, "rest") == ["c", "ad"]
    assert problems_of(dataset) == []
    origins = trace_tokens(built.export("bin").folder, part="train", start=0, stop=150)
    assert {of.raw_file for of in origins} >= {"prose/c.jsonl", "prose@2/c.jsonl"}


@pytest.mark.parametrize(
    ("bos", "spelt", "num_chars"),
    [
        ("first", "", 5 + 5 + 1),  # between BOS and EOS
        ("first", "<|bos|>", 12 + 12 + 8),
    ],
)
def test_a_chat_that_the_budget_cuts_keeps_its_loss_mask_and_is_counted(
    tmp_path: Path, bos: str, spelt: str, num_chars: int
):
    reply = "{% generation %}{{ m.content }}{% endgeneration %}"
    template = f"{spelt}{{% for m in messages %}}{reply}{{% endfor %}}"
    folder = tmp_path / "chats"
    folder.mkdir()
    chats = [{"messages": [{"role": "assistant", "content": f"chat{n}"}]} for n in range(4)]
    (folder / "a.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    documents = {"messages": "messages", "chat_template": template}
    tokenizer = {"kind": "bytes", "bos": bos}
    if spelt:
        save_chat_tokenizer(tmp_path)
        names = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}
        tokenizer |= {"kind": "file", "name": "tok", **names}
    declare_source(tmp_path, "chats", {}, documents=documents, tokenizer=tokenizer)
    dataset = declare_mixture(tmp_path, {"sources": {"chats": {"tokens": 17}}}, exports=["parquet"])

    built = build(dataset)

    counts = built.export("parquet").manifest.counts
    assert counts["train.num_tokens"] == 17
    assert 0 < counts["train.num_loss_tokens"] < 17
    assert built.of("split")[0].manifest.counts["train.num_chars"] == num_chars
    assert problems_of(dataset) == []


def declare_pairs(folder: Path, **more: Any) -> Dataset:
    """Return a mixture of CODE and one prompt of 2 characters with a completion of 3; beside it
    stands a record that is rejected."""
    (folder / "pairs").mkdir()
    (folder / "pairs/a.jsonl").write_text('{"p": "12", "c": "345"}\n{"p": 1}\n')
    documents = {"prompt": "p", "completion": "c", "on_bad_document": "reject"}
    declare_source(folder, "pairs", {}, documents=documents)
    sources: dict[str, Any] = {"pairs": {"epochs": 1}, "code": {"epochs": 1}}
    return declare_mixture(folder, {"sources": sources}, **more)


@pytest.mark.parametrize("shuffle", [{}, {"documents": "dataset", "seed": 1}])
def test_plain_text_beside_chats_is_in_the_loss_wherever_it_stands(
    tmp_path: Path, shuffle: dict[str, Any]
):
    dataset = declare_pairs(tmp_path, shuffle=shuffle, exports=["npy", "parquet"])

    built = build(dataset)

    folder = built.export("npy").folder
    rows = pq.read_table(built.export("parquet").folder / "train-00000-of-00001.parquet")
    ids = [np.load(folder / "train.npy"), np.concatenate(rows["input_ids"].to_pylist())]
    masks = [np.load(folder / "loss_mask/train.npy"), np.concatenate(rows["loss_mask"].to_pylist())]
    for token_ids, mask in zip(ids, masks, strict=True):
        assert sorted(token_ids[mask == 0].tolist()) == [ord("1"), ord("2")]
        assert len(mask) == len(token_ids) == 24
    assert problems_of(dataset) == []


def test_notices_of_a_mixture_are_of_its_sources_and_plain_text_is_supervised_whole(tmp_path: Path):
    dataset = declare_pairs(tmp_path, exports=["bin"])

    notices = build(dataset).notices

    assert [notice.text.partition(": ")[0] for notice in notices] == ["supervised", "rejected"]
    assert notices[0].text == "supervised: 22 of 24 tokens (91.6 %)"  # 3 of 5, EOS, and 18 of code
    assert make_plan(dataset).totals.notices() == notices


@pytest.mark.parametrize(
    ("mixture", "more", "expected"),
    [
        ({"sources": {"code": {"epochs": 1}}, "part": "rest"}, {}, "expected a part 'rest'"),
        ({"sources": {"code": {"epochs": 1}}}, {"split": SPLIT}, "`split:` beside `mixture:`"),
        ({"sources": {"code": {"epochs": 1}}}, {"store": "else"}, "the store of the mixture"),
        ({"sources": {"code": {"epochs": 1}}}, {"name": "code"}, "found the mixture itself"),
        ({"sources": {"outer": {"epochs": 1}}}, {}, "found a mixture"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused_when_it_is_read(
    tmp_path: Path, mixture: dict[str, Any], more: dict[str, Any], expected: str
):
    (tmp_path / "outer.yaml").write_text("name: outer\nmixture: {sources: {code: {epochs: 1}}}\n")

    with pytest.raises(ConfigError) as caught:
        declare_mixture(tmp_path, mixture, **more)

    assert expected in str(caught.value)


def test_a_source_is_found_by_its_name_in_the_same_file_and_takes_no_default_from_there(
    tmp_path: Path,
):
    write_texts(tmp_path / "code/a.jsonl", CODE["a.jsonl"])
    write_texts(tmp_path / "prose/c.jsonl", PROSE["c.jsonl"])
    sources = {"code": {"epochs": 1}, "prose": {"epochs": 0.5}}
    declared: dict[str, Any] = {
        "defaults": {"tokenizer": {"kind": "bytes"}, "store": "store", "exports": ["bin"]},
        "datasets": {
            "code": {"raw": {"files": "code/*.jsonl"}},
            "prose": {"raw": {"files": "prose/*.jsonl"}},
            "mixed": {"mixture": {"sources": sources}},
        },
    }
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump(declared, sort_keys=False))

    _, _, mixed = load_datasets(path)
    build(mixed)

    assert len(documents_of(mixed, "train")) == 14
    declared["datasets"]["mixed"]["mixture"]["sources"] = {"none": {"epochs": 1}}
    path.write_text(yaml.safe_dump(declared, sort_keys=False))
    with pytest.raises(ConfigError, match="found none called 'none' in"):
        load_datasets(path)


def test_the_terminal_says_what_was_planned_and_what_came_out(tmp_path: Path):
    sources = {"code": {"weight": 0.6, "max_epochs": 4}, "prose": {"weight": 0.4}}
    declare_mixture(tmp_path, {"sources": sources, "tokens": 78}, exports=["bin"])

    plan = run("plan", "--config", tmp_path / "mixed.yaml")
    result = run("run", "--config", tmp_path / "mixed.yaml")

    assert "code: a.jsonl" in plan.stdout
    assert "mixed: code: tokens a.jsonl: 4 documents" in result.stdout
    said = [line.split()[:8] for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    shown = run("inspect", tmp_path / "store/mixed/exports/bin").stdout
    assert [line for line in shown.splitlines() if line.startswith(("code ", "prose "))] == [
        line for line in result.stdout.splitlines() if line.startswith(("code ", "prose "))
    ]
    assert ["code", "train", "47", "47", "60.26", "%", "2.61", "2.61"] in said
    assert ["prose", "train", "31", "31", "39.74", "%", "0.39", "0.39"] in said
    assert ["prose", "validation", "10", "10", "100.00", "%", "1.00", "1.00"] in said
    assert "not taken of prose: 49 of its 80 tokens of train\n" in result.stdout
    assert "cut where their tokens end: 2 documents (1 of code, 1 of prose)\n" in result.stdout
    assert "not taken of code" not in result.stdout  # which is taken more than twice
    assert "left out: nothing" not in result.stdout


def test_any_mixture_takes_what_it_plans_and_no_document_once_more_than_another(tmp_path: Path):
    random = Random(seed := 0)
    texts: dict[str, list[str]] = {}
    for name in ("one", "two"):
        files = {
            f"{number}.jsonl": [
                f"{name}.{number}.{row}" + "x" * random.choice([0, 3, 40])
                for row in range(random.randrange(1, 40))
            ]
            for number in range(random.randrange(1, 5))
        }
        texts[name] = [text for of_file in files.values() for text in of_file]
        declare_source(tmp_path, name, files)
    sources = {name: {"epochs": round(random.uniform(0.1, 3), 2)} for name in texts}
    shuffle = random.choice([{}, {"documents": "dataset"}, {"documents": "file"}])
    mixture = {"sources": sources, "seed": seed}
    dataset = declare_mixture(tmp_path, mixture, shuffle=shuffle, exports=["bin"])

    details = build(dataset).export("bin").manifest.details["mixture"]

    found = Counter(documents_of(dataset, "train"))
    for name, of_source in texts.items():
        planned, taken = (details[name]["train"][key] for key in ("planned_tokens", "tokens"))
        num_files = len({text.split(".")[1] for text in of_source})
        assert taken == planned
        assert planned == round(sources[name]["epochs"] * sum(len(t) + 1 for t in of_source))
        whole = int(sources[name]["epochs"])
        assert {found[text] for text in of_source} <= {whole, whole + 1}
        cut = [text for text in found if text.startswith(name[:1]) and text not in of_source]
        assert len(cut) <= num_files
    assert problems_of(dataset) == []


def test_a_source_of_which_little_is_taken_is_spread_over_the_whole_order(tmp_path: Path):
    declare_source(tmp_path, "code", {"a.jsonl": [f"c{n:03d}" for n in range(200)]})
    declare_source(tmp_path, "prose", {"c.jsonl": [f"p{n:03d}" for n in range(800)]})
    sources = {"code": {"epochs": 1}, "prose": {"epochs": 0.25}}
    more = {"shuffle": {"documents": "dataset"}, "exports": ["bin"]}
    dataset = declare_mixture(tmp_path, {"sources": sources}, **more)

    build(dataset)

    documents = documents_of(dataset, "train")
    first, second = documents[:200], documents[200:]
    num_prose = [sum(text.startswith("p") for text in half) for half in (first, second)]
    assert sum(num_prose) == 200
    assert 70 < num_prose[0] < 130  # all 200 if the documents were chosen by their own order


def test_another_seed_makes_the_files_again_of_which_not_all_is_taken(tmp_path: Path):
    sources = {"code": {"epochs": 2}, "prose": {"epochs": 0.5}}
    build(declare_mixture(tmp_path, {"sources": sources}))

    built = build(declare_mixture(tmp_path, {"sources": sources, "seed": 1}))

    new = [made.output.name for made in built.made if made.is_new and made.output.stage == "split"]
    assert new == ["prose/c.jsonl"]


def test_more_tokens_take_all_that_fewer_take_and_another_seed_others(tmp_path: Path):
    taken = []
    for num, seed in ((20, 0), (40, 0), (60, 0), (40, 1)):
        sources = {"prose": {"tokens": num}}
        build(dataset := declare_mixture(tmp_path, {"sources": sources, "seed": seed}))
        taken.append({*documents_of(dataset, "train")})

    *of_seed, others = taken
    assert [len(of) for of in of_seed] == [5, 10, 15]
    assert of_seed[0] < of_seed[1] < of_seed[2]
    assert others != of_seed[1]


def test_a_source_whose_limit_is_of_all_files_gives_those_that_the_limit_takes(tmp_path: Path):
    files = {f"{n}.jsonl": [f"{n}a", f"{n}b"] for n in range(4)}
    limit = {"limit": {"documents": 3, "scope": "dataset"}}
    declare_source(tmp_path, "code", files, documents=limit)
    dataset = declare_mixture(tmp_path, {"sources": {"code": {"epochs": 2}}})

    built = build(dataset)

    assert documents_of(dataset, "train") == ["0a", "0b", "0a", "0b", "1a", "1a"]
    assert sorted(built.partitions) == ["code/0.jsonl", "code/1.jsonl"]
    assert make_plan(dataset).is_up_to_date
    assert build(dataset).num_new == 0


def test_garbage_of_a_source_is_known_when_a_mixture_has_built_it_up_to_its_splits(tmp_path: Path):
    mixture = {"sources": {"code": {"epochs": 1}}}
    build(declare_mixture(tmp_path, mixture))
    declare_source(tmp_path, "code", CODE, split={"parts": {"train": {"files": "a.jsonl"}}})
    mixed = declare_mixture(tmp_path, mixture)
    build(mixed)
    source = load_dataset(tmp_path / "code.yaml")

    garbage = {path.parent.relative_to(source.folder) for path in find_garbage(source, keep=0)}

    assert garbage == {Path("split/b.jsonl")}
    build(source)
    for path in find_garbage(source, keep=0):
        remove_all(source.store, [path])
    assert make_plan(mixed).is_up_to_date
    declare_source(tmp_path, "code", CODE, packing={"sequence_length": 8})
    build(mixed := declare_mixture(tmp_path, mixture))
    with pytest.raises(MissingOutputError, match="build code first by `tokflow run`"):
        find_garbage(load_dataset(tmp_path / "code.yaml"), keep=0)  # its older rows are in use
