"""The configs and experiments that come with the package, by name. A wheel contains them; a checkout has them beside
the package."""

from collections.abc import Mapping
from pathlib import Path

from transformer_jax.errors import BadInput, closest, did_you_mean

# Before the name of such a file, in place of a path.
PRESET = "preset:"
PACKAGE = Path(__file__).parent
# In experiments/, but no sweeps: what the others share, and a script.
NOT_EXPERIMENTS = ("bases", "coordinates")


def configs() -> dict[str, Path]:
    """The config files of configs/."""
    return _files(PACKAGE / "presets", PACKAGE.parent / "configs")


def experiments() -> dict[str, Path]:
    """The experiment files of experiments/."""
    files = _files(PACKAGE / "presets" / "experiments", PACKAGE.parent / "experiments")
    return {name: file for name, file in files.items() if name not in NOT_EXPERIMENTS}


def resolve(file: str, presets: Mapping[str, Path], what: str) -> str:
    """The path of a file given by its path or as preset:NAME."""
    is_preset = file.startswith(PRESET)
    name = file.removeprefix(PRESET) if is_preset else Path(file).stem
    if is_preset and name in presets:
        return str(presets[name])
    if is_preset or (name in presets and not Path(file).exists()):
        meant = closest(name, presets)
        hint = f"did you mean {PRESET}{meant}?" if meant else did_you_mean(name, presets)
        raise BadInput(f"{file}: no such {what}; {hint}")
    return file


def _files(packaged: Path, beside: Path) -> dict[str, Path]:
    files = (packaged if packaged.is_dir() else beside).glob("*.py")
    return {file.stem: file for file in sorted(files)}
