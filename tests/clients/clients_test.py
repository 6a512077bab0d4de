"""Harnesses against the embedded model: what they read is what the model gave.

- a reader of streams like that of `vllm bench serve`, which strips every network read;
- lm-eval's local-completions: a log-likelihood task from a local file, checked against
  `percheron score`, which shares neither server nor scheduler with it;
- lm-eval's local-chat-completions: the same questions, generated.

Needs the package `lm-eval[api]` and PERCHERON_BINARY."""

import http.client
import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import urllib.request

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("OPENAI_API_KEY", "unused")

QUESTIONS = [
    {"question": f"What is {a} + {b}?", "choices": [f" {a + b}", f" {a + b + 7}", " blue"], "answer": 0}
    for a, b in ((2, 3), (10, 20), (41, 8), (100, 250), (7, 7))
]
LIKELIHOOD_TASK = """
task: percheron_likelihood
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
"""
GENERATION_TASK = """
task: percheron_generation
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs:
  until: []
  max_gen_toks: 300
  temperature: 0
metric_list:
  - metric: exact_match
"""


class StreamReader:
    """Takes network reads as they come, each stripped; an event counts when its JSON is whole."""

    def __init__(self):
        self.buffer = ""
        self.messages = []

    def add(self, read):
        self.buffer += read.strip().decode()
        while "\n\n" in self.buffer:
            message, self.buffer = self.buffer.split("\n\n", 1)
            self.take(message.strip())
        if self.buffer.startswith("data: ") and self.take(self.buffer.strip()):
            self.buffer = ""

    def take(self, message):
        content = message.removeprefix("data: ").strip()
        if content != "[DONE]":
            try:
                content = json.loads(content)
            except json.JSONDecodeError:
                return False
        self.messages.append(content)
        return True


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.binary = os.environ["PERCHERON_BINARY"]
        cls.process = subprocess.Popen(
            [cls.binary, "serve", "--port", "0", "--kv-memory", "128MiB"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        cls.url = cls.process.stdout.readline().split()[1]
        cls.folder = tempfile.TemporaryDirectory(prefix="percheron-clients-")
        cls.addClassCleanup(cls.stop)
        data = pathlib.Path(cls.folder.name, "questions.jsonl")
        data.write_text("".join(json.dumps(item) + "\n" for item in QUESTIONS), encoding="utf-8")
        for name, task in (("likelihood", LIKELIHOOD_TASK), ("generation", GENERATION_TASK)):
            path = pathlib.Path(cls.folder.name, name + ".yaml")
            path.write_text(task.format(data=data), encoding="utf-8")

    @classmethod
    def stop(cls):
        cls.process.terminate()
        cls.process.wait(timeout=300)
        cls.process.stdout.close()
        cls.folder.cleanup()

    def post(self, path, body):
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    def read_stream(self, path, body):
        host = self.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        self.assertEqual(reply.status, 200)
        reader = StreamReader()
        while read := reply.read1(4096):
            reader.add(read)
        connection.close()
        self.assertEqual(reader.buffer, "")
        self.assertEqual(reader.messages[-1], "[DONE]")
        return reader.messages[:-1]

    def test_stripped_reads_lose_nothing(self):
        options = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        for path, body in (
            (
                "/v1/chat/completions",
                {
                    "messages": [
                        {"role": "user", "content": [{"type": "text", "text": "Tell me more."}]}
                    ],
                    "max_completion_tokens": 40,
                },
            ),
            (
                "/v1/completions",
                {"prompt": "One two", "repetition_penalty": 1.0, "max_tokens": 40, "logprobs": None},
            ),
        ):
            messages = self.read_stream(path, {"model": "nano", **body, **options})
            with_choices = [message for message in messages if message["choices"]]
            self.assertTrue(with_choices)
            self.assertEqual(messages[-1]["choices"], [])
            self.assertEqual(messages[-1]["usage"]["completion_tokens"], 40)
            self.assertGreater(messages[-1]["usage"]["prompt_tokens"], 1)

    def evaluate(self, model, path, task, **options):
        import lm_eval
        from lm_eval.tasks import TaskManager

        arguments = f"model=nano,base_url={self.url}{path},num_concurrent=1,max_retries=1"
        arguments += ",tokenizer_backend=remote,tokenized_requests=True" if task.endswith(
            "likelihood"
        ) else ",tokenizer_backend=None,tokenized_requests=False"
        return lm_eval.simple_evaluate(
            model=model,
            model_args=arguments,
            tasks=[task],
            task_manager=TaskManager(include_path=self.folder.name, include_defaults=False),
            log_samples=True,
            bootstrap_iters=0,
            **options,
        )

    def likelihoods(self, texts):
        """(sum over the continuation, whether it is greedy) by `percheron score`."""
        lists = []
        starts = []
        for question, continuation in texts:
            ids = self.post("/tokenize", {"prompt": question + continuation})["tokens"]
            starts.append(self.post("/tokenize", {"prompt": question})["count"])
            lists.append(ids)
        path = pathlib.Path(self.folder.name, "ids.json")
        path.write_text(json.dumps(lists), encoding="utf-8")
        scored = json.loads(
            subprocess.run(
                [self.binary, "score", "--ids", str(path), "--json", "--top", "1"],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )["sequences"]
        return [
            sum(sequence["logprobs"][start:]) for sequence, start in zip(scored, starts)
        ]

    def test_log_likelihoods(self):
        outcome = self.evaluate("local-completions", "/v1/completions", "percheron_likelihood")
        samples = outcome["samples"]["percheron_likelihood"]
        self.assertEqual(len(samples), len(QUESTIONS))
        for sample in samples:
            item = sample["doc"]
            expected = self.likelihoods(
                [(item["question"], choice) for choice in item["choices"]]
            )
            for got, wanted in zip(sample["filtered_resps"], expected):
                self.assertAlmostEqual(float(got[0]), wanted, places=3)

    def test_generation(self):
        outcome = self.evaluate(
            "local-chat-completions",
            "/v1/chat/completions",
            "percheron_generation",
            apply_chat_template=True,
        )
        samples = outcome["samples"]["percheron_generation"]
        self.assertEqual(len(samples), len(QUESTIONS))
        answers = [sample["filtered_resps"][0] for sample in samples]
        right = sum(
            item["choices"][0].strip() in answer for item, answer in zip(QUESTIONS, answers)
        )
        self.assertGreaterEqual(right, len(QUESTIONS) - 1, answers)


if __name__ == "__main__":
    unittest.main()
