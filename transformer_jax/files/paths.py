"""Paths as users type them: `~` is the home directory, and URLs raise an error, but for gs:// where it is possible.

`inside` decides about every path that a record, a bucket or a folder of somebody else names.
"""

import os
import re
import unicodedata
from pathlib import Path

from transformer_jax.errors import BadInput

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
BUCKETS = "gs://"
COPY = "[0-9a-f]{12}"
LONGEST_NAME = 255  # bytes of a name in a folder


def bucket_copies() -> Path:
    """The folder of the copies of folders in buckets, each in a folder of its own, named by `COPY`."""
    folder = os.path.expanduser(os.environ.get("TRANSFORMER_JAX_BUCKETS") or "~/.cache/transformer_jax/buckets")
    if not os.path.isabs(folder):  # ~, too, for a user without a home directory
        # It stays where it is when this process, or one that it starts, changes its directory.
        folder = os.environ["TRANSFORMER_JAX_BUCKETS"] = os.path.abspath(folder)
    return Path(folder)


def as_typed(message: str) -> str:
    """The message with addresses in buckets in place of paths of their copies."""
    return re.sub(f"{re.escape(str(bucket_copies()))}/{COPY}/", BUCKETS, message)


def problem(path: str) -> str | None:
    """Why a text cannot be a path on this machine, to follow the path in a message; None if it can."""
    if URL.match(path):
        return (
            "is a URL; must be a path of a local or mounted file system (flags and texts also gs://BUCKET/..., not s3)"
        )
    if path.startswith("~") and os.path.expanduser(path) == path:
        return f"there is no user {path[1:].partition('/')[0]} with a home directory; ./{path} is a folder of that name"
    return None


def expanded(path: str | os.PathLike[str]) -> str:
    """The path with the home directory in place of `~`; relative ones stay relative."""
    text = os.fspath(path)
    if found := problem(text):
        raise BadInput(f"{text}: {found}")
    return os.path.expanduser(text)


def file_name(text: str, gap: str = "-") -> str:
    """The text as the name of a file or folder: its letters and digits, in any script, with gaps between."""
    kept = (
        c if c in "._=+-" or unicodedata.category(c)[0] in "LMN" else "/" for c in unicodedata.normalize("NFC", text)
    )
    return re.sub("/+", gap, "".join(kept)).strip("-.")


def inside(folder: Path, name: str, source: str | Path) -> Path:
    """The path of NAME or FOLDER/NAME below a folder. Raises BadInput for a path to elsewhere; `source` says it."""
    parts = name.split("/")
    longest = max(len(part.encode(errors="surrogatepass")) for part in parts)
    if not {"", ".", ".."}.isdisjoint(parts) or "\0" in name or longest > LONGEST_NAME:
        raise BadInput(f"{source}: {name[:80]!r} is not the name of a file in this folder")
    return folder.joinpath(*parts)


def no_links(name: str, flags: int) -> int:
    """An opener for files that are appended to: in a folder of somebody else a link may lead anywhere."""
    return os.open(name, flags | os.O_NOFOLLOW, 0o666)


def plain_folder(path: Path) -> Path:
    """The path of a folder that is written to, if it is no link: in a folder of somebody else it may lead anywhere."""
    if path.is_symlink():
        raise BadInput(f"{path}: is a link; it must be a folder, because files are written there")
    return path
