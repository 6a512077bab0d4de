"""A real server over a real model, for tests that talk to it as anybody would."""
import json
import subprocess
import urllib.error
import urllib.request


class ServedModel:
    """`arguments`: those of `percheron serve` beside the port; `popen`: of the process."""

    def __init__(self, binary, *arguments, **popen):
        self.process = subprocess.Popen(
            [binary, "serve", *arguments, "--port", "0"],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, **popen})
        ready = self.process.stdout.readline().split()
        assert ready[:1] == ["ready"], ready
        self.url = ready[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def text(self, path):
        with urllib.request.urlopen(self.url + path) as reply:
            return reply.read().decode()

    def get(self, path):
        return json.loads(self.text(path))

    def post(self, path, body):
        """(status, reply): JSON, or the text of a stream."""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as reply:
                text = reply.read().decode()
                return reply.status, text if body.get("stream") else json.loads(text)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
