"""The embedded model behind a server of its own, and what every client's test holds against it:
nothing was answered with 5xx, and nothing runs or waits when the client has gone."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import time
import unittest
import urllib.request

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("OPENAI_API_KEY", "unused")

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("PERCHERON_BINARY", str(ROOT / "build" / "percheron"))
NANO = ROOT / "models" / "nano"


class NanoServer:
    """`percheron serve` of the embedded model on a port of its own."""

    def __init__(self, *flags):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [BINARY, "serve", "--port", "0", *flags],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        ready = self.process.stdout.readline().split()
        if not ready:
            self.process.wait()
            raise RuntimeError("the server did not start: " + self.log_text())
        self.url = ready[1]
        self.host, port = self.url.removeprefix("http://").split(":")
        self.port = int(port)

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=300)
        self.process.stdout.close()
        self.log.close()

    def log_text(self):
        self.log.seek(0)
        return self.log.read()

    def get(self, path):
        with urllib.request.urlopen(self.url + path) as reply:
            return reply.read().decode()

    def status(self):
        return json.loads(self.get("/status"))

    def post_text(self, path, body):
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as reply:
            return reply.read().decode()

    def post(self, path, body):
        return json.loads(self.post_text(path, body))

    def metrics(self):
        """{name: value}, {name{label="..."}: value}; the served model's label left out."""
        values = {}
        for line in self.get("/metrics").splitlines():
            if line.startswith("#") or not line:
                continue
            name, value = line.rsplit(" ", 1)
            name = re.sub(r'model_name="[^"]*",?', "", name).replace("{}", "")
            values[name] = float(value)
        return values

    def settle(self):
        """Waits until nothing runs, waits or is to be computed again; the state then."""
        while True:
            status = self.status()
            if not status["running"] and not status["waiting"] and not status["reprefill_pending"]:
                return status
            time.sleep(0.05)


class Counts:
    """What the server counted between two moments."""

    def __init__(self, server):
        self.server = server
        self.before = server.metrics()

    def of(self, name):
        return self.now[name] - self.before.get(name, 0)

    def take(self):
        self.now = self.server.metrics()
        return self

    def replies(self, *kinds):
        return sum(
            self.of(f'vllm:request_success_total{{finished_reason="{kind}"}}') for kind in kinds
        )

    @property
    def server_faults(self):
        return sum(
            self.of(name)
            for name in self.now
            if re.match(r'percheron:http_replies_total\{status="5', name)
        )


class NanoCase(unittest.TestCase):
    flags = ("--kv-memory", "256MiB")

    @classmethod
    def setUpClass(cls):
        cls.server = NanoServer(*cls.flags)
        cls.addClassCleanup(cls.server.stop)
        folder = tempfile.TemporaryDirectory(prefix="percheron-clients-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)

    def setUp(self):
        self.counts = Counts(self.server)

    def tearDown(self):
        self.server.settle()
        counts = self.counts.take()
        self.assertEqual(counts.server_faults, 0, self.server.log_text()[-4000:])
        self.assertEqual(counts.replies("error"), 0, self.server.log_text()[-4000:])

    def run_tool(self, *command, **environment):
        """Runs a tool of this virtual environment in a home of its own; what it printed."""
        program = pathlib.Path(os.sys.executable).parent / command[0]
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        done = subprocess.run(
            [str(program), *map(str, command[1:])],
            cwd=self.folder,
            env={**os.environ, "HOME": str(home), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.assertEqual(done.returncode, 0, done.stdout[-6000:])
        return done.stdout


def say(text):
    """What a test found, for the line that run_clients prints."""
    print("== " + text, flush=True)
