import shutil
from pathlib import Path

from tokflow.audit.ancestry import Ancestry
from tokflow.exports.reading import find_export
from tokflow_tests.object_store import ObjectStore
from tokflow_tests.tiny import build, declare_small


def test_of_the_tokenizers_at_a_url_only_the_one_that_is_asked_for_comes(
    tmp_path: Path, object_store: ObjectStore
):
    fields = {"store": f"{object_store.url}/store", "exports": ["bin"]}
    for vocab_size in (258, 260):
        tokenizer = {"kind": "trained", "vocab_size": vocab_size}
        build(declare_small(tmp_path, tokenizer=tokenizer, **fields))
    shutil.rmtree(tmp_path / "cache")
    export = find_export(f"{fields['store']}/small/exports/bin/latest")

    with object_store.counted() as count:
        tokenizer = Ancestry().tokenizer(export)

    assert tokenizer is not None
    assert tokenizer.vocab_size == 260
    assert count["GET"] == 3  # two manifests, one tokenizer.json
