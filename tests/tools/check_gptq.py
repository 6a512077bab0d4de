"""Errors of our rounding and of llmcompressor's on the matrices of quantize_matrices.cpp."""
import json
import pathlib
import sys

import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs
from llmcompressor.modifiers.gptq.gptq_quantize import quantize_weight


def read(path):
    data = pathlib.Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[8 + length + first:8 + length + last], np.float32).reshape(entry["shape"])
    return tensors


def best_scales(weight):
    """Scales of groups of 128 by squared error, as its "mse" observer searches them."""
    groups = weight.reshape(weight.shape[0], -1, 128)
    widest = np.abs(groups).max(2) / 7.5
    best, least = widest.copy(), np.full(widest.shape, np.inf)
    for shrink in np.arange(1.0, 0.2, -0.01):
        scale = widest * shrink
        rounded = np.clip(np.round(groups / scale[..., None]), -8, 7) * scale[..., None]
        error = ((groups - rounded) ** 2).sum(2)
        better = error < least
        best[better], least[better] = scale[better], error[better]
    return widest, best


def peer(weight, hessian, scale, order):
    arguments = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=128,
                                 actorder=order)
    scale = torch.from_numpy(scale.astype(np.float32)).bfloat16().float()[None]
    values, _, fallback = quantize_weight(
        torch.from_numpy(weight.copy())[None], torch.from_numpy(hessian.astype(np.float32))[None], scale,
        torch.zeros_like(scale), None, arguments, 128, 0.01)
    assert not bool(fallback.any())
    return values[0].numpy()


def main():
    tensors = read(sys.argv[1])
    worse = 0
    totals = np.zeros(6)
    print(f"{'matrix':>10} {'rows':>6} {'to nearest':>11} {'ours':>9}   llmcompressor: widest, mse, each without and "
          "with activation order")
    for name in sorted({name.rsplit(".", 1)[0] for name in tensors}):
        weight, rows = tensors[name + ".weight"], tensors[name + ".rows"].astype(np.float64)
        hessian = rows.T @ rows
        outputs = np.linalg.norm(rows @ weight.T.astype(np.float64))

        def error(values):
            return np.linalg.norm(rows @ (weight - values).T.astype(np.float64)) / outputs

        scaled = 2 * hessian / len(rows)
        widest, best = best_scales(weight)
        peers = [error(peer(weight, scaled, scale, order)) for scale in (widest, best) for order in (None, "weight")]
        ours = error(tensors[name + ".calibrated"])
        worse += ours > min(peers)
        totals += [error(tensors[name + ".nearest"]), ours, *peers]
        print(f"{name:>10} {len(rows):6} {error(tensors[name + '.nearest']):11.5f} {ours:9.5f}   " +
              " ".join(f"{value:.5f}" for value in peers))
    count = len({name.rsplit(".", 1)[0] for name in tensors})
    print(f"{'mean':>10} {'':6} {totals[0] / count:11.5f} {totals[1] / count:9.5f}   " +
          " ".join(f"{value / count:.5f}" for value in totals[2:]))
    print(f"ours is larger than the peer's best on {worse} of {count} matrices")
    if worse:
        sys.exit(1)
    print("passed")


main()
