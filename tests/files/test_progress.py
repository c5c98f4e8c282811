"""Progress on stderr: nothing for short work, a line now and then for long work, and no control characters."""

from transformer_jax.files import progress
from transformer_jax.files.progress import counting, tell


def test_only_long_work_prints_lines(monkeypatch, capsys):
    clock = iter([0.0, 1.0, 31.0, 31.0, 40.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with counting("reading", "pairs", 3000) as advance:
        for _ in range(3):
            advance(1000)
    assert capsys.readouterr().err == "reading: 2,000 of 3,000 pairs\n"


def test_a_line_is_printable_and_keeps_its_line_breaks(capsys):
    tell("a table\nof two lines\x1b[2J")
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "a table\nof two lines\\x1b[2J\n"
