"""Written checkpoints against other readers of their formats; see scripts/check-formats."""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def read(folder):
    """Every tensor of a folder, as (dtype, shape, bytes)."""
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:8 + length]).items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                tensors[name] = (entry["dtype"], entry["shape"], data[8 + length + first:8 + length + last])
    return tensors


def f8_e4m3(codes):
    codes = codes.astype(np.int32)
    exponent, fraction = codes >> 3 & 15, codes & 7
    value = np.where(exponent > 0, np.ldexp(8 + fraction, exponent - 10), np.ldexp(fraction, -9))
    assert not np.any((codes & 127) == 127), "NaN"
    return np.where(codes & 128, -value, value).astype(np.float32)


def floats(tensor):
    dtype, shape, data = tensor
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if dtype == "F32":
        return np.frombuffer(data, np.float32).reshape(shape)
    assert dtype == "F8_E4M3", dtype
    return f8_e4m3(np.frombuffer(data, np.uint8)).reshape(shape)


def w4a16(tensors, stem):
    words = np.frombuffer(tensors[stem + ".weight_packed"][2], np.uint32)
    n, k = np.frombuffer(tensors[stem + ".weight_shape"][2], np.int64)
    codes = (words[:, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).reshape(n, k).astype(np.float32) - 8
    return codes * np.repeat(floats(tensors[stem + ".weight_scale"]), 128, 1)


def nvfp4(tensors, stem):
    _, (n, half), data = tensors[stem + ".weight"]
    pairs = np.frombuffer(data, np.uint8).reshape(n, half)
    codes = np.stack([pairs & 15, pairs >> 4], 2).reshape(n, 2 * half)
    values = np.where(codes & 8, -E2M1[codes & 7], E2M1[codes & 7])
    scales = floats(tensors[stem + ".weight_scale"]) * floats(tensors[stem + ".weight_scale_2"])
    return values * np.repeat(scales, 16, 1)


def fp8(tensors, stem):
    values = floats(tensors[stem + ".weight"])
    scales = floats(tensors[stem + ".weight_scale_inv"])
    n, k = values.shape
    return values * np.repeat(np.repeat(scales, 128, 0)[:n], 128, 1)[:, :k]


def quantised(tensors):
    """stem -> values, of every quantised weight."""
    weights = {}
    for name in tensors:
        stem = name.rsplit(".", 1)[0]
        if name.endswith(".weight_packed"):
            weights[stem] = w4a16(tensors, stem)
        elif name.endswith(".weight_scale_2"):
            weights[stem] = nvfp4(tensors, stem)
        elif name.endswith(".weight_scale_inv"):
            weights[stem] = fp8(tensors, stem)
    return weights


def check_compressed_tensors(folder, tensors, weights):
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    parsed = QuantizationConfig.model_validate(config)
    (group,) = parsed.config_groups.values()
    assert isinstance(group, QuantizationScheme) and group.weights.group_size == 128
    types = {"I32": torch.int32, "I64": torch.int64}
    for stem, expected in weights.items():
        state = {}
        for part in ("weight_packed", "weight_shape"):
            dtype, shape, data = tensors[f"{stem}.{part}"]
            state[part] = torch.frombuffer(bytearray(data), dtype=types[dtype]).reshape(shape)
        state["weight_scale"] = torch.from_numpy(floats(tensors[stem + ".weight_scale"]).copy())
        state["weight_shape"] = torch.Size(state["weight_shape"].tolist())
        values = PackedQuantizationCompressor.decompress(state, group)["weight"].numpy()
        assert values.dtype == np.float32 and np.array_equal(values.view(np.int32), expected.view(np.int32)), stem
    print(f"  compressed-tensors reads {len(weights)} weights with the same values")


def write_twin(source, twin, tensors, weights):
    twin.mkdir()
    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    (twin / "config.json").write_text(json.dumps(config))
    header, blobs, offset = {}, [], 0
    parts = {stem + suffix for stem in weights for suffix in
             (".weight", ".weight_packed", ".weight_scale", ".weight_shape", ".weight_scale_2", ".weight_scale_inv")}
    kept = {name: tensor for name, tensor in tensors.items() if name not in parts}
    for stem, values in weights.items():
        kept[stem + ".weight"] = ("F32", list(values.shape), values.astype(np.float32).tobytes())
    width = {"F32": 4, "BF16": 2, "I64": 8, "F8_E4M3": 1}
    for name, (dtype, shape, data) in sorted(kept.items(), key=lambda item: -width[item[1][0]]):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        blobs.append(data)
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (twin / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def scores(program, folder, ids):
    out = subprocess.run([program, "score", folder, "--ids", ids, "--top", "20", "--json", "--arithmetic", "fp32",
                          "--device", "cpu"], check=True, capture_output=True, text=True).stdout
    rows = []
    for sequence in json.loads(out)["sequences"]:
        rows += [value for value in sequence["logprobs"] if value is not None]
        rows += [value for top in sequence["top"] for _, value in top]
    return np.array(rows)


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        source = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else root / "source"
        if len(sys.argv) <= 2:
            subprocess.run([program, "synth", source, "--layers", "5", "--dense-layers", "1", "--vocabulary", "2048",
                            "--hidden", "256", "--intermediate", "512", "--experts", "8", "--experts-per-token", "2",
                            "--expert-intermediate", "128", "--heads", "4", "--query-rank", "128", "--latent",
                            "128", "--head-dim", "64", "--value-dim", "64", "--index-heads", "4", "--index-dim",
                            "64", "--index-topk", "64", "--kda-heads", "4", "--kda-dim", "64", "--vision", "0",
                            "--seed", "3"], check=True, stdout=subprocess.DEVNULL)
        vocabulary = json.loads((source / "config.json").read_text())
        vocabulary = vocabulary.get("text_config", vocabulary)["vocab_size"]
        random.seed(1)
        ids = root / "ids.json"
        ids.write_text(json.dumps([[random.randrange(min(vocabulary, 2000)) for _ in range(90)] for _ in range(3)]))
        for options in (["w4a16"], ["nvfp4"], ["fp8"], ["w4a16", "--rest", "fp8"], ["nvfp4", "--rest", "fp8"]):
            print(*options)
            label = options[0] + str(len(options))
            folder = root / label
            subprocess.run([program, "quantize", source, folder, "--format", *options], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            tensors = read(folder)
            weights = quantised(tensors)
            assert weights and all(np.all(np.isfinite(values)) for values in weights.values())
            if options == ["w4a16"]:
                check_compressed_tensors(folder, tensors, weights)
            write_twin(folder, root / (label + "-twin"), tensors, weights)
            ours, twins = scores(program, folder, ids), scores(program, root / (label + "-twin"), ids)
            difference = np.max(np.abs(ours - twins)) / np.sqrt(np.mean(twins ** 2))
            print(f"  {len(weights)} weights, log-probabilities within {difference:.1e} of RMS of the dequantised twin's")
            assert difference < 1e-3
    print("passed")


main()
