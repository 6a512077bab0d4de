"""A checkpoint against what another reader makes of it: values bit for bit, and logits of the dequantised twin."""
import json
import pathlib
import random
import subprocess

import numpy as np
from stored_formats import floats, read, write_twin


def same_bits(ours, theirs, what):
    """All bits, but for the sign of zeros: modelopt gives the code of -0 the value 0."""
    assert ours.dtype == np.float32 and ours.shape == theirs.shape, what
    zero = np.float32(0)
    assert np.array_equal((ours + zero).view(np.int32), (theirs + zero).view(np.int32)), what


def write_small_model(program, folder, vision="0"):
    """A model of random values whose matrices suit every format."""
    subprocess.run([program, "synth", folder, "--layers", "5", "--dense-layers", "1", "--vocabulary", "2048",
                    "--hidden", "256", "--intermediate", "512", "--experts", "8", "--experts-per-token", "2",
                    "--expert-intermediate", "128", "--heads", "4", "--query-rank", "128", "--latent",
                    "128", "--head-dim", "64", "--value-dim", "64", "--index-heads", "4", "--index-dim",
                    "64", "--index-topk", "64", "--kda-heads", "4", "--kda-dim", "64", "--vision", vision,
                    "--vision-hidden", "128",
                    "--vision-heads", "2", "--vision-intermediate", "256", "--vision-projection", "256", "--seed", "3"], check=True, stdout=subprocess.DEVNULL)


class Twins:
    def __init__(self, program, source, root):
        self.program, self.root = program, root
        vocabulary = json.loads((source / "config.json").read_text())
        vocabulary = vocabulary.get("text_config", vocabulary)["vocab_size"]
        random.seed(1)
        self.ids = root / "ids.json"
        self.ids.write_text(json.dumps(
            [[random.randrange(min(vocabulary, 2000)) for _ in range(90)] for _ in range(3)]))

    def compare(self, folder, rest, weights):
        """`folder` computes from `weights` to the bit, and scores as they and `rest` in F32 do."""
        self.compare_values(folder, weights)
        twin = self.root / (folder.name + "-twin")
        write_twin(folder, twin, rest, weights)
        ours, twins = self.scores(folder), self.scores(twin)
        difference = np.max(np.abs(ours - twins)) / np.sqrt(np.mean(twins ** 2))
        print(f"  log-probabilities within {difference:.1e} of RMS of the dequantised twin's")
        assert difference < 1e-3

    def compare_values(self, folder, weights):
        out = self.root / (folder.name + "-read")
        out.mkdir()
        subprocess.run([pathlib.Path(self.program).parent / "tests" / "dequantised_weights", folder,
                        out / "model.safetensors"], check=True)
        engine = read(out)
        for stem, values in weights.items():
            same_bits(values, floats(engine[stem + ".weight"]), stem)
        print(f"  the engine computes from the same bits, {len(weights)} weights")

    def scores(self, folder):
        out = subprocess.run([self.program, "score", folder, "--ids", self.ids, "--top", "20", "--json",
                              "--arithmetic", "fp32", "--device", "cpu"], check=True, capture_output=True,
                             text=True).stdout
        rows = []
        for sequence in json.loads(out)["sequences"]:
            rows += [value for value in sequence["logprobs"] if value is not None]
            rows += [value for top in sequence["top"] for _, value in top]
        return np.array(rows)
