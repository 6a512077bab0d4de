"""A real server over a real model, for tests that talk to it as anybody would."""
import json
import subprocess
import urllib.error
import urllib.request


class ServedModel:
    """`arguments`: those of `percheron serve` beside the port."""

    def __init__(self, binary, *arguments):
        self.process = subprocess.Popen(
            [binary, "serve", *arguments, "--port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        ready = self.process.stdout.readline().split()
        assert ready[:1] == ["ready"], ready
        self.url = ready[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

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
