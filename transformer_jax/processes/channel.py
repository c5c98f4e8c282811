"""The connections between the processes of a run: one from each to process 0, over TCP, until the run ends.

They exist before JAX connects the processes, so that one that never comes, or a number that was given twice, is told in
a line. Over them processes meet (each tells the others a text), agree on the step at which a signal stops them, and
learn at once that one has ended, and why. Threads receive all messages: the main thread of a process may be inside a
collective that never ends. A message is a line of JSON; process 0 also sends itself what it sends to the others.
"""

import contextlib
import functools
import json
import os
import socket
import struct
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from transformer_jax.config import MeshConfig
from transformer_jax.errors import Failed
from transformer_jax.files.progress import tell
from transformer_jax.processes import watchdog

# Seconds between signs of life, in which each process also says how far it is.
SECONDS_BETWEEN_BEATS = 1.0
# Seconds between attempts to connect to process 0.
SECONDS_BETWEEN_ATTEMPTS = 0.5
# Seconds that a process which ends gives the others to say why.
SECONDS_TO_TELL = 5.0
# Seconds in which processes that end for the same reason find it themselves.
SECONDS_TO_FIND_OUT = 1.0
# The seconds and bytes that a stranger's connection may take to greet.
SECONDS_TO_GREET, LONGEST_GREETING = 5.0, 10_000


THE_END = "the end"
BROKEN = "its connection broke; its log may say why"


class Connection:
    """A socket for messages. One that cannot be sent for `lost_after` seconds breaks the connection."""

    def __init__(self, connected: socket.socket, lost_after: float):
        self._socket, self._sending = connected, threading.Lock()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(lost_after) + 1, 0))
        self._lines = connected.makefile("rb")
        self.closed = threading.Event()  # by the other side

    def send(self, *message: Any) -> None:
        """Sends a message. If that fails, `receive` notices that the connection is broken."""
        with self._sending:
            try:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def first(self, seconds: float, longest: int = -1) -> Any:
        """The first message. Raises OSError or ValueError if there is none within some time."""
        self._socket.settimeout(seconds)
        found = json.loads(self._lines.readline(longest))
        self._socket.settimeout(None)
        return found

    def receive(self, act: Callable[..., None], lost: Callable[[], None]) -> None:
        """Calls `act` with each message, in a thread of its own, and `lost` when there will be no more."""

        def work() -> None:
            try:
                for line in self._lines:
                    act(*json.loads(line))
            except (OSError, ValueError):
                pass
            self.closed.set()
            lost()

        threading.Thread(target=work, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Channel:
    """This process's connection to process 0. In process 0 it leads to the `Hub`."""

    def __init__(self, number: int, names: Sequence[str], mesh: MeshConfig, send: Callable[..., None]):
        self.number, self.names, self.send, self._mesh = number, names, send, mesh
        self._changed = threading.Condition()
        self._met: dict[str, list[str]] = {}
        self._meetings: dict[str, int] = defaultdict(int)
        self._step, self._is_held = -1, False
        self._stop: tuple[int, str] | None = None  # before which step, and why
        self._silent = 0.0  # seconds without a message; a suspended process does not count them
        self._told, self._is_over, self._ends_itself = threading.Event(), False, False
        self.wait_for_others: Callable[[], None] = lambda: None  # until they have read what process 0 sent

    # In the main thread, or in one that writes checkpoints.

    def meet(self, name: str, text: str = "") -> list[str]:
        """Waits until every process has come to the same meeting; returns what each said."""
        with watchdog.waiting():
            self._meetings[name] += 1
            key = f"{name} {self._meetings[name]}"
            self.send("meet", key, text)
            with self._changed:
                self._changed.wait_for(lambda: key in self._met)
                return self._met.pop(key)

    def stops_at(self, step: int) -> str | None:
        """Why all processes stop before this step, if they do. Each asks before each step."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_held)
            self._step = step
            return None if self._stop is None or step < self._stop[0] else self._stop[1]

    def end(self, why: str, status: int) -> None:
        """Tells all that this process ends because of an error, and waits until they know: all have its status."""
        self._is_over = self._ends_itself = True
        self.send("end", why, status)
        self._told.wait(SECONDS_TO_TELL)
        self.wait_for_others()

    def fail(self, why: str) -> None:
        """Ends this process, whose main thread may wait for ever, and with it all."""
        if not self._is_over:
            self.end(why, 1)
            give_up(why, 1, self.wait_for_others)

    def finish(self) -> None:
        """Returns when all processes have come to their end."""
        self.meet(THE_END)
        self.wait_for_others()

    # In threads.

    def receive(self, kind: str, *content: Any) -> None:
        """Acts on a message from process 0."""
        self._silent = 0.0
        match kind, content:
            case "met", (key, texts):
                self._is_over = self._is_over or key.startswith(THE_END)
                with self._changed:
                    self._met[key] = texts
                    self._changed.notify_all()
            case "where", ():  # how far is this process? It takes no further step until all know where to stop
                with self._changed:
                    self._is_held = True
                    self.send("step", self._step)
            case "stop", (step, why):
                with self._changed:
                    self._stop, self._is_held = (step, why), False
                    self._changed.notify_all()
            case "end", (line, status, behind):
                if self.number in behind:
                    frame = sys._current_frames()[threading.main_thread().ident or 0]
                    line += "\nit is here:\n" + "".join(traceback.format_stack(frame)).rstrip()
                self.leave(line, status, SECONDS_TO_FIND_OUT)

    def leave(self, line: str, status: int = 1, later: float = 0.0) -> None:
        """Ends this process because of another one, unless it ends by itself within some time."""
        self._told.set()
        if not self._is_over:
            self._is_over = True
            threading.Thread(target=self._leave, args=(line, status, later), daemon=True).start()

    def _leave(self, line: str, status: int, later: float) -> None:
        time.sleep(later)
        if not self._ends_itself:
            give_up(line, status, self.wait_for_others)

    def lost(self) -> None:
        self.leave(f"{self.names[0]} is lost: {BROKEN}")

    def beat(self) -> None:
        """Says every second how far this process is, and notices when process 0 is silent."""
        for seconds in _beats(lambda: self._is_over):
            self._silent += seconds
            self.send("at", *watchdog.state())
            if self._silent > self._mesh.lost_after:
                self.leave(f"{self.names[0]} is lost: silent for {self._mesh.lost_after:g} s")


class Hub:
    """Process 0's end of all connections: what one process says, it passes on to all."""

    def __init__(self, channel: Channel, others: dict[int, Connection], mesh: MeshConfig):
        self._channel, self._others, self._mesh = channel, others, mesh
        self._lock = threading.RLock()
        self._texts: dict[str, dict[int, str]] = defaultdict(dict)
        self._steps: dict[int, int] = {}
        self._why_stop: str | None = None
        self._is_over = False
        self._silent = dict.fromkeys(range(len(channel.names)), 0.0)
        self._watchdog = watchdog.Watchdog(channel.names, mesh.stalled_after)

    def start(self) -> None:
        for number, other in self._others.items():
            act, lost = functools.partial(self.receive, number), functools.partial(self._lost, number, BROKEN)
            other.receive(act, lost)
        threading.Thread(target=self._beat, daemon=True).start()

    def receive(self, number: int, kind: str, *content: Any) -> None:
        """Acts on a message from a process."""
        count = len(self._channel.names)
        with self._lock:
            self._silent[number] = 0.0
            match kind, content:
                case "meet", (key, text):
                    self._texts[key][number] = text
                    if len(self._texts[key]) == count:
                        texts = self._texts.pop(key)
                        self._is_over = self._is_over or key.startswith(THE_END)
                        self._to_all("met", key, [texts[each] for each in range(count)])
                case "at", (done, state):
                    self._watchdog.set(number, done, state)
                case "ask", (why, is_signal):
                    if is_signal:
                        self._watchdog.hurry()
                    if self._why_stop is None:
                        self._why_stop = why
                        self._to_all("where")
                case "step", (step,):
                    self._steps[number] = step
                    if len(self._steps) == count:
                        self._to_all("stop", max(self._steps.values()) + 1, self._why_stop)
                case "end", (why, status):
                    self._end(f"{self._channel.names[number]} ended: {why}", status)

    def _to_all(self, *message: Any) -> None:
        for other in self._others.values():
            other.send(*message)
        self._channel.receive(*message)

    def _end(self, line: str, status: int = 1, behind: Sequence[int] = ()) -> None:
        """Tells all once why they end."""
        with self._lock:
            if not self._is_over:
                self._is_over = True
                self._to_all("end", line, status, behind)

    def _lost(self, number: int, why: str) -> None:
        self._end(f"{self._channel.names[number]} is lost: {why}")

    def wait_for_others(self) -> None:
        """Lets the others read what they were told: when process 0 ends, JAX ends them."""
        deadline = time.monotonic() + SECONDS_TO_TELL
        for other in self._others.values():
            other.closed.wait(max(0.0, deadline - time.monotonic()))

    def _beat(self) -> None:
        for seconds in _beats(lambda: self._is_over):
            self._to_all("alive")
            for number in self._others:
                self._silent[number] += seconds
                if self._silent[number] > self._mesh.lost_after:
                    self._lost(number, f"silent for {self._mesh.lost_after:g} s")
            if stalled := self._watchdog.look(seconds):
                self._end(stalled[0], behind=stalled[1])


def _beats(is_over: Callable[[], bool]) -> Iterator[float]:
    """The seconds since the last beat, again and again. Those in which this process was suspended are left out."""
    last = time.monotonic()
    while not is_over():
        time.sleep(SECONDS_BETWEEN_BEATS)
        now = time.monotonic()
        yield min(now - last, 2 * SECONDS_BETWEEN_BEATS)
        last = now


def connect(coordinator: str, count: int, number: int, mesh: MeshConfig) -> Channel:
    """Connects this process to the others. Raises Failed, in all of them, if one does not come or comes twice."""
    name = f"process {number} of {count} ({socket.gethostname()}, pid {os.getpid()})"
    tell(f"{name} waits up to {mesh.start_within:g} s for the others at {coordinator}")
    host, _, port = coordinator.rpartition(":")
    listening = _listen(host, int(port)) if number == 0 else None
    if listening is None:
        connection, names = _join((host.strip("[]"), int(port)), (number, count, name), mesh)
        channel = Channel(number, names, mesh, connection.send)
        channel.wait_for_others = connection.close
        connection.receive(channel.receive, channel.lost)
    else:
        with listening:
            others, names = _accept(listening, count, name, mesh)
        channel = Channel(0, names, mesh, lambda *message: hub.receive(0, *message))
        hub = Hub(channel, others, mesh)
        channel.wait_for_others = hub.wait_for_others
        hub.start()
    threading.Thread(target=channel.beat, daemon=True).start()
    return channel


def _listen(host: str, port: int) -> socket.socket | None:
    """The port of process 0, which JAX takes over later; None if it is taken: by another process 0?"""
    address = host if is_loopback(host) else ""
    both = not address and socket.has_dualstack_ipv6()
    try:
        family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server((address, port), family=family, dualstack_ipv6=both, backlog=1024)
    except OSError:
        return None


def is_loopback(host: str) -> bool:
    return host in ("localhost", "127.0.0.1")


def _accept(
    listening: socket.socket, count: int, name: str, mesh: MeshConfig
) -> tuple[dict[int, Connection], list[str]]:
    """The connections of all others, by number, and the names of all."""
    deadline = time.monotonic() + mesh.start_within
    names, others, all_told, problem = {0: name}, dict[int, Connection](), list[Connection](), ""
    while len(names) < count and not problem:
        listening.settimeout(max(deadline - time.monotonic(), 0.01))
        try:
            connection = Connection(listening.accept()[0], mesh.lost_after)
        except TimeoutError:
            missing = ", ".join(str(other) for other in range(count) if other not in names)
            problem = f"process {missing} of {count} has not come within {mesh.start_within:g} s"
            break
        try:
            other, of, who = connection.first(SECONDS_TO_GREET, LONGEST_GREETING)
            if other not in range(of):
                raise ValueError(other)
        except (OSError, ValueError, TypeError):  # somebody else's connection
            connection.close()
            continue
        all_told.append(connection)
        if of != count or other in names:
            what = f"different --processes: {name}" if of != count else f"--process-id={other}: {names[other]}"
            problem = f"two processes have {what} and {who}"
        names[other], others[other] = who, connection
    sorted_names = [names.get(each, "") for each in range(count)]
    for connection in all_told:
        connection.send(problem, sorted_names)
    if problem:
        raise Failed(problem)
    return others, sorted_names


def _join(address: tuple[str, int], greeting: tuple[int, int, str], mesh: MeshConfig) -> tuple[Connection, list[str]]:
    """The connection to process 0, and the names of all."""
    deadline, found = time.monotonic() + mesh.start_within, ""
    while (left := deadline - time.monotonic()) > 0:
        try:
            connection = Connection(socket.create_connection(address, SECONDS_TO_GREET), mesh.lost_after)
            connection.send(*greeting)
            problem, names = connection.first(left + SECONDS_TO_TELL)
            break
        except OSError as error:
            found = error.strerror or str(error)
        except (ValueError, TypeError):
            found = "another program answers"
        time.sleep(SECONDS_BETWEEN_ATTEMPTS)
    else:
        where = f"{address[0]}:{address[1]} within {mesh.start_within:g} s"
        raise Failed(f"{greeting[2]} has not found process 0 of this run at {where} ({found})")
    if problem:
        raise Failed(problem)
    return connection, names


def give_up(line: str, status: int, first: Callable[[], None]) -> None:
    """Ends this process, whose main thread may wait for ever."""
    with contextlib.suppress(Exception):  # stderr may be closed
        tell(f"failed: {line}")
    first()
    leave(status)


def leave(status: int) -> None:
    """Ends this process without waiting for anything."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
