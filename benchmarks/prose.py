"""English that every machine with Python has: the prose inside docstrings and documents.

Paragraphs of whole sentences from the docstrings of the standard library and the installed
packages, from their .rst, .md and .txt files, and from the licenses and notices of the system.
Code, tables, lists and signatures are left out, and no paragraph is taken twice.
"""

import re
from pathlib import Path

from examples import demo

DOCUMENTS = (".md", ".rst", ".txt")
SYSTEM_FOLDERS = (Path("/usr/share/common-licenses"), Path("/usr/share/doc"))
MIN_CHARACTERS = 120
MIN_LETTER_FRACTION = 0.94
"""Letters, blanks and the marks of a sentence, of all characters of a paragraph."""
MIN_COMMON_FRACTION = 0.25
COMMON_WORDS = frozenset(
    """
    a an and are as at be but by can do for from has have if in is it its may must not of on or
    that the this to was we when which will with you
    """.split()  # noqa: SIM905 (a list of 50 strings is not easier to read)
)
"""A quarter of the words of English sentences are among these; of names and tables few are."""

PARAGRAPH_END = re.compile(r"\n\s*\n")
DOCSTRING = re.compile(r'"""(.{100,}?)"""', re.DOTALL)
NOT_LETTERS = re.compile(r"[^\w ,.'-]|[\d_]")


def read_texts():
    """Return one text per file that has prose: its paragraphs, each in one line."""
    seen = set()
    texts = []
    for source in read_files():
        paragraphs = [text for text in map(sentences, PARAGRAPH_END.split(source)) if text]
        fresh = [text for text in dict.fromkeys(paragraphs) if text not in seen]
        seen.update(fresh)
        if fresh:
            texts.append("\n\n".join(fresh) + "\n")
    return texts


def read_files():
    """Yield what may hold prose: all docstrings of a Python file together, or a whole document."""
    roots = demo.python_roots()
    for _, source in demo.read_sources(roots):
        if content := demo.decode_source(source):
            yield "\n\n".join(DOCSTRING.findall(content))
    for folder in (*roots.values(), *SYSTEM_FOLDERS):
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if is_document(path, folder):
                yield path.read_text(errors="ignore")


def is_document(path, folder):
    is_notice = folder in SYSTEM_FOLDERS and path.suffix == ""
    return (is_notice or path.suffix in DOCUMENTS) and path.is_file() and not path.is_symlink()


def sentences(paragraph):
    """Return the paragraph in one line; None where it is not prose."""
    words = paragraph.split()
    text = " ".join(words)
    if len(text) < MIN_CHARACTERS or not text[0].isupper() or text[-1] not in ".:!?":
        return None
    if len(NOT_LETTERS.findall(text)) > (1 - MIN_LETTER_FRACTION) * len(text):
        return None
    num_common = sum(word.lower() in COMMON_WORDS for word in words)
    return text if num_common >= MIN_COMMON_FRACTION * len(words) else None
