"""The key with which this user's turnsmith signs what it writes, so that it knows its own files again.

Loading a checkpoint runs whatever its pickles say. The key tells files that were written here from files that came
from somewhere else; it is no secret between processes of the same user. It is in `$TURNSMITH_CACHE`, else
`$XDG_CONFIG_HOME/turnsmith`, else `~/.config/turnsmith`: not in a cache that is cleared now and then.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from turnsmith.errors import RecordError

_NAME = "signing-key"
_BYTES = 32


def key_path() -> Path:
    """Where this user's key is, or will be."""
    own = os.environ.get("TURNSMITH_CACHE")
    shared = os.environ.get("XDG_CONFIG_HOME")
    folder = Path(own).expanduser() if own else (Path(shared) if shared else Path.home() / ".config") / "turnsmith"
    # A cache may be shared by several users; a key may not.
    return folder / f"{_NAME}-{os.getuid()}"


def signing_key() -> bytes:
    """This user's key, made now if there is none.

    Raises:
        RecordError: It cannot be made, or others could read or replace it.
    """
    path = key_path()
    try:
        if not path.exists():
            _make(path)
        key, about = path.read_bytes(), path.stat()
    except (OSError, RuntimeError) as error:
        raise RecordError(f"The key {path} cannot be used: {error}.") from error
    if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise RecordError(f"The key {path} is not for this user alone: remove it, and a new one is made.")
    if len(key) != _BYTES:
        raise RecordError(f"The key {path} is damaged: remove it, and a new one is made.")
    return key


def signature(content: bytes, key: bytes) -> str:
    """What only somebody with the key can write beside `content`: HMAC-SHA256, in hex.

    Example:
        >>> signature(b"content", b"key") == signature(b"content", b"another key")
        False
    """
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(descriptor)
        try:
            os.link(beside, path)  # unlike a rename it fails if another process was first; then that key counts
        except FileExistsError:
            pass
    finally:
        beside.unlink(missing_ok=True)
