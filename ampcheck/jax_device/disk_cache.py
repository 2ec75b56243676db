"""Keep compiled programs in the user's cache folder, so that the next process need not compile them.

JAX finds programs by a key of their StableHLO, the options, the versions of jaxlib and XLA, and the processor's
instruction sets. Its own files are not for many processes and many small programs: they are written in place, where
another process reads a half of one, and to bound their size JAX reads a file of every program at each write.
"""

import contextlib
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jax

from ampcheck.jax_device import jax_private
from ampcheck.jax_device.annotations import Tree

LIMIT = 512 << 20
"""Bytes of programs that stay on disk, unless `jax_compilation_cache_max_size` says another number."""
_ABANDONED = 3600.0  # seconds after which a file that is not written to its end never will be


class DiskCache:
    """Programs as files of a folder, by their keys: what JAX's `LRUCache` is, for many processes at once.

    A file appears whole or not at all. What cannot be read is compiled, what cannot be written is not kept.

    Args:
        folder: it must exist.
        limit: bytes. Of more, those that were not used for the longest time are removed.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._path, self._limit = folder, limit
        self._unchecked = limit  # bytes written since the size was last looked at; the first write looks
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """Return the program of a key; None where there is none."""
        path = self._file(key)
        try:
            found = path.read_bytes()
        except OSError:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return found

    def put(self, key: str, value: bytes) -> None:
        """Write the program of a key over any that is there, which JAX could not read."""
        temporary = ""
        try:
            descriptor, temporary = tempfile.mkstemp(".part", dir=self._path)
            with os.fdopen(descriptor, "wb") as file:
                file.write(value)
            os.replace(temporary, self._file(key))
        except OSError:  # a full disk, or a folder that was removed or made read-only
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            return
        with self._lock:
            self._unchecked += len(value)
            due = self._unchecked > self._limit // 16
            self._unchecked = 0 if due else self._unchecked
        if due:
            self._prune()

    def _file(self, key: str) -> Path:
        return self._path / f"{key}-cache"  # as JAX names it

    def _prune(self) -> None:
        files, now = [], time.time()
        with contextlib.suppress(OSError), os.scandir(self._path) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # another process has removed it
                    found = entry.stat()
                    if entry.name.endswith("-cache"):
                        files.append((found.st_mtime, found.st_size, entry.path))
                    elif entry.name.endswith(".part") and now - found.st_mtime > _ABANDONED:
                        os.unlink(entry.path)
        size = sum(file[1] for file in files)
        target = self._limit * 3 // 4 if size > self._limit else size
        for _, bytes_, path in sorted(files):
            if size <= target:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
            size -= bytes_


def default_folder() -> Path:
    """Return where programs are kept if the user names no folder. Raises RuntimeError where there is no home."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "ampcheck" / "jax"


def install() -> None:
    """Let JAX keep programs in `jax_compilation_cache_dir`, by default a folder of the user's.

    It is left alone where `jax_enable_compilation_cache` is off, no folder can be had that is the user's own and
    writable, or this JAX makes its caches in another way.
    """
    config: Any = jax.config

    if not config.jax_enable_compilation_cache or jax_private.get_file_cache is None:
        return
    named = config.jax_compilation_cache_dir
    if named is None:
        folder = _made()
        if folder is None:
            return
        config.update("jax_compilation_cache_dir", str(folder))
    if named != "" and "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # An op's program compiles in milliseconds, under the second from which JAX keeps programs by default.
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    theirs = jax_private.get_file_cache

    def get_file_cache(path: str) -> Tree:
        limit = config.jax_compilation_cache_max_size
        if "://" in path or config.jax_compilation_cache_check_contents or limit == 0:
            return theirs(path)
        os.makedirs(path, exist_ok=True)
        return DiskCache(Path(path), limit if limit > 0 else LIMIT), path

    jax_private.compilation_cache.get_file_cache = get_file_cache


def _made() -> Path | None:
    """Return the default folder, made where it is missing; None where no program may be written to or read from it."""
    try:
        folder = default_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A program that another user wrote would run with this user's rights.
        own = not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()
    except (OSError, RuntimeError):
        return None
    return folder if own and os.access(folder, os.W_OK | os.X_OK) else None
