"""Roll call and heartbeats among threads that play processes: who is missing, who is lost, where all stop."""

import contextlib
import socket
import threading
import time

import jax
import pytest

from tests.support.many_processes import free_address
from transformer_jax.errors import BadInput, Failed
from transformer_jax.processes.distributed import asked_for, found, joined, start
from transformer_jax.processes.watch import CAME, THROUGH, Limits, Watch


class Played:
    """One process: its watch, and what it was ended with."""

    def __init__(self, number, count, start=5.0, silence=5.0):
        self.verdict, self.ended = None, threading.Event()
        self.watch = Watch(number, count, Limits(start, silence), end=self.end)

    def end(self, why):
        self.verdict = why
        self.ended.set()

    def fate(self):
        assert self.ended.wait(5), "is still alive"
        return self.verdict

    def vanish(self):
        """As the kernel does with a killed process: its lines are closed."""
        for line in list(self.watch._selector.get_map().values()):
            with contextlib.suppress(OSError):  # the other end may have closed it first
                line.fileobj.shutdown(2) if line.data else None


@pytest.fixture
def together():
    """Makes processes that have joined; they leave in the end."""
    made = []

    def make(count, **limits):
        host, _, port = free_address().rpartition(":")
        players = [Played(number, count, **limits) for number in range(count)]
        made.extend(players)
        joins = [threading.Thread(target=p.watch.join, args=(host, int(port)), daemon=True) for p in players]
        for thread in joins:
            thread.start()
        for thread in joins:
            thread.join(10)
        return players

    yield make
    for player in made:
        player.watch.leave()


def test_all_come_and_know_each_other(together):
    players = together(3)
    for player in players:
        assert [member.number for member in player.watch.members] == [0, 1, 2]
        assert player.verdict is None


@pytest.mark.parametrize("lost", [0, 2])
def test_a_lost_process_is_named_at_once_to_all_others(together, lost):
    players = together(3, silence=60.0)
    players[lost].watch._over = True
    players[lost].vanish()
    name = str(players[lost].watch.me)
    for player in players:
        if player is not players[lost]:
            assert (
                player.fate() == f"{name} is gone, killed or crashed; the same command resumes from the last checkpoint"
            )


def test_a_silent_process_is_named(together):
    players = together(2, silence=0.6)
    with players[1].watch._changed:  # it stands still: whatever it wants to say, it cannot
        began = time.monotonic()
        assert "process 1" in players[0].fate() and "sent no heartbeat for 0.6 s" in players[0].verdict
        assert time.monotonic() - began < 2
    assert players[1].fate()


def test_who_did_not_come_is_named():
    host, _, port = free_address().rpartition(":")
    players = [Played(number, 4, start=0.5) for number in (0, 2)]
    for player in players:
        threading.Thread(target=player.watch.join, args=(host, int(port)), daemon=True).start()
    for player in players:
        assert player.fate() == "processes 1, 3 of 4 did not come within 0.5 s"


def test_who_did_not_come_to_the_first_collective_is_named(together):
    players = together(3, start=0.5)
    for player in players[:2]:
        player.watch.reached(CAME)
    assert players[1].fate() == "process 2 of 3 did not come to the first collective within 0.5 s"


def test_a_first_collective_that_does_not_end(together):
    players = together(2, start=0.5)
    for player in players:
        player.watch.reached(CAME)
    assert "all processes came to the first collective, but it did not end within 0.5 s" in players[0].fate()


def test_through_the_first_collective_nobody_is_late(together):
    players = together(2, start=0.3)
    for player in players:
        player.watch.reached(THROUGH)
    time.sleep(0.6)
    assert not any(player.ended.is_set() for player in players)


def test_a_coordinator_that_does_not_answer():
    host, _, port = free_address().rpartition(":")
    with pytest.raises(Failed, match=rf"process 0, the coordinator, did not answer at {host}:{port} within 0.3 s"):
        Watch(1, 2, Limits(0.3, 5.0)).join(host, int(port))


def test_a_process_too_many_is_sent_away(together):
    """One with a number that is taken; the others do not notice."""
    host, _, port = free_address().rpartition(":")
    players = [Played(number, 2) for number in (0, 1)]
    second = Played(1, 2)
    joins = []
    for player in (players[0], players[1], second):
        joins.append(threading.Thread(target=player.watch.join, args=(host, int(port)), daemon=True))
        joins[-1].start()
        time.sleep(0.3)
    assert "has no place among these processes: 1 has come already" in second.fate()
    assert not any(player.ended.is_set() for player in players)
    for player in players:
        player.watch.leave()


def test_one_that_gives_up_tells_the_others_why(together):
    players = together(3)
    players[2].watch.give_up("no such file")
    for player in players[:2]:
        assert player.fate() == f"{players[2].watch.me} ended: no such file"
    assert players[2].verdict is None


def test_leaving_is_no_failure(together):
    players = together(3)
    for player in (players[1], players[0], players[2]):
        player.watch.leave()
        player.vanish()
    time.sleep(0.3)
    assert not any(player.ended.is_set() for player in players)


def test_strangers_are_not_heard(together):
    players = together(2)
    port = next(key.fileobj.getsockname()[1] for key in players[0].watch._selector.get_map().values() if not key.data)
    for said in (b"GET / HTTP/1.1\r\n\r\n", b'{"end": "because I say so"}\n', b'{"over": true}\n', b""):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(said)
    time.sleep(0.3)
    assert not any(player.ended.is_set() for player in players)
    assert players[0].watch.stop_at(0, None) is None


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_all_stop_before_the_same_step(together, asked):
    """However far each is when one of them is asked to stop."""
    players = together(3)
    begun = {}

    def run(player):
        step = 0
        own = player.watch.me.number
        while (why := player.watch.stop_at(step, "for tea" if own == asked and step >= 7 else None)) is None:
            time.sleep(0.002 * (own + 1))
            step += 1
        begun[own] = step, why

    threads = [threading.Thread(target=run, args=(player,), daemon=True) for player in players]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(begun) == 3 and len(set(begun.values())) == 1, begun
    assert begun[0][0] >= 7 and begun[0][1] == "for tea"


def test_the_first_makes_and_the_others_find(together):
    players, order = together(3), []

    def make(number):
        time.sleep(0.1 if number == 0 else 0)
        order.append(number)
        return number

    threads = [
        threading.Thread(
            target=p.watch.on_first_then_on_others, args=(lambda n=n: make(n), lambda: "same"), daemon=True
        )
        for n, p in enumerate(players)
    ]
    for thread in reversed(threads):
        thread.start()
    for thread in threads:
        thread.join(10)
    assert order[0] == 0 and sorted(order) == [0, 1, 2]


def test_the_first_may_make_the_next_before_the_others_see_the_last(together):
    """As on a network file system that is slow to show a file."""
    players = together(2)
    for token in ("lock", "config"):
        players[0].watch.on_first_then_on_others(lambda: None, lambda token=token: token)
    seen = iter(("nothing", "lock", "lock", "config"))
    for _ in range(2):
        players[1].watch.on_first_then_on_others(lambda: None, lambda: next(seen))
    assert next(seen, None) is None


def test_a_folder_that_is_not_shared_is_refused(together):
    players = together(2, start=0.3)
    players[0].watch.on_first_then_on_others(lambda: None, lambda: "here")
    with pytest.raises(
        BadInput, match=r"process 1 .* does not see what process 0 .* must lie on a file system that all"
    ):
        players[1].watch.on_first_then_on_others(lambda: None, lambda: "elsewhere")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("a:1234", 2, None), "--process-id: missing"),
        ((None, 2, None), "--coordinator and --process-id: missing"),
        (("a", 2, 0), "--coordinator=a: must be HOST:PORT"),
        (("a:99999", 2, 0), "must be HOST:PORT"),
        (("a:1234", 0, 0), "--processes=0: must be at least 1"),
        (("a:1234", 2, 2), "--process-id=2: must be from 0 to 1, for --processes=2"),
    ],
)
def test_flags_that_do_not_go_together(flags, told):
    with pytest.raises(BadInput, match=told):
        asked_for(*flags)


def test_flags_that_do():
    assert asked_for("[fe80::1]:1234", 4, 3) == ("fe80::1", 1234, 4, 3)
    assert asked_for(None, None, None) is None and asked_for(None, 1, None) is None


@pytest.fixture
def slurm(monkeypatch):
    """A task of a SLURM job, whose number may be changed."""
    for name in ("CLUSTER_DETECTION_METHOD", "COORDINATOR_PORT", "COORDINATOR_ADDRESS"):
        monkeypatch.delenv(f"JAX_{name}", raising=False)
    task = {"JOB_ID": "1000", "STEP_NODELIST": "localhost", "NTASKS": "2", "PROCID": "0", "LOCALID": "0"}
    for name, value in task.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    return monkeypatch


def test_jobs_of_neighbouring_numbers_have_no_port_in_common(slurm):
    """Each takes that of JAX and the one before it."""
    ports = []
    for number in range(100_000, 102_048):
        slurm.setenv("SLURM_JOB_ID", str(number))
        host, port, processes, own = found(None, Limits(5.0, 5.0))
        assert (host, processes, own) == ("localhost", 2, 0)
        ports += [port - 1, port]
    assert len(set(ports)) == len(ports) and (min(ports), max(ports)) == (61440, 65535)
    slurm.setenv("JAX_COORDINATOR_PORT", "61500")
    assert found(None, Limits(5.0, 5.0)).port == 61500


@pytest.mark.parametrize("flags", [None, ("[fe80::1]:1234", 2, 0)])
def test_the_address_that_jax_is_given(slurm, flags):
    """A detected port, and an address of IPv6, which keeps its brackets."""
    given = []
    slurm.setattr(jax.distributed, "initialize", lambda address, *_, **__: given.append(address))
    slurm.setattr(jax.config, "update", lambda *_: None)
    limits = Limits(5.0, 5.0)
    start(asked_for(*flags) if flags else found(None, limits), limits, asked=bool(flags))
    assert given == ["[fe80::1]:1234" if flags else "localhost:63441"]


@pytest.mark.parametrize("setting", ["JAX_COORDINATOR_PORT", "--coordinator"])
def test_a_port_that_is_taken_is_reported_by_what_sets_it(slurm, setting):
    address = free_address()
    port = int(address.rpartition(":")[2])
    slurm.setenv("JAX_COORDINATOR_PORT", str(port))
    slurm.setenv("SLURM_STEP_NODELIST", "127.0.0.1")
    flags = (address, 2, 0) if setting == "--coordinator" else (None, None, None)
    told = rf"port {port - 1} cannot be listened to \(.*\): choose another for {setting}$"
    with socket.create_server(("127.0.0.1", port - 1)), pytest.raises(Failed, match=told):
        joined(*flags, Limits(5.0, 5.0)).__enter__()
