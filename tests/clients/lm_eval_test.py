"""lm-eval against the embedded model: what it reads is what the model gave.

- local-completions: a log-likelihood task from a local file, checked against `percheron score`,
  which shares neither server nor scheduler with it;
- local-chat-completions: the same questions, generated."""

import json
import subprocess
import unittest

from served_nano import BINARY, NanoCase, say

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


class LmEval(NanoCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        data = cls.folder / "questions.jsonl"
        data.write_text("".join(json.dumps(item) + "\n" for item in QUESTIONS), encoding="utf-8")
        for name, task in (("likelihood", LIKELIHOOD_TASK), ("generation", GENERATION_TASK)):
            (cls.folder / f"{name}.yaml").write_text(task.format(data=data), encoding="utf-8")

    def evaluate(self, model, path, task, **options):
        import lm_eval
        from lm_eval.tasks import TaskManager

        arguments = f"model=nano,base_url={self.server.url}{path},num_concurrent=1,max_retries=1"
        arguments += ",tokenizer_backend=remote,tokenized_requests=True" if task.endswith(
            "likelihood"
        ) else ",tokenizer_backend=None,tokenized_requests=False"
        return lm_eval.simple_evaluate(
            model=model,
            model_args=arguments,
            tasks=[task],
            task_manager=TaskManager(include_path=str(self.folder), include_defaults=False),
            log_samples=True,
            bootstrap_iters=0,
            **options,
        )

    def likelihoods(self, texts):
        """(sum over the continuation, whether it is greedy) by `percheron score`."""
        lists = []
        starts = []
        for question, continuation in texts:
            ids = self.server.post("/tokenize", {"prompt": question + continuation})["tokens"]
            starts.append(self.server.post("/tokenize", {"prompt": question})["count"])
            lists.append(ids)
        path = self.folder / "ids.json"
        path.write_text(json.dumps(lists), encoding="utf-8")
        scored = json.loads(
            subprocess.run(
                [BINARY, "score", "--ids", str(path), "--json", "--top", "1"],
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
        say(f"lm-eval local-completions: {len(samples)} questions, log-likelihoods as percheron score")

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
        say(f"lm-eval local-chat-completions: {right} of {len(QUESTIONS)} right (limit one wrong)")


if __name__ == "__main__":
    unittest.main()
