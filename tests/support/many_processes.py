"""What the tests of several processes share: a training of several real processes on this machine, over gloo."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.training_runs import command, environment


def free_address() -> str:
    """A port that is free, as is the one before it."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as server, contextlib.suppress(OSError):
            port = server.getsockname()[1]
            with socket.create_server(("127.0.0.1", port - 1)):
                return f"127.0.0.1:{port}"


class Job:
    """Several processes of one training."""

    def __init__(
        self,
        workdir: Path,
        processes: int,
        *options: str,
        devices: int = 1,
        present: int | None = None,
        program: str | None = None,
        numbers: Sequence[int] | None = None,
    ):
        """Of the processes, `present` really start: all, unless given. They run the command, or a program around it.

        `numbers` are what they are called, if it is not 0, 1, ...
        """
        self.logs = workdir.with_name(f"{workdir.name}.logs")
        self.logs.mkdir(exist_ok=True)
        flags = (f"--coordinator={free_address()}", f"--processes={processes}")
        self.processes = []
        for number in range(processes if present is None else present):
            called = number if numbers is None else numbers[number]
            started = [*command(workdir, *options), *flags, f"--process-id={called}"]
            if program is not None:
                started = [started[0], "-c", program, *started[3:]]
            with open(self.logs / str(number), "w") as log:
                self.processes.append(subprocess.Popen(started, env=environment(devices), stderr=log, stdout=log))

    def told(self, number: int) -> str:
        return (self.logs / str(number)).read_text()

    def failures(self, number: int) -> list[str]:
        return [line for line in self.told(number).splitlines() if line.startswith(("failed:", "error:"))]

    def wait_for(self, text: str) -> None:
        """Until the first process has said so."""
        deadline = time.monotonic() + 300
        while text not in self.told(0):
            assert self.processes[0].poll() is None and time.monotonic() < deadline, self.told(0)
            time.sleep(0.05)

    def statuses(self, seconds: float = 600) -> list[int]:
        """How each process ended, at the latest after so long."""
        deadline = time.monotonic() + seconds
        return [process.wait(max(deadline - time.monotonic(), 0.1)) for process in self.processes]

    def finish(self, status: int = 0) -> str:
        """All end so; what the first one said."""
        statuses = self.statuses()
        assert statuses == [status] * len(statuses), [self.told(number) for number in range(len(statuses))]
        return self.told(0)


@contextlib.contextmanager
def job(*arguments, **more) -> Iterator[Job]:
    """A job, of which nothing stays."""
    running = Job(*arguments, **more)
    try:
        yield running
    finally:
        for process in running.processes:
            process.kill()
            process.wait()


def train(workdir: Path, processes: int, *options: str, devices: int = 1) -> str:
    """Runs it to its end; what its first process said."""
    with job(workdir, processes, *options, devices=devices) as running:
        return running.finish()
