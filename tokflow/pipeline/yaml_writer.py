"""Writer of commented dataset YAML for `tokflow init` and `dg scaffold defs`."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml

from tokflow.errors import ConfigError, first_five, shortened
from tokflow.formatting import printable
from tokflow.pipeline.dataset import DEFAULT_STORE
from tokflow.pipeline.declared import NAMES_DIFFER, YAML_NAMES, find_declarations
from tokflow.pipeline.fields import dagster_name
from tokflow.pipeline.project import Project
from tokflow.pipeline.suggestion import Suggestion
from tokflow.pipeline.yaml_file import COMPONENT_TYPE, as_template, is_template

HEAD = """\
One dataset = one file like this; change what differs. Unknown keys are errors. Relative paths
start at {start}. `tokflow plan` says what a run would build, and why."""

NAME = "its folder in the store; in a project also for `tokflow run` and Dagster"

RAW = """\
Each raw file is one partition: change one, and only what came from it is built again.
Files are read as they are; parquet, jsonl, csv, txt and arrow, plain or compressed."""

GROUPED = """\
Neighbours are one partition, `group` files each, since there are many small ones: without it each
is a partition, which takes longer to build, and less to build again when it changes."""

ROWS = """\
A document is one row; its text is in this column (or field, for jsonl) and is never altered."""

CHATS = """\
A document is a chat, written by the tokenizer's chat template; what the assistant says is
supervised."""

PROMPTS = """\
A document is a prompt and its completion, with nothing between them; the completion alone is
supervised."""

MORE_OF_CHATS = (
    "chat_template: template.jinja # in place of the tokenizer's own",
    "chat_template_kwargs: {enable_thinking: false} # what else the template gets",
    "loss: assistant # or `last`, `all`: what is supervised",
)

TXT = """\
A document is a whole txt file (`file`), one `line` of it, or the text between `separator`s; it
is never altered."""

TRAINED = """\
Trained here, on all raw files (`files: part-0.parquet` would train it on one, so that a change
of another makes no token again). For an existing one: {kind: tiktoken, name: gpt2},
{kind: huggingface, name: openai-community/gpt2} or {kind: file, name: path/tokenizer.json}."""

EXISTING = """\
Its bytes are kept in the store, so that later runs make the same tokens. Others:
{kind: tiktoken, name: gpt2}, {kind: huggingface, name: openai-community/gpt2},
{kind: file, name: path/tokenizer.json}, {kind: trained, vocab_size: 8_192}."""

EXISTING_OF_CHATS = """\
Its bytes and its chat template are kept in the store, so that later runs make the same tokens."""

LIMIT = "limit: {documents: 1_000} # the first of each file; `scope: dataset`: of all together"
KEPT = "# raw columns that every index keeps"
SHUFFLE = "shuffle: {seed: 1337, documents: dataset} # documents in an order of the seed"

CHARACTERS = """\
Parts by character offset through all raw files (`scope: file` counts in each). A part without
`characters` takes the rest. `boundary: document` would put a document whole into the part that
its first character falls in; there are too few documents here for that."""

HASHES = """\
Shares of the documents by a hash of their text: a text stays in its part when files come and
go, and equal texts are in one part. Other forms: {fraction: 0.9}, {start: 0, documents: 1_000},
{start: 0, characters: 1_000_000}, {files: "val-*.parquet"}."""

ORDER = """\
Parts by the order of the documents in all raw files; there are too few of them here for shares.
A part without `documents` takes the rest."""

SOURCE_SPLITS = """\
The splits that the source itself has; one that no part takes is not fetched. Other forms:
{hash_fraction: 0.99}, {fraction: 0.9}, {start: 0, characters: 1_000_000}."""

PACKING = """\
Tokens to rows for the model: documents end to end, each ended by EOS, in rows of 1,024.
Other strategies: best_fit, pool, first_fit, greedy, one_document."""

PACKING_CHATS = """\
Tokens to rows for the model: whole chats, several in a row of 4,096; one that is longer goes on
in further rows (`overlong: truncate` or `drop` for others)."""

EXPORTS = """\
Any number of formats, each with its own manifest of counts, checksums and lineage."""

BIN = "nanoGPT's: token ids and nothing else"
PARQUET = "input_ids, attention_mask, segment_ids and position_ids"
SUPERVISED = "input_ids, attention_mask, segment_ids, position_ids and loss_mask"
PRESET = "preset: trl # or axolotl, torchtitan, torchtune, megatron-bridge: what each reads"
UNSUPERVISED = "drop_unsupervised: true # rows in which nothing is supervised"

EXECUTOR = """\
Steps of assets run in the process of their run: a process for each takes seconds to start.
It holds for the whole code location, which has one executor."""

STORE = """\
Where everything that is built goes; a run builds again what is deleted."""


def dataset_yaml(
    name: str,
    files: Sequence[str],
    suggested: Suggestion,
    *,
    in_project: bool,
    tokenizer: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of a YAML file that declares a dataset of raw files, given as patterns.

    `in_project` says where relative paths of such a file start. `tokenizer`: the section; None for
    one that is trained on the raw files.

    Raises: ConfigError without a tokenizer for chats, on which none is trained.
    """
    config = suggested.config
    if config.is_chat and tokenizer is None:
        raise _no_tokenizer_error(files, suggested)
    raw: dict[str, Any] = {"files": files[0] if len(files) == 1 else list(files)}
    about_raw = RAW
    if (proposed := suggested.proposed_group) is not None:
        raw, about_raw = {**raw, "group": proposed.group}, f"{RAW}\n{GROUPED}"
    about_tokenizer = EXISTING_OF_CHATS if config.is_chat else EXISTING
    if not tokenizer:
        tokenizer = {"kind": "trained", "vocab_size": suggested.vocab_size}
        about_tokenizer = TRAINED
        if suggested.max_characters is not None:
            tokenizer = {**tokenizer, "max_characters": suggested.max_characters}
            about_tokenizer += "\nOf each raw file `max_characters` are enough to train on."
    packing, about_packing = {"strategy": "concat", "sequence_length": 1024}, PACKING
    exports = f"  - bin # {BIN}\n  - parquet # {PARQUET}\n"
    if config.is_chat:
        packing, about_packing = {"strategy": "best_fit", "sequence_length": 4096}, PACKING_CHATS
        exports = f"  - parquet # {SUPERVISED}\n  # - {PRESET}\n"
    of_source = any("source_split" in part for part in suggested.split["parts"].values())
    about_split = SOURCE_SPLITS if of_source else HASHES
    if "scope" in suggested.split:
        about_split = CHARACTERS if "boundary" in suggested.split else ORDER
    attributes = [
        f"name: {_plain(name)} # {NAME}\n",
        _section(about_raw, "raw", raw),
        _documents(suggested),
        _section(about_tokenizer, "tokenizer", tokenizer),
        _section(about_split, "split", suggested.split) + f"# {SHUFFLE}\n",
        _section(about_packing, "packing", packing) + f"  # {UNSUPERVISED}\n" * config.is_chat,
        f"{_comment(EXPORTS)}exports:\n{exports}",
        f"{_comment(STORE)}store: {DEFAULT_STORE}\n",
    ]
    if in_project:
        attributes.append(f"{_comment(EXECUTOR)}executor: in_process\n")
    head = HEAD.format(start="the project's folder" if in_project else "this file's folder")
    indented = indent("\n".join(attributes), "  ")
    return f"{_comment(head)}type: {COMPONENT_TYPE}\nattributes:\n{indented}"


def _no_tokenizer_error(files: Sequence[str], suggested: Suggestion) -> ConfigError:
    documents = suggested.config
    found = f"chats in {', '.join(map(repr, documents.columns))}"
    expected = "a tokenizer with a chat template: none is trained on chats"
    if not documents.is_rendered:
        found = f"prompts in {documents.prompt!r}, completions in {documents.completion!r}"
        expected = "a tokenizer: none is trained on prompts with completions"
    return ConfigError(
        where=first_five(list(files)),
        expected=expected,
        found=f"{found}, and no --tokenizer",
        remedy="write --tokenizer FOLDER, or a hub id as in --tokenizer Qwen/Qwen3-0.6B, or name a "
        "column of text by --text (`dg scaffold defs` has no such option: use `tokflow init`)",
    )


def _documents(suggested: Suggestion) -> str:
    """Return the section of documents, with optional fields as comments that fit the dataset."""
    config, others = suggested.config, suggested.others
    of_rows = CHATS if config.is_rendered else PROMPTS if config.is_chat else ROWS
    about = [TXT if "document_per" in suggested.documents else of_rows]
    if others:
        about.append(f"Others with text: {_named(others)}.")
    if suggested.chats:
        about.append(f"`messages:` in place of `text:` reads chats: {_named(suggested.chats)}.")
    if suggested.first_reject is not None:
        about.append("Records that are no document are set aside, listed and counted, such as")
        about.append(printable(suggested.first_reject))
    more = [*MORE_OF_CHATS] if config.is_rendered else []
    if others:
        kept = ", ".join(json.dumps(of, ensure_ascii=False) for of in others[:3])
        more.append(f"keep_columns: [{printable(kept)}] {KEPT}")
    section = _section("\n".join(about), "documents", suggested.documents)
    return section + "".join(f"  # {line}\n" for line in [*more, LIMIT])


def _named(columns: Sequence[str]) -> str:
    return printable(", ".join(shortened(columns)))


def _section(comment: str, name: str, fields: Mapping[str, Any]) -> str:
    """Write a section of plain values, lists and mappings as YAML."""
    lines = [f"{name}:"]
    for key, value in fields.items():
        if isinstance(value, list):
            lines += [f"  {key}:", *(f"    - {_plain(of)}" for of in value)]
        elif isinstance(value, Mapping):
            lines.append(f"  {key}:")
            for part, of in value.items():
                fields_of_part = ", ".join(f"{name}: {_plain(each)}" for name, each in of.items())
                lines.append(f"    {part}: {{{fields_of_part}}}")
        else:
            lines.append(f"  {key}: {_plain(value)}")
    return _comment(comment) + "".join(f"{line}\n" for line in lines)


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.splitlines())


def _plain(value: str | float) -> str:
    """Write a number or text as YAML, quoted if it would be read as something else, and as a
    template if it looks like one."""
    if isinstance(value, int):
        return f"{value:_}" if value >= 10_000 else str(value)
    style = None
    if isinstance(value, str) and (is_template(value) or not value.isprintable()):
        value, style = as_template(value) if is_template(value) else value, '"'
    text: str = yaml.safe_dump(value, allow_unicode=True, width=sys.maxsize, default_style=style)
    return text.removesuffix("...\n").strip()


def check_new(name: str, path: Path, project: Project) -> None:
    """Raise if a new dataset in `path` would disable or hide other datasets of the project.

    Raises: ConfigError.
    """
    expected, remedy = NAMES_DIFFER, "give it another name"
    where: str | Path = f"dataset {name!r}"
    declared = find_declarations(project)
    alike = [of for of in declared if dagster_name(of.name) == dagster_name(name)]
    found = [f"{of.name!r} in {of.where}" for of in alike[:1]]
    if not found and path.is_relative_to(project.defs):
        where, expected = path, "a folder with no YAML of Dagster's in or below it"
        remedy = "choose another folder"
        found = sorted(str(of) for name in YAML_NAMES for of in path.parent.rglob(name))
    if found:
        raise ConfigError(where=where, expected=expected, found=first_five(found), remedy=remedy)
