"""Safetensors folders and the values of their weight formats, by the formulas in NumPy."""
import json
import pathlib

import numpy as np

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


def write_file(path, tensors):
    """A safetensors file of name -> (dtype, shape, bytes)."""
    width = {"F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "I64": 8, "F8_E4M3": 1, "U8": 1}
    header, blobs, offset = {}, [], 0
    for name, (dtype, shape, data) in sorted(tensors.items(), key=lambda item: -width[item[1][0]]):
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        blobs.append(data)
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


PARTS = (".weight", ".weight_packed", ".weight_scale", ".weight_shape", ".weight_scale_2", ".weight_scale_inv",
         ".weight_global_scale", ".input_scale", ".input_global_scale")


def without(tensors, stems):
    """The tensors that are no part of these weights."""
    parts = {stem + suffix for stem in stems for suffix in PARTS}
    return {name: tensor for name, tensor in tensors.items() if name not in parts}


def write_twin(source, twin, tensors, weights):
    """`source`'s folder with these weights as they are computed from, in F32."""
    twin.mkdir()
    config = json.loads((source / "config.json").read_text())
    config.pop("quantization_config", None)
    (twin / "config.json").write_text(json.dumps(config))
    values = {stem + ".weight": ("F32", of.shape, of.astype(np.float32).tobytes()) for stem, of in weights.items()}
    write_file(twin / "model.safetensors", {**without(tensors, weights), **values})
