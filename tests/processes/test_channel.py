"""The connections between processes, here between threads: meetings, stops, ends, and who never comes."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.many_processes import free_address
from transformer_jax.config import MeshConfig
from transformer_jax.errors import BadInput, Failed
from transformer_jax.processes import channel as module
from transformer_jax.processes import watchdog
from transformer_jax.processes.channel import connect
from transformer_jax.processes.distributed import Processes

MESH = MeshConfig(start_within=20, lost_after=20, stalled_after=20)


@pytest.fixture
def ended(monkeypatch):
    """The lines with which processes of a test would have ended. Its threads may come to that after it."""
    lines = []
    monkeypatch.setattr(module, "SECONDS_BETWEEN_BEATS", 0.05)
    monkeypatch.setattr(module, "SECONDS_TO_FIND_OUT", 0.05)
    monkeypatch.setattr(module, "SECONDS_TO_TELL", 0.5)
    module.give_up = lambda line, status, first: lines.append(f"{line} [{status}]")
    yield lines
    time.sleep(0.2)
    module.give_up = lambda line, status, first: None


def together(work, items):
    """What `work` returns, or raises, for each item; all at the same time."""

    def attempt(item):
        try:
            return work(item)
        except (BadInput, Failed) as error:
            return error

    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(attempt, items))


def connected(count, numbers=None, mesh=MESH):
    address = free_address()
    return together(lambda number: connect(address, count, number, mesh), numbers or range(count))


def until(holds):
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_meetings_have_a_text_from_each(ended):
    channels = connected(3)
    assert [name.partition(" (")[0] for name in channels[2].names] == [f"process {each} of 3" for each in range(3)]
    for text in ("ä", "b\n" * 100_000):
        found = together(lambda channel, text=text: channel.meet("a", f"{channel.number}{text}"), channels)
        assert found == [[f"0{text}", f"1{text}", f"2{text}"]] * 3
    together(lambda channel: channel.finish(), channels)
    assert not ended


def test_all_stop_before_the_same_step_which_none_has_taken(ended):
    channels = connected(3)
    for channel, step in zip(channels, (4, 6, 5), strict=True):
        assert channel.stops_at(step) is None
    channels[1].send("ask", "by SIGTERM", True)
    channels[2].send("ask", "after train.hours", False)

    def stop(channel):
        step = channel._step
        while (why := channel.stops_at(step)) is None:
            step += 1
            time.sleep(0.01)
        return step, why

    found = together(stop, channels)
    assert found == [found[0]] * 3 and found[0][0] >= 7
    together(lambda channel: channel.finish(), channels)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_why_one_ends_is_told_to_all_others(number, ended):
    channels = connected(3)
    channels[number].end("no such file", 2)
    until(lambda: len(ended) >= 2)
    assert ended == [f"{channels[0].names[number]} ended: no such file [2]"] * 2


def test_one_whose_connection_breaks_is_lost(ended):
    channels = connected(3)
    channels[1].wait_for_others()  # closes it
    until(lambda: len(ended) >= 3)
    assert ended.count(f"{channels[0].names[1]} is lost: {module.BROKEN} [1]") == 2


def test_one_that_says_nothing_is_lost(ended, monkeypatch):
    channels = connected(2, mesh=MeshConfig(lost_after=0.5))
    monkeypatch.setattr(channels[1], "send", lambda *message: None)
    until(lambda: ended)
    assert ended[0] == f"{channels[0].names[1]} is lost: silent for 0.5 s [1]"


def test_one_that_hangs_is_named_and_says_where(ended, monkeypatch):
    monkeypatch.setattr(watchdog, "_waiting", 0)  # threads of other tests may wait for ever
    channels = connected(2, mesh=MeshConfig(stalled_after=0.5))
    channels[1].send = lambda kind, *content, send=channels[1].send: kind == "at" or send(kind, *content)
    threading.Thread(target=channels[0].meet, args=("a",), daemon=True).start()
    until(lambda: len(ended) == 2)
    assert all(f"waiting for {channels[0].names[1]}" in line for line in ended)
    assert ["test_one_that_hangs_is_named_and_says_where" in line for line in ended].count(True) == 1


@pytest.mark.parametrize("twice", [0, 1])
def test_two_with_one_number_are_named_to_all(twice):
    found = connected(3, (0, 1, twice))
    assert [type(each) for each in found] == [Failed] * 3
    # Process 1 may come when both others have ended, and finds nobody.
    (told,) = {str(each) for each in found if "process 1 of 3 " not in str(each) or "has not found" not in str(each)}
    assert f"two processes have --process-id={twice}" in told and told.count("pid") == 2


def test_who_has_not_come_is_told_to_all():
    found = connected(4, (0, 2), MeshConfig(start_within=1))
    assert {str(each) for each in found} == {"process 1, 3 of 4 has not come within 1 s"}


def test_processes_of_another_number():
    address = free_address()
    found = together(lambda each: connect(address, each[0], each[1], MESH), [(2, 0), (3, 1)])
    assert all("two processes have different --processes" in str(each) for each in found)


@pytest.mark.parametrize("says", [b"", b"no JSON\n", b"7\n"])
def test_another_program_at_the_address_is_not_process_0(says):
    address = free_address()

    def answer(server):
        while True:
            connection, _ = server.accept()
            connection.sendall(says)
            connection.close()

    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        for number in (0, 1):
            with pytest.raises(
                Failed, match=f"^process {number} of 2 .* has not found process 0 of this run at {address}"
            ):
                connect(address, 2, number, MeshConfig(start_within=0.5))


@pytest.mark.parametrize("says", [b"GET / HTTP/1.1\r\n", b'[[], 2, "x"]\n', b'[7, 2, "x"]\n'])
def test_a_stranger_that_connects_is_no_process(says, ended):
    address = free_address()
    first = threading.Thread(target=connect, args=(address, 2, 0, MESH), daemon=True)
    first.start()
    until(lambda: _said(address, says))
    assert connect(address, 2, 1, MESH).names
    first.join()


def _said(address, words):
    try:
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(words)
            return connection.recv(1) == b""
    except OSError:
        return False


@pytest.mark.parametrize("facts", [({"a": 1, "b": 2}, {"a": 1, "b": 3}), ({"a": 1, "b": 2}, {"a": 1})])
def test_the_first_difference_is_named_to_all(facts, ended):
    channels = connected(3)

    def compare(channel):
        Processes(channel.number, 3, channel).compare(facts[channel.number == 2])

    found = together(compare, channels)
    other = facts[1].get("b", "nothing")
    names = channels[0].names
    assert {str(each) for each in found} == {
        f"the processes of a run must agree, but b is 2 in {names[0]} and {other} in {names[2]}"
    }
    assert together(lambda channel: Processes(channel.number, 3, channel).compare(facts[0]), channels) == [None] * 3


def test_a_broadcast_is_the_value_of_the_first(ended):
    channels = connected(2)
    found = together(lambda channel: Processes(channel.number, 2, channel).broadcast([channel.number, "é"]), channels)
    assert found == [[0, "é"]] * 2
