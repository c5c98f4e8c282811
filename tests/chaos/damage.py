"""Ways in which a file is spoilt: by a disk, by a crash, by a hurried hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path


def flip_bits(path: Path, dice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(dice.choice([1, 1, 20]) if content else 0):
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, dice: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: dice.randrange(len(content) + 1)])


def lose_a_page(path: Path, dice: random.Random) -> None:
    """A stretch of zeros, as a file system leaves it after a power cut."""
    content = bytearray(path.read_bytes())
    begin = dice.randrange(len(content) + 1)
    end = min(len(content), begin + dice.choice([1, 16, 4096]))
    content[begin:end] = bytes(end - begin)
    path.write_bytes(content)


def write_noise(path: Path, dice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    begin = dice.randrange(len(content) + 1)
    content[begin : begin + dice.choice([0, 1, 64])] = dice.randbytes(dice.choice([1, 16, 300]))
    path.write_bytes(content)


def empty(path: Path, dice: random.Random) -> None:
    path.write_bytes(b"")


def delete(path: Path, dice: random.Random) -> None:
    path.unlink()


def become_a_directory(path: Path, dice: random.Random) -> None:
    path.unlink()
    path.mkdir()


def become_another(path: Path, dice: random.Random) -> None:
    """The content of a file beside it."""
    others = sorted(other for other in path.parent.iterdir() if other.is_file())
    content = dice.choice(others).read_bytes()
    path.write_bytes(content)


def link_to_nothing(path: Path, dice: random.Random) -> None:
    path.unlink()
    path.symlink_to(path.name if dice.random() < 0.5 else "nowhere")


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    flip_bits,
    flip_bits,
    flip_bits,
    truncate,
    lose_a_page,
    write_noise,
    empty,
    delete,
    become_a_directory,
    become_another,
    link_to_nothing,
)


def damage_one(folder: Path, dice: random.Random) -> str:
    """Spoils one file somewhere in a folder; says which and how."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    path, damage = dice.choice(files), dice.choice(DAMAGES)
    damage(path, dice)
    return f"{damage.__name__} {path.relative_to(folder)}"
