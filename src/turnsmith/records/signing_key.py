"""The key with which turnsmith signs what this user's processes write, so that it can recognise its own files.

Loading a checkpoint runs whatever its pickles contain. The signature tells files written by this user from files that
came from elsewhere; it does not separate processes of the same user. The key is in `$TURNSMITH_CACHE`, else
`$XDG_CONFIG_HOME/turnsmith`, else `~/.config/turnsmith`, rather than in a cache folder that may be cleared.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from turnsmith.errors import RecordError
from turnsmith.records.files import flush_folder, make_folder

_NAME = "signing-key"
_BYTES = 32


def key_path() -> Path:
    """Where this user's key is, or will be."""
    own = os.environ.get("TURNSMITH_CACHE")
    shared = os.environ.get("XDG_CONFIG_HOME")
    folder = Path(own).expanduser() if own else (Path(shared) if shared else Path.home() / ".config") / "turnsmith"
    # Several users may share a cache, but not a key.
    return folder / f"{_NAME}-{os.getuid()}"


def signing_key() -> bytes:
    """This user's key, created if there is none.

    Raises:
        RecordError: It cannot be created, or other users could read or replace it.
    """
    path = key_path()
    try:
        if not path.exists():
            _create_key(path)
        key, status = path.read_bytes(), path.stat()
    except (OSError, RuntimeError) as error:
        raise RecordError(f"Cannot use the signing key {path}: {error}.") from error
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise RecordError(f"Other users can read the signing key {path}: delete it to get a new one.")
    if len(key) != _BYTES:
        raise RecordError(f"The signing key {path} is damaged: delete it to get a new one.")
    return key


def signature(content: bytes, key: bytes) -> str:
    """HMAC-SHA256 of `content` in hex, which only a holder of the key can compute.

    Example:
        >>> signature(b"content", b"key") == signature(b"content", b"another key")
        False
    """
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def key_name(key: bytes) -> str:
    """An id that reveals nothing else about a key. It distinguishes records of another key from changed ones."""
    return hashlib.sha256(b"turnsmith key " + key).hexdigest()[:16]


def _create_key(path: Path) -> None:
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(descriptor)
        try:
            os.link(temporary, path)  # Unlike a rename, this fails if another process was first; its key is then used.
        except FileExistsError:
            pass
        flush_folder(path.parent)  # without the key, nothing that it signed is trusted
    finally:
        temporary.unlink(missing_ok=True)
