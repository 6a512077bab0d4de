"""The examples of the documents, run as they stand there."""

import json
import pathlib
import re
import subprocess
import unittest

from replay_server import ReplayServer

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ADDRESS = "http://127.0.0.1:8000"


def blocks(document, language):
    text = document.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shape(value):
    """Names and types without the values: what a reader of an example relies on."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__


class Examples(unittest.TestCase):
    def serve(self, replies):
        server = ReplayServer(replies)
        self.addCleanup(server.stop)
        return server

    def test_request_of_the_readme_gives_the_reply_shown(self):
        [command] = [block for block in blocks(ROOT / "README.md", "sh") if "curl" in block]
        [shown] = map(json.loads, blocks(ROOT / "README.md", "json"))
        server = self.serve(None)
        self.assertIn(ADDRESS, command)
        run = subprocess.run(
            ["sh", "-c", command.replace(ADDRESS, server.url)],
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        reply = json.loads(run.stdout)
        # Depths follow the machine's speed: how much is drafted, if anything, differs.
        shown_draft = shown["usage"].pop("draft")
        draft = reply["usage"].pop("draft", shown_draft)
        self.assertEqual(draft.keys(), shown_draft.keys())
        self.assertLessEqual(draft["accepted"], draft["drafted"])
        self.assertEqual(reply["choices"], shown["choices"])
        self.assertEqual(reply["usage"], shown["usage"])
        self.assertEqual(shape(reply), shape(shown))

    def test_request_of_the_structured_output_page_gives_what_it_asks_for(self):
        [command] = blocks(ROOT / "docs" / "STRUCTURED_OUTPUT.md", "sh")
        server = self.serve(None)
        self.assertIn(ADDRESS, command)
        run = subprocess.run(
            ["sh", "-c", command.replace(ADDRESS, server.url)],
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        answer = json.loads(json.loads(run.stdout)["choices"][0]["message"]["content"])
        self.assertEqual(list(answer), ["answer"])
        self.assertTrue(10 <= answer["answer"] <= 99, answer)

    def test_replies_of_the_testing_page_are_served(self):
        replies = [json.loads(block) for block in blocks(ROOT / "docs" / "TESTING.md", "json")]
        self.assertEqual(len(replies), 1)
        server = self.serve(replies)
        body = {"messages": [{"role": "user", "content": replies[0]["match"]}]}
        run = subprocess.run(
            ["curl", "-s", server.url + "/v1/chat/completions", "-d", json.dumps(body)]
            + ["-H", "Content-Type: application/json"],
            capture_output=True,
            text=True,
            timeout=300,
        )
        reply = json.loads(run.stdout)
        self.assertEqual(reply["choices"][0]["message"]["content"], "Good day!")
        drafted, accepted = reply["usage"]["draft"]["drafted"], reply["usage"]["draft"]["accepted"]
        self.assertEqual(drafted * 2, accepted * 3)

    def test_command_of_the_fp8_caches_tells_their_type(self):
        text = (ROOT / "docs" / "CHECKPOINTS.md").read_text(encoding="utf-8")
        [flags] = re.findall(r"^    percheron serve (.*--kv-dtype.*)$", text, re.MULTILINE)
        server = ReplayServer(None, flags=flags.split())
        self.addCleanup(server.stop)
        self.assertIn("kv_dtype=fp8", server.ready)
        self.assertEqual(server.status()["kv_dtype"], "fp8")
        self.assertIn("latent pages, fp8", server.log())
        plain = self.serve(None)
        self.assertEqual(plain.status()["kv_dtype"], "bf16")
        self.assertRegex(" ".join(plain.ready), r"^ready \S+ model=nano context=\d+ kv_tokens=\d+ seconds=[\d.]+$")

    def test_what_the_documents_name_exists(self):
        """Links, and paths of the tree in backticks."""
        tree = re.compile(
            r"(?:src|tests|docs|apps|scripts|cmake|include|models|bench|deploy)/[\w./-]+|[\w-]+\.md"
        )
        named = 0
        for document in DOCUMENTS:
            text = document.read_text(encoding="utf-8")
            links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
            paths = [
                name
                for name in re.findall(r"`([^`\n]+)`", text)
                if tree.fullmatch(name) and "NAME" not in name
            ]
            for link in links:
                self.assertTrue((document.parent / link).exists(), f"{document.name} links {link}")
            for path in paths:
                exists = (ROOT / path).exists() or (document.parent / path).exists()
                self.assertTrue(exists, f"{document.name} names {path}")
            named += len(links) + len(paths)
        self.assertGreater(named, 20)

    def test_make_targets_of_the_documents_exist(self):
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
        named = set()
        for document in DOCUMENTS:
            text = document.read_text(encoding="utf-8")
            named |= set(re.findall(r"(?:^|`)make ([a-z][\w-]*)", text, re.MULTILINE))
        self.assertLessEqual({"serve", "test"}, named)
        self.assertLessEqual(named, targets)


if __name__ == "__main__":
    unittest.main()
