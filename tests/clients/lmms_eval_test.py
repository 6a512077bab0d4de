"""lmms-eval over a task of two pictures a question from local files: the answers are those that
transformers gave for the same model."""

import json
import pathlib
import unittest

from served_nano import NanoCase, say

PICTURES = pathlib.Path(__file__).resolve().parents[1] / "data" / "nano_vision_golden"
QUESTIONS = [
    ("Look at the second image. Which number is shown?", "84"),
    ("Look at the first image. What color is the shape?", "white"),
]
TASK = """
task: two_pictures
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: generate_until
doc_to_visual: !function pictures.visual
doc_to_text: !function pictures.text
doc_to_target: answer
generation_kwargs:
  max_new_tokens: 512
  temperature: 0
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""
FUNCTIONS = """
from PIL import Image


def visual(doc):
    return [Image.open(path).convert("RGB") for path in doc["pictures"]]


def text(doc, lmms_eval_specific_kwargs=None):
    return doc["question"]
"""


class LmmsEval(NanoCase):
    def test_two_pictures(self):
        tasks = self.folder / "tasks"
        tasks.mkdir()
        data = tasks / "questions.jsonl"
        pictures = [str(PICTURES / f"{name}.png") for name in ("image_a", "image_b")]
        data.write_text(
            "".join(
                json.dumps({"question": question, "answer": answer, "pictures": pictures}) + "\n"
                for question, answer in QUESTIONS
            )
        )
        (tasks / "two_pictures.yaml").write_text(TASK.format(data=data))
        (tasks / "pictures.py").write_text(FUNCTIONS)
        printed = self.run_tool(
            "python", "-m", "lmms_eval", "--model", "openai",
            "--model_args", f"model=nano,base_url={self.server.url}/v1,api_key=unused,max_retries=1",
            "--tasks", "two_pictures", "--include_path", tasks, "--batch_size", 1, "--log_samples",
            "--output_path", self.folder / "results",
        )  # fmt: skip
        samples = list((self.folder / "results").rglob("*samples_two_pictures.jsonl"))
        self.assertEqual(len(samples), 1, printed[-6000:])
        lines = [json.loads(line) for line in samples[0].read_text().splitlines()]
        answers = {line["doc_id"]: line["filtered_resps"] for line in lines}
        self.assertEqual([answers[i] for i in range(len(QUESTIONS))], [a for _, a in QUESTIONS])
        counts = self.counts.take()
        self.assertEqual(counts.replies("stop"), len(QUESTIONS))
        self.assertEqual(counts.of("percheron:images_encoded_total"), 2)
        self.assertEqual(counts.of("percheron:images_reused_total"), 2 * len(QUESTIONS) - 2)
        say(f"lmms-eval: {len(QUESTIONS)} questions over two pictures each, answers as transformers'")


if __name__ == "__main__":
    unittest.main()
