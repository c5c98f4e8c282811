"""The files that come with the package, by name: configs and experiments. In a checkout they lie beside it; a wheel,
which has no checkout, has them inside."""

from pathlib import Path

# What stands before such a name, in place of a path.
PRESET = "preset:"
PACKAGE = Path(__file__).parent


def configs() -> dict[str, Path]:
    """The config files of configs/."""
    return _files(PACKAGE / "presets", PACKAGE.parent / "configs")


def experiments() -> dict[str, Path]:
    """The experiment files of experiments/."""
    files = _files(PACKAGE / "presets" / "experiments", PACKAGE.parent / "experiments")
    return {name: file for name, file in files.items() if name != "bases"}  # bases.py is what they begin with


def _files(packaged: Path, beside: Path) -> dict[str, Path]:
    files = (packaged if packaged.is_dir() else beside).glob("*.py")
    return {file.stem: file for file in sorted(files)}
