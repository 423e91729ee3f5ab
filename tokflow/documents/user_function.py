"""Functions that a YAML names as `package.module:function`: found without running anything, run as
they were found."""

import difflib
import hashlib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType
from typing import Any, cast

from tokflow.errors import ConfigError

FUNCTION_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
A_FUNCTION = "the name of a function, as in package.module:function"
"""What a text has to be that names one."""

_printing = threading.RLock()


@contextmanager
def printing_on_stderr() -> Iterator[None]:
    """Lead what is printed in the block to stderr: results alone are on stdout, JSON among them.

    All threads share one stdout, so one block waits for the other.
    """
    with _printing, redirect_stdout(sys.stderr):
        yield


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function and the source of its module, as it was when the function was found."""

    module: str
    """Its dotted name."""
    name: str
    path: Path
    """The file of the module."""
    folder: Path
    """The folder that the dotted name starts from."""
    source: bytes = field(repr=False)
    """The content of the file: what is run, whatever the file holds by then."""
    where: str
    """The place in the config that names it, for errors."""

    @property
    def sha256(self) -> str:
        """The digest of the module's source."""
        return hashlib.sha256(self.source).hexdigest()

    def load(self) -> Callable[[Any], Any]:
        """Return the function; its module is run the first time in each process.

        The module is one of its own, apart from what an `import` of that name gives, so that its
        code is the one that the digest is of. Its folder comes last in `sys.path`, where it hides
        no other module.

        Raises: ConfigError where the module cannot be run or has no such function.
        """
        return _loaded(self)

    def compiled(self) -> CodeType:
        """Return the code of the module. Raises: ConfigError where it is no Python."""
        try:
            return compile(self.source, self.path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            found = f"{type(error).__name__}: {getattr(error, 'msg', None) or error}"
            place = f", line {line}" if line else ""
            raise self.error("Python source", found, "correct the line", place) from error

    def error(self, expected: str, found: str, remedy: str, place: str = "") -> ConfigError:
        """Return the error of a module, or of a place in it."""
        where = f"{self.where}: {self.path}{place}"
        return ConfigError(where=where, expected=expected, found=found, remedy=remedy)


def find_function(text: str, folder: Path, *, where: str) -> UserFunction:
    """Return the function that a text such as `package.module:function` names; nothing is run.

    The module is looked for in `folder`, then where Python looks. It must be a file of Python
    source that names the function at its top level.

    Raises: ConfigError.
    """
    module, _, name = text.partition(":")
    folders = [folder, *(Path(of) for of in sys.path if Path(of) != folder)]
    for each in folders:
        stem = each.joinpath(*module.split("."))
        for path in (stem / "__init__.py", stem.parent / f"{stem.name}.py"):
            if path.is_file():
                root, file = each.resolve(), path.resolve()
                function = UserFunction(module, name, file, root, _read(path, where), where)
                names = function.compiled().co_names
                if name in names:
                    return function
                near = difflib.get_close_matches(name, names, n=1)
                remedy = "correct the name, or define it there"
                remedy = f"did you mean {near[0]!r}?" if near else remedy
                raise function.error(f"a function {name!r}", "none of that name", remedy)
    raise ConfigError(
        where=where,
        expected=f"a module {module}, that is {module.replace('.', '/')}.py in {folder} or in a "
        "folder of sys.path",
        found=f"none for {text!r}",
        remedy="correct the name, or put the file there",
    )


def _read(path: Path, where: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            where=f"{where}: {path}",
            expected="a file that can be read",
            found=str(error.strerror),
            remedy="correct its permissions",
        ) from error


@cache
def _loaded(function: UserFunction) -> Callable[[Any], Any]:
    is_package = function.path.name == "__init__.py"
    name = f"{function.module}@{function.sha256[:16]}"  # its package is that of the module
    spec = spec_from_loader(name, loader=None, origin=str(function.path), is_package=is_package)
    assert spec is not None
    if is_package:
        spec.submodule_search_locations = [str(function.path.parent)]
    module = module_from_spec(spec)
    module.__file__ = str(function.path)
    if (folder := str(function.folder)) not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module  # by a name of its own, as dataclasses need
    try:
        with printing_on_stderr():
            exec(function.compiled(), vars(module))
    except (Exception, SystemExit) as error:  # also a script that ends when it is imported
        del sys.modules[name]
        found = described(error, function.path)
        remedy = "correct the module, or install what it imports"
        raise function.error("a module that can be imported", found, remedy) from error
    loaded: Any = vars(module).get(function.name)
    if not callable(loaded):
        kind = f"a {type(loaded).__name__} of that name"
        raise function.error(f"a function {function.name!r}", kind, "name a function of the module")
    return cast(Callable[[Any], Any], loaded)


def described(error: BaseException, path: Path) -> str:
    """Return an exception on one line, with the last line of a module that it came through."""
    text = type(error).__name__
    with suppress(Exception):  # of the user's own `__str__`
        if message := " ".join(str(error).split()):
            text += f": {message[:200]}{'...' * (len(message) > 200)}"
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return text if line is None else f"{text} (in line {line:,} of {path.name})"
