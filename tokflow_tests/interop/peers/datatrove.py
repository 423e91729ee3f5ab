"""datatrove's own readers and writers of .ds folders."""

import itertools

import numpy as np
from datatrove.data import Document
from datatrove.io import get_datafolder
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.pipeline.tokens.merger import get_data_reader, load_doc_ends
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
from datatrove.utils.dataset import DatatroveFolderDataset
from peer_command import each, run


def read(folder, part, sequence_length=7, token_size=2, has_loss=False):
    """Read rows of sequence_length + 1 tokens with positions, and documents one by one."""
    dataset = DatatroveFolderDataset(
        str(folder / part), sequence_length, token_size=token_size, return_positions=True
    )
    rows = [dataset[number] for number in range(len(dataset))]
    files = get_datafolder(str(folder / part))
    names = files.list_files(glob_pattern="*.ds")
    ends = [load_doc_ends(files.open(f"{name}.index", "rb")) for name in names]
    documents, losses = [], []
    for name, of_file in zip(names, ends, strict=True):
        documents += get_data_reader(files.open(name, "rb"), of_file, nb_bytes=token_size)
        if has_loss:
            losses += get_data_reader(files.open(f"{name}.loss", "rb"), of_file, nb_bytes=1)
    lengths = [len(document) // token_size for document in documents]
    width = sequence_length + 1
    return {
        "names": np.array(names),
        "blocks": np.array([row["input_ids"].numpy() for row in rows]).reshape(-1, width),
        "positions": np.array([row["positions"].numpy() for row in rows]).reshape(-1, width),
        "token_ids": np.frombuffer(b"".join(documents), dtype=f"<u{token_size}"),
        "offsets_of_tokens": np.cumsum([0, *lengths], dtype=np.int64),
        **({"loss_mask": np.frombuffer(b"".join(losses), dtype=np.uint8)} if has_loss else {}),
    }


def write(documents, folder, part="train", token_size=2, name=None, texts=None, **options):
    """Write documents, or texts with a tokenizer.json, into one file."""
    if texts is not None:
        tokenize(texts, folder, part, **options)
    else:
        file = TokenizedFile(
            str(folder),
            f"{part}.ds",
            save_loss_metadata="loss_mask" in documents,
            tokenizer_name_or_path=name,
            save_final_metadata=True,
            token_size=token_size,
        )
        masks = each(documents, "loss_mask") if "loss_mask" in documents else itertools.repeat(None)
        for token_ids, mask in zip(each(documents), masks, strict=False):
            file.write(token_ids.tolist(), mask)
        file.close()


def tokenize(texts, folder, part, tokenizer, eos_token):
    """Run the pipeline's step on texts, which it does not shuffle."""
    step = DocumentTokenizer(
        str(folder), tokenizer, save_filename=part, eos_token=eos_token, shuffle_documents=False
    )
    step.run(Document(text=text, id=str(number)) for number, text in enumerate(texts))


if __name__ == "__main__":
    run(read=read, write=write)
