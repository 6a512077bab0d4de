"""Many streamed replies at once on one thread: what each brought, and when."""

import asyncio
import json
import pathlib
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "clients"))

from served_nano import BINARY, Counts, NanoServer  # noqa: E402, F401


def say(text):
    print(text, flush=True)


class Broken(Exception):
    """A reply that is not what was asked for."""


class Stream:
    """One streamed completion or chat; `cancel_after` events the client is gone (0: at once)."""

    def __init__(self, server, path, body):
        self.server, self.path = server, path
        self.body = {"model": "nano", "stream": True, **body}
        self.body["stream_options"] = {"include_usage": True}
        self.times = []  # of events that brought text
        self.ids = []
        self.usage = None
        self.finish = None
        self.cancelled = False

    async def run(self, cancel_after=None, cancel_in=None):
        """Reads to the end, or leaves after so many events or seconds, whichever comes first."""
        reader, writer = await asyncio.open_connection(self.server.host, self.server.port)
        try:
            body = json.dumps(self.body).encode()
            writer.write(
                f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            self.sent = time.monotonic()
            await writer.drain()
            if cancel_after == 0:
                self.cancelled = True
                return self
            try:
                await asyncio.wait_for(self.read(reader, cancel_after), cancel_in)
            except asyncio.TimeoutError:
                self.cancelled = True
            return self
        finally:
            writer.close()

    async def read(self, reader, cancel_after):
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise Broken((head + await reader.read()).decode(errors="replace"))
        done = False
        while True:
            size = int(await reader.readline(), 16)
            chunk = await reader.readexactly(size + 2)
            if size == 0:
                break
            now = time.monotonic()
            for event in chunk[:-2].decode().split("\n\n")[:-1]:
                data = event.removeprefix("data: ")
                if data == "[DONE]":
                    done = True
                    continue
                self.take(json.loads(data), now)
            if cancel_after is not None and len(self.times) >= cancel_after:
                self.cancelled = True
                return
        if not done or self.usage is None or self.finish is None:
            raise Broken(f"a stream ended without its end: {self.finish} {self.usage}")

    def take(self, event, now):
        if "error" in event:
            raise Broken(json.dumps(event))
        if event.get("usage"):
            self.usage = event["usage"]
        for choice in event["choices"]:
            self.ids += choice.get("token_ids") or []
            if choice.get("finish_reason"):
                self.finish = choice["finish_reason"]
            delta = choice.get("delta", choice)
            if any(delta.get(key) for key in ("content", "reasoning", "text", "tool_calls")):
                self.times.append(now)

    @property
    def first_after(self):
        return self.times[0] - self.sent

    def longest_silence(self, begin, end):
        """Between events of this stream, for gaps that touch the time from `begin` to `end`."""
        gaps = [
            after - before
            for before, after in zip(self.times, self.times[1:])
            if after >= begin and before <= end
        ]
        return max(gaps, default=0.0)

    def rate(self, begin, end):
        return sum(begin <= moment < end for moment in self.times) / (end - begin)


def random_ids(draw, count):
    """A prompt of so many ids of plain text, nothing of it cached."""
    return [draw.randrange(300, 4000) for _ in range(count)]


def with_ranks(process):
    """A server's process and the ranks that it has started."""
    tasks = pathlib.Path(f"/proc/{process}/task").iterdir()
    return [process, *(int(child) for task in tasks for child in (task / "children").read_text().split())]


def resident_bytes(process):
    """Of a server and its ranks."""
    return sum(resident_alone(one) for one in with_ranks(process))


def resident_alone(process):
    with open(f"/proc/{process}/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("the process has no VmRSS")


def open_files(process):
    return sum(len(list(pathlib.Path(f"/proc/{one}/fd").iterdir())) for one in with_ranks(process))


class Limits:
    """Figures beside their limits; `exit_code` is 1 when one was passed."""

    def __init__(self):
        self.exit_code = 0

    def hold(self, what, figure, limit, at_most=True, unit=""):
        good = figure <= limit if at_most else figure >= limit
        word = "at most" if at_most else "at least"
        say(f"{'ok  ' if good else 'FAIL'} {what}: {figure:.6g}{unit} (limit {word} {limit:.6g})")
        if not good:
            self.exit_code = 1
