"""Roll call and watch: every process of a run is there at its start, and when one is lost the others end at once.

A collective waits for every process, on some networks for ever, and JAX ends those that wait by an abort that names
nobody. So each process keeps a line (TCP) open to the coordinator, process 0, and says every few seconds that it lives.
A line that breaks, or that was silent for too long, is a process lost, and the run with it: all others end, with exit
status 1 and one line that says who it was. The run itself is safe in its last checkpoint.
"""

import contextlib
import json
import os
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

# How often a process says that it lives: so many times before it would be given up, and at least every so many seconds.
SIGNS, LONGEST_PAUSE = 6, 5.0
LOOPBACK = ("localhost", "127.0.0.1")
GOES_ON = "the same command goes on from the last checkpoint"
# A network file system may take some seconds to show a machine what another has written.
SHARED_WITHIN = 60.0
# How far a process has got: to the roll call, to the first collective, through it.
CALLED, CAME, THROUGH = range(3)


class Limits(NamedTuple):
    """Seconds: until every process must have come, and after which one that gives no sign of life is lost."""

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
    """The end of this process, from whichever thread: the main one may be waiting in a collective for ever."""
    tell(f"failed: {why}")
    os._exit(1)


class Line:
    """A connection to another process, which carries one JSON object a line."""

    def __init__(self, connection: socket.socket):
        self.socket, self.heard = connection, time.monotonic()
        self.member: Member | None = None
        self.broken = False
        self._unread = b""
        connection.settimeout(LONGEST_PAUSE)

    def send(self, message: Message) -> None:
        """Whether it arrives is found out by listening."""
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message]:
        """What has come; nothing, for good, from a line that is broken."""
        with contextlib.suppress(OSError, ValueError):  # a stranger may speak another language
            if data := self.socket.recv(1 << 16):
                self.heard = time.monotonic()
                *lines, self._unread = (self._unread + data).split(b"\n")
                return [json.loads(line) for line in lines]
        self.broken = True
        return []


class Watch:
    """One process's part in it. The main thread joins, goes its way and leaves; a thread of its own listens."""

    def __init__(self, index: int, count: int, limits: Limits, end: Callable[[str], None] = end_process):
        self.me = Member(index, socket.gethostname(), os.getpid())
        self.members: tuple[Member, ...] = ()  # once all have come
        self._count, self._limits, self._end = count, limits, end
        self._pause = min(limits.silence / SIGNS, LONGEST_PAUSE)
        self._lines: list[Line] = []
        self._selector = selectors.DefaultSelector()
        self._stages = {index: CALLED}
        self._due: float | None = None  # by when the others must have got further
        self._made: str | None = None  # the token of what the first process has made
        self._step = -1  # that this process has begun
        self._begun: dict[int, int] = {}  # the same of all, while they settle where to stop
        self._settling, self._why = False, ""
        self._stop: tuple[int, str] | None = None  # before which step all stop, and why
        self._changed = threading.Condition()
        self._over = False

    def join(self, host: str, port: int) -> tuple[Member, ...]:
        """Waits until every process has come; who they are."""
        if self.me.number == 0:
            self._due = time.monotonic() + self._limits.start
            self._selector.register(_listener(host, port), selectors.EVENT_READ)
        else:
            line = self._add(_connected(host, port, self._limits.start))
            line.member = Member(0, host)
            line.send({"hello": self.me, "count": self._count})
            self._lines.append(line)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        self._wait_until(lambda: bool(self.members))
        return self.members

    def reached(self, stage: int) -> None:
        """Notes how far this process has got; the others must get as far in time."""
        with self._changed:
            self._note_stage(self.me.number, stage)
        self._send_all({"stage": stage})

    def first_then_all(self, make: Callable[[], T], token: Callable[[], str]) -> T:
        """Lets the first process make what the others then find made.

        `token` reads something that the first has just written: who reads something else does not see its files.
        """
        if self.me.number == 0:
            made = make()
            self._send_all({"made": token()})
            return made
        self._wait_until(lambda: self._made is not None)
        deadline = time.monotonic() + min(self._limits.start, SHARED_WITHIN)
        while token() != self._made:
            if time.monotonic() < deadline:
                time.sleep(0.5)
                continue
            raise BadInput(
                f"{self.me} does not see what {self.members[0]} writes: --workdir, and data.directory if it is given, "
                "must lie on a file system that all processes share"
            )
        return make()

    def stop_at(self, step: int, why: str | None) -> str | None:
        """Why all processes stop before this step, if they do. `why` is a reason of this process's own.

        One that has a reason tells the coordinator, who asks all how far they are; until they know which step is the
        first that none has begun, none begins another.
        """
        with self._changed:
            if why is not None and self._stop is None and not self._settling:
                self._settle(why) if self.me.number == 0 else self._send_all({"stop": why})
            while self._settling:
                self._changed.wait()
            if self._stop is not None and step >= self._stop[0]:
                return self._stop[1]
            self._step = step
            return None

    def wait_for_verdict(self) -> None:
        """Long enough for the watch to find out who was lost, and to end this process."""
        time.sleep(self._limits.silence + 2 * self._pause)

    def leave(self) -> None:
        """The run is over for all: nothing that happens to the others is a failure any more."""
        self._over = True
        self._send_all({"over": True})

    def give_up(self, why: str) -> None:
        """This process is about to end, and the others with it."""
        self._over = True
        self._send_all({"end": f"{self.me} ended: {why}"})

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        """The main thread's patience; what takes too long ends the process from the other thread."""
        with self._changed:
            while not is_so():
                self._changed.wait()

    def _watch(self) -> None:
        """What the thread does."""
        told = stirred = time.monotonic()
        while not self._over:
            for key, _ in self._selector.select(self._pause):
                self._hear(key)
            now = time.monotonic()
            if now - stirred > self._limits.silence:
                return self._condemn(
                    f"{self.me} stood still for {now - stirred:.0f} s, longer than the others wait; {GOES_ON}"
                )
            stirred = now
            if now - told >= self._pause:
                told = now
                self._send_all({})
            if not self._over and (lost := self._lost(now)):
                return self._condemn(lost)

    def _lost(self, now: float) -> str | None:
        """What is wrong with the others, if anything is."""
        for line in self._lines:
            if line.broken:
                return f"{line.member} is gone, killed or crashed; {GOES_ON}"
            if now - line.heard > self._limits.silence:
                return f"{line.member} gave no sign of life for {self._limits.silence:g} s; {GOES_ON}"
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

    def _condemn(self, why: str) -> None:
        """Ends all the others, then this process."""
        self._over = True
        self._send_all({"end": why})
        self._end(why)

    def _hear(self, key: selectors.SelectorKey) -> None:
        """Takes what one line brings, or a new line."""
        line: Line | None = key.data
        if line is None:
            self._add(key.fileobj.accept()[0])  # type: ignore[union-attr]
            return
        with self._changed:
            for message in line.receive():
                self._take(line, message)
            self._changed.notify_all()
        if line.broken:
            self._selector.unregister(line.socket)
            line.socket.close()

    def _take(self, line: Line, message: Message) -> None:
        match message:
            case {"hello": [int(index), str(host), int(pid)], "count": int(count)} if self.me.number == 0:
                self._welcome(line, Member(index, host, pid), count)
            case {"all": [*members]} if self.me.number > 0:
                self.members = tuple(Member(*member) for member in members)
                line.member = self.members[0]  # now with its own name and pid
            case {"stage": int(stage)} if line.member is not None:
                self._note_stage(line.member.number, stage)
            case {"made": str(token)}:
                self._made = token
            case {"stop": str(why)} if self._stop is None and not self._settling:
                self._settle(why)
            case {"begun": int(step)} if line.member is not None:
                self._note_begun(line.member.number, step)
            case {"stop_at": int(step), "why": str(why)}:
                self._settled(step, why)
            case {"over": True} if line in self._lines:
                self._lines.remove(line)
                self._over = self._over or self.me.number > 0
            case {"end": str(why)} if line.member is not None and not self._over:  # not the echo of our own
                self._condemn(why)

    def _welcome(self, line: Line, member: Member, count: int) -> None:
        """The coordinator notes who has come; when all have, they are told."""
        if count != self._count or not 0 < member.number < count or member.number in self._stages:
            already = (
                f"{member.number} has come already" if member.number in self._stages else f"these are {self._count}"
            )
            line.send({"end": f"{member} of {count} has no place among these processes: {already}"})
            return
        line.member = member
        self._lines.append(line)
        self._note_stage(member.number, CALLED)
        if len(self._stages) == self._count:
            self.members = (self.me, *sorted(line.member for line in self._lines if line.member))
            self._due = time.monotonic() + self._limits.start
            self._send_all({"all": self.members})

    def _settle(self, why: str) -> None:
        """Begins to settle where to stop: at the coordinator by asking, elsewhere by answering."""
        self._settling, self._why = True, why
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
            self._settled(stop, self._why)

    def _settled(self, step: int, why: str) -> None:
        self._stop, self._settling = (step, why), False
        self._changed.notify_all()

    def _note_stage(self, index: int, stage: int) -> None:
        self._stages[index] = stage
        if len(self._stages) == self._count and min(self._stages.values()) == THROUGH:
            self._due = None

    def _add(self, connection: socket.socket) -> Line:
        line = Line(connection)
        self._selector.register(connection, selectors.EVENT_READ, line)
        return line

    def _send_all(self, message: Message) -> None:
        with self._changed:
            for line in self._lines:
                line.send(message)


def _listener(host: str, port: int) -> socket.socket:
    """Where the coordinator is to be reached; from this machine alone, where that is how it is called."""
    try:
        if host in LOOPBACK or not socket.has_dualstack_ipv6():
            return socket.create_server((host if host in LOOPBACK else "", port))
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    except OSError as error:
        raise Failed(
            f"port {port} cannot be listened to ({error.strerror}): choose another for --coordinator"
        ) from None


def _connected(host: str, port: int, seconds: float) -> socket.socket:
    """A connection to the coordinator, which may still be starting."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection((host, port), timeout=LONGEST_PAUSE)
        except OSError as error:
            if time.monotonic() > deadline:
                raise Failed(
                    f"process 0, the coordinator, did not answer at {host}:{port} within {seconds:g} s "
                    f"({error.strerror or error}): is it running, and is the port open?"
                ) from None
        time.sleep(0.2)
