"""build/percheron serve on a free port, over replies that the test writes or with the model itself."""

import json
import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

HANG_GUARD_S = 600


class ReplayServer:
    def __init__(self, replies, *, key=None, port=0, flags=()):
        """`replies` None: the embedded model answers."""
        self._key = None
        self._process = None
        self._folder = tempfile.TemporaryDirectory(prefix="percheron-replay-")
        command = [os.environ["PERCHERON_BINARY"], "serve", "--port", str(port), *flags]
        if replies is not None:
            replay = os.path.join(self._folder.name, "replies.jsonl")
            with open(replay, "w", encoding="utf-8") as file:
                for reply in replies:
                    file.write(json.dumps(reply) + "\n")
            command += ["--replay", replay]
        else:
            command += ["--kv-memory", "64MiB"]
        self._keys = os.path.join(self._folder.name, "keys")
        if key:
            self.change_key(key)
            command += ["--api-key-file", self._keys]
        self._log = open(os.path.join(self._folder.name, "log"), "w+", encoding="utf-8")
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        ready = self._process.stdout.readline().split()
        if len(ready) < 2 or ready[0] != "ready":
            raise RuntimeError(f"percheron serve did not start: {self.log()}")
        self.url, self.ready = ready[1], ready

    def change_key(self, key):
        """Returns when the server, if it runs, has taken up the new file."""
        self._key = key
        descriptor = os.open(self._keys + ".new", os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{key}\n")
        os.replace(self._keys + ".new", self._keys)
        while self._process is not None:
            try:
                return self.status()
            except urllib.error.HTTPError as error:
                error.close()  # 401: not taken up yet
                time.sleep(0.02)

    def log(self):
        with open(self._log.name, encoding="utf-8") as file:
            return file.read()

    def get(self, path):
        """The body of a reply with status 200; other statuses are HTTPError."""
        request = urllib.request.Request(self.url + path)
        if self._key:
            request.add_header("Authorization", f"Bearer {self._key}")
        with urllib.request.urlopen(request, timeout=300) as reply:
            return reply.read().decode()

    def status(self):
        return json.loads(self.get("/status"))

    def wait_idle(self):
        """Returns when nothing runs or waits; a server that works on for nobody fails the test."""
        guard = time.monotonic() + HANG_GUARD_S
        while (status := self.status())["running"] + status["waiting"] > 0:
            if time.monotonic() > guard:
                raise AssertionError(f"the server works on: {status}")
            time.sleep(0.01)

    @property
    def process_id(self):
        return self._process.pid

    @property
    def port(self):
        return int(self.url.rsplit(":", 1)[1])

    def stop(self):
        if self._process.stdout.closed:
            return  # before, by a test
        self._process.terminate()
        try:
            self._process.wait(timeout=300)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process.stdout.close()
            self._log.close()
            self._folder.cleanup()
