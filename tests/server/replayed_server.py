"""A server over replayed replies, for tests of clients.  Needs PERCHERON_BINARY."""

import json
import os
import subprocess
import tempfile


class Server:
    def __init__(self, key, replies):
        self.folder = tempfile.TemporaryDirectory(prefix="percheron-client-")
        replay = os.path.join(self.folder.name, "replies.jsonl")
        with open(replay, "w", encoding="utf-8") as file:
            for reply in replies:
                file.write(json.dumps(reply) + "\n")
        keys = os.path.join(self.folder.name, "keys")
        with os.fdopen(os.open(keys, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(key + "\n")
        self.process = subprocess.Popen(
            [os.environ["PERCHERON_BINARY"], "serve", "--port", "0", "--replay", replay]
            + ["--api-key-file", keys, "--context", "4096"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.url = self.process.stdout.readline().split()[1]

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=300)
        self.process.stdout.close()
        self.folder.cleanup()
