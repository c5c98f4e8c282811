"""Roll call and heartbeats: all processes of a run are there at its start, and when one is lost the others end at once.

Each process keeps a TCP connection to the coordinator, process 0, and sends a heartbeat every few seconds. A connection
that breaks, or is silent for too long, is a lost process: all others end with exit status 1 and one line that names it.

JAX's coordination service has heartbeats too, but it ends the survivors by SIGABRT and a C++ stack trace, does not say
who is missing at the start, crashes if the port is in use, and lets a process that was started by mistake end a healthy
run. So it is only the fallback (see `distributed.start`).
"""

import contextlib
import json
import os
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.progress import tell

T = TypeVar("T")
Message = dict[str, Any]

# Heartbeats: so many in the time after which a process is lost, and at least one in so many seconds.
HEARTBEATS, LONGEST_PAUSE = 6, 5.0
LOOPBACK = ("localhost", "127.0.0.1")
RESUMES = "the same command resumes from the last checkpoint"
# A network file system may take some seconds to show a machine what another has written.
SHARED_WITHIN = 60.0
# How far a process has come: to the roll call, to the first collective, through it.
CALLED, CAME, THROUGH = range(3)


class Limits(NamedTuple):
    """Seconds within which every process must start, and after which a silent one is lost."""

    start: float
    silence: float


class Member(NamedTuple):
    """One of the processes of a run."""

    number: int
    host: str
    pid: int | None = None

    def __str__(self) -> str:
        return f"process {self.number} ({self.host}" + (f", pid {self.pid})" if self.pid else ")")


def end_process(why: str) -> None:
    """Ends this process from any thread: the main thread may wait in a collective forever."""
    tell(f"failed: {why}")
    os._exit(1)


class Connection:
    """A connection to another process: JSON lines."""

    def __init__(self, connection: socket.socket):
        self.socket, self.last_read = connection, time.monotonic()
        self.member: Member | None = None
        self.broken = False
        self._unread = b""
        connection.settimeout(LONGEST_PAUSE)

    def send(self, message: Message) -> None:
        with contextlib.suppress(OSError):  # a broken connection is noticed when it is read
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message]:
        """The messages that have arrived; sets `broken` where no more will."""
        with contextlib.suppress(OSError, ValueError):  # another program may have connected
            if data := self.socket.recv(1 << 16):
                self.last_read = time.monotonic()
                *lines, self._unread = (self._unread + data).split(b"\n")
                return [json.loads(line) for line in lines]
        self.broken = True
        return []


class Watch:
    """One process's view of the others. The main thread joins and leaves; a background thread listens."""

    def __init__(self, index: int, count: int, limits: Limits, end: Callable[[str], None] = end_process):
        self.me = Member(index, socket.gethostname(), os.getpid())
        self.members: tuple[Member, ...] = ()  # once all have come
        self._count, self._limits, self._end = count, limits, end
        self._pause = min(limits.silence / HEARTBEATS, LONGEST_PAUSE)
        self._connections: list[Connection] = []
        self._selector = selectors.DefaultSelector()
        self._stages = {index: CALLED}
        self._due: float | None = None  # when the others must have reached the next stage
        self._made: queue.SimpleQueue[str] = queue.SimpleQueue()  # the token of each thing the first process has made
        self._step = -1  # that this process has begun
        self._begun: dict[int, int] = {}  # the same of all, while they agree where to stop
        self._agreeing, self._why = False, ""
        self._stop: tuple[int, str] | None = None  # before which step all stop, and why
        self._changed = threading.Condition()
        self._over = False

    def join(self, host: str, port: int, given_by: str = "--coordinator") -> tuple[Member, ...]:
        """Waits until every process has come; returns who they are. `given_by` is the setting that decides the port."""
        if self.me.number == 0:
            self._due = time.monotonic() + self._limits.start
            self._selector.register(_listener(host, port, given_by), selectors.EVENT_READ)
        else:
            connection = self._add(_connected(host, port, self._limits.start))
            connection.member = Member(0, host)
            connection.send({"hello": self.me, "count": self._count})
            self._connections.append(connection)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: self.members)
        return self.members

    def reached(self, stage: int) -> None:
        """Reports how far this process has come; the others must come as far in time."""
        with self._changed:
            self._note_stage(self.me.number, stage)
        self._send_all({"stage": stage})

    def on_first_then_on_others(self, make: Callable[[], T], token: Callable[[], str]) -> T:
        """Runs `make` in the first process, then in the others.

        `token` reads what the first has just written: a process that reads something else does not see its files.
        """
        if self.me.number == 0:
            made = make()
            self._send_all({"made": token()})
            return made
        made_by_first = self._made.get()  # in order: it may have made the next already
        deadline = time.monotonic() + min(self._limits.start, SHARED_WITHIN)
        while token() != made_by_first:
            if time.monotonic() > deadline:
                raise BadInput(
                    f"{self.me} does not see what {self.members[0]} writes: --workdir, and data.directory if it is "
                    "given, must lie on a file system that all processes share"
                )
            time.sleep(0.5)
        return make()

    def stop_at(self, step: int, why: str | None) -> str | None:
        """Why all processes stop before this step, or None. `why` is this process's reason to stop.

        The coordinator asks all how far they are. Until they know the first step that none has begun, none begins one.
        """
        with self._changed:
            if why is not None and self._stop is None and not self._agreeing:
                self._start_agreeing(why) if self.me.number == 0 else self._send_all({"stop": why})
            self._changed.wait_for(lambda: not self._agreeing)
            if self._stop is not None and step >= self._stop[0]:
                return self._stop[1]
            self._step = step
            return None

    def wait_for_loss(self) -> None:
        """Waits until the other thread has found which process is lost and ends this one."""
        time.sleep(self._limits.silence + 2 * self._pause)

    def leave(self) -> None:
        """The run is over: what happens to the others is no failure any more."""
        self._over = True
        self._send_all({"over": True})

    def give_up(self, why: str) -> None:
        """Ends the others, because this process ends."""
        self._over = True
        self._send_all({"end": f"{self.me} ended: {why}"})

    def _watch(self) -> None:
        """The thread: reads messages, sends heartbeats, and ends everything when a process is lost."""
        sent = awake = time.monotonic()
        while not self._over:
            for key, _ in self._selector.select(self._pause):
                self._hear(key)
            now = time.monotonic()
            if now - awake > self._limits.silence:
                return self._end_all(
                    f"{self.me} was suspended for {now - awake:.0f} s, longer than the others wait; {RESUMES}"
                )
            awake = now
            if now - sent >= self._pause:
                sent = now
                self._send_all({})
            if not self._over and (lost := self._lost(now)):
                return self._end_all(lost)

    def _lost(self, now: float) -> str | None:
        """What is wrong with the other processes, or None."""
        for connection in self._connections:
            if connection.broken:
                return f"{connection.member} is gone, killed or crashed; {RESUMES}"
            if now - connection.last_read > self._limits.silence:
                return f"{connection.member} sent no heartbeat for {self._limits.silence:g} s; {RESUMES}"
        if self._due is None or now < self._due:
            return None
        for stage, what in ((CALLED, "come"), (CAME, "come to the first collective")):
            if late := [str(index) for index in range(self._count) if self._stages.get(index, -1) < stage]:
                which = f"process {late[0]}" if len(late) == 1 else f"processes {', '.join(late)}"
                return f"{which} of {self._count} did not {what} within {self._limits.start:g} s"
        return (
            f"all processes came to the first collective, but it did not end within {self._limits.start:g} s: "
            "does the network between their machines carry it?"
        )

    def _end_all(self, why: str) -> None:
        """Ends all the others, then this process."""
        self._over = True
        self._send_all({"end": why})
        self._end(why)

    def _hear(self, key: selectors.SelectorKey) -> None:
        """Reads from one connection, or accepts a new one."""
        connection: Connection | None = key.data
        if connection is None:
            self._add(key.fileobj.accept()[0])  # type: ignore[union-attr]
            return
        with self._changed:
            for message in connection.receive():
                self._take(connection, message)
            self._changed.notify_all()
        if connection.broken:
            self._selector.unregister(connection.socket)
            connection.socket.close()

    def _take(self, connection: Connection, message: Message) -> None:
        match message:
            case {"hello": [int(index), str(host), int(pid)], "count": int(count)} if self.me.number == 0:
                self._welcome(connection, Member(index, host, pid), count)
            case {"all": [*members]} if self.me.number > 0:
                self.members = tuple(Member(*member) for member in members)
                connection.member = self.members[0]  # now with host and pid
            case {"stage": int(stage)} if connection.member is not None:
                self._note_stage(connection.member.number, stage)
            case {"made": str(token)}:
                self._made.put(token)
            case {"stop": str(why)} if self._stop is None and not self._agreeing:
                self._start_agreeing(why)
            case {"begun": int(step)} if connection.member is not None:
                self._note_begun(connection.member.number, step)
            case {"stop_at": int(step), "why": str(why)}:
                self._set_stop(step, why)
            case {"over": True} if connection in self._connections:
                self._connections.remove(connection)
                self._over = self._over or self.me.number > 0
            case {"end": str(why)} if connection.member is not None and not self._over:  # not an echo
                self._end_all(why)

    def _welcome(self, connection: Connection, member: Member, count: int) -> None:
        """Registers a process at the coordinator, and tells all processes when it was the last one."""
        if count != self._count or not 0 < member.number < count or member.number in self._stages:
            why = f"{member.number} has come already" if member.number in self._stages else f"these are {self._count}"
            connection.send({"end": f"{member} of {count} has no place among these processes: {why}"})
            return
        connection.member = member
        self._connections.append(connection)
        self._note_stage(member.number, CALLED)
        if len(self._stages) == self._count:
            self.members = (self.me, *sorted(each.member for each in self._connections if each.member))
            self._due = time.monotonic() + self._limits.start
            self._send_all({"all": self.members})

    def _start_agreeing(self, why: str) -> None:
        """Starts to agree where to stop: the coordinator asks, the others answer."""
        self._agreeing, self._why = True, why
        if self.me.number == 0:
            self._send_all({"stop": why})
            self._note_begun(0, self._step)
        else:
            self._send_all({"begun": self._step})

    def _note_begun(self, index: int, step: int) -> None:
        self._begun[index] = step
        if len(self._begun) == self._count:
            stop = max(self._begun.values()) + 1
            self._send_all({"stop_at": stop, "why": self._why})
            self._set_stop(stop, self._why)

    def _set_stop(self, step: int, why: str) -> None:
        self._stop, self._agreeing = (step, why), False
        self._changed.notify_all()

    def _note_stage(self, index: int, stage: int) -> None:
        self._stages[index] = stage
        if len(self._stages) == self._count and min(self._stages.values()) == THROUGH:
            self._due = None

    def _add(self, opened: socket.socket) -> Connection:
        connection = Connection(opened)
        self._selector.register(opened, selectors.EVENT_READ, connection)
        return connection

    def _send_all(self, message: Message) -> None:
        with self._changed:
            for connection in self._connections:
                connection.send(message)


def _listener(host: str, port: int, given_by: str) -> socket.socket:
    """The coordinator's socket; for a loopback address only from this machine."""
    try:
        if host in LOOPBACK or not socket.has_dualstack_ipv6():
            return socket.create_server((host if host in LOOPBACK else "", port))
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    except OSError as error:
        reason = f"port {port} cannot be listened to ({error.strerror})"
        raise Failed(f"{reason}: choose another for {given_by}") from None


def _connected(host: str, port: int, seconds: float) -> socket.socket:
    """A connection to the coordinator, which may still be starting."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection((host, port), timeout=LONGEST_PAUSE)
        except OSError as error:
            reason = error.strerror or error
        if time.monotonic() > deadline:
            raise Failed(
                f"process 0, the coordinator, did not answer at {host}:{port} within {seconds:g} s ({reason}): is it "
                "running, and is the port open?"
            )
        time.sleep(0.2)
