"""The page of a first hour on a device: what it says of parts that succeed, fail, or have no time left."""

import json
import sys
import threading

import pytest

from tests.support.places import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import device


def written(tmp_path):
    return json.loads((tmp_path / "page.json").read_text()), (tmp_path / "page.md").read_text()


def test_a_part_that_fails_is_reported_and_the_others_go_on(tmp_path, monkeypatch):
    def fails(size):
        raise ValueError("no such kernel")

    parts = {
        "first": fails,
        "second": lambda size: {"ms a step": 1234.5},
        "third": lambda size: device.judged({"loss differs by": float("nan")}, 0.1),
    }
    monkeypatch.setattr(device, "parts", lambda: parts)
    device.main(["--output", str(tmp_path / "page")])
    found, page = written(tmp_path)
    assert found["results"]["first"]["failed"] == "ValueError: no such kernel"
    assert "| second |  | ms a step 1,234 |" in page and "| third | **wrong** |" in page
    assert found["left_out"] == []


def test_it_ends_at_its_limit_with_what_it_has(tmp_path, monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(device.os, "_exit", lambda status: ended.set())

    def hangs(size):
        assert ended.wait(60)
        found.append(written(tmp_path))
        return {}

    found = []
    monkeypatch.setattr(device, "parts", lambda: {"quick": lambda size: {"right": True}, "hangs": hangs})
    device.main(["--minutes", "0.005", "--output", str(tmp_path / "page")])
    content, page = found[0]
    assert [*content["results"]] == ["quick"] and content["left_out"] == ["hangs"]
    assert "| quick | right |" in page and "| hangs |  | left out no time was left |" in page
    ended.clear()
    monkeypatch.setattr(device, "parts", lambda: {"hangs": hangs})
    device.main(["--minutes", "0.005", "--output", str(tmp_path / "page")])
    assert found[1][0]["results"] == {} and found[1][0]["left_out"] == ["hangs"]


@pytest.mark.drill
def test_all_parts_at_the_tiny_size(tmp_path):
    device.main(["--size", "tiny", "--output", str(tmp_path / "page")])
    found, _ = written(tmp_path)
    assert [name for name, part in found["results"].items() if "failed" in part or part.get("right") is False] == []
    assert found["left_out"] == [] and len(found["results"]) >= 13
