"""Progress on stderr: nothing for short work, a line now and then for long work, and no control characters."""

import pytest

from transformer_jax.errors import Failed
from transformer_jax.files import progress
from transformer_jax.files.progress import counting, logged, tell


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


def test_what_is_told_is_logged_when_there_is_a_run_to_log_it_in(tmp_path):
    log, after = tmp_path / "run/logs/process-1.txt", tmp_path / "run/versions.json"
    with logged(log, after):
        tell("early")
        assert not log.parent.parent.exists()
        after.parent.mkdir()
        after.touch()
        tell("late")
        assert log.read_text() == "early\nlate\n"
    with pytest.raises(Failed), logged(log, after):
        raise Failed("the disk\nis full")
    tell("after the end")
    assert log.read_text() == "early\nlate\nFailed: the disk\\nis full\n"


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path, capsys):
    (tmp_path / "versions.json").touch()
    (tmp_path / "logs").touch()  # not a folder
    with logged(tmp_path / "logs/process-0.txt", tmp_path / "versions.json"):
        tell("a line")
    assert capsys.readouterr().err == "a line\n"
