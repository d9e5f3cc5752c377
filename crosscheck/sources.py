"""The files whose code a process runs, by digest: what its verdicts rest on, beside the versions of libraries.

Of packages that are installed, what their installers recorded stands for their files, but for the judged code's own.
"""

import hashlib
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["Sources", "file_digest", "installed_packages"]

PROJECT = ("crosscheck", "rlk_jax", "rlk_torch")
CODE = frozenset(
    ".py .pyx .so .pyd .c .cc .cpp .cu .cuh .h .hpp .ptx .cubin .json .toml .yaml .yml".split()  # noqa: SIM905
)


class Sources:
    """The code files of this process.

    They are the file of every module that is imported by now and is neither of the standard library nor installed; of
    the packages named in `roots` all files of code, also those that are imported later; and where such a root is
    installed by somebody else, the files of those of its modules that are imported.
    """

    def __init__(self, roots: Iterable[str]) -> None:
        self.roots = {*roots, *PROJECT}
        self.known: set[Path] = set()
        self.modules = 0

    def new(self) -> dict[str, str]:
        """{path: SHA-256 in hex} of those that have come since the last time; paths of this folder are relative."""
        if len(sys.modules) == self.modules:
            return {}
        self.modules = len(sys.modules)
        found = {path for path in self._files() if path not in self.known and path.is_file()}
        self.known |= found
        return {_shown(path): file_digest(path) for path in sorted(found)}

    def _files(self) -> Iterator[Path]:
        for name, module in list(sys.modules.items()):
            members, root = _members(module), name.partition(".")[0]
            file = members.get("__file__")
            if isinstance(file, str) and self._own(root, file):
                yield Path(file).resolve()
            if name in self.roots and "__path__" in members:
                for folder in map(str, members["__path__"]):
                    if name in PROJECT or not _installed(folder):
                        yield from (path.resolve() for path in Path(folder).rglob("*") if path.suffix in CODE)

    def _own(self, root: str, file: str) -> bool:
        """What an installed package generates, as compilers do, is none of it."""
        of_root = _members(sys.modules.get(root)).get("__file__") or file
        return (root in self.roots and _installed(file)) if _installed(of_root) else True


def _members(module: Any) -> dict[str, Any]:
    """Without getattr, which imports what a lazy module stands for."""
    members: dict[str, Any] = vars(module) if isinstance(module, ModuleType) else {}
    return members


@cache
def _installed(path: str) -> bool:
    return any(Path(path).resolve().is_relative_to(folder) for folder in _installations())


@cache
def _installations() -> tuple[Path, ...]:
    """The folders of the standard library and of installed packages."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.update([*site.getsitepackages(), site.getusersitepackages()])
    return tuple(Path(folder).resolve() for folder in folders)


def _shown(path: Path) -> str:
    here = Path.cwd().resolve()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def file_digest(path: str | Path) -> str:
    """SHA-256 in hex of what a file holds; "" where there is no such file."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def installed_packages() -> str:
    """SHA-256 in hex of the installed packages, by the list of files and digests that each was installed with."""
    sha = hashlib.sha256()
    folders = {Path(entry).resolve() for entry in sys.path if entry and Path(entry).is_dir()}
    for folder in sorted(path for entry in folders for path in entry.glob("*.dist-info")):
        record = folder / "RECORD"
        sha.update(f"{folder.name} {file_digest(record if record.is_file() else folder / 'METADATA')}\n".encode())
    return sha.hexdigest()
