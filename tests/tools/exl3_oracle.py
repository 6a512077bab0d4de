"""EXL3 in NumPy: codebooks, trellis, rotation, and an encoder for tests; the format is in src/checkpoint/trellis.h.

Any bits are a path through the trellis, so tests need no search for good ones; `encode` makes a rough one, a
greedy walk, so that a model made of it still has the shape of its source.
"""
import numpy as np

CODEBOOKS = {"3inst": None, "mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}
BLOCK = 128


def codebook(name):
    """The value of each of the 65,536 states, binary16."""
    states = np.arange(65536, dtype=np.uint32)
    if name == "mul1":
        x = states * np.uint32(CODEBOOKS[name])
        total = x.view(np.uint8).reshape(-1, 4).sum(1, dtype=np.float64)
        factor, offset = np.array([0x1EEE, 0xC931], np.uint16).view(np.float16).astype(np.float64)
        return ((1024 + total) * factor + offset).astype(np.float16)
    x = states * np.uint32(CODEBOOKS[name]) if name == "mcg" else states * np.uint32(89226354) + np.uint32(64248484)
    halves = ((x & np.uint32(0x8FFF8FFF)) ^ np.uint32(0x3B603B60)).view(np.float16).reshape(-1, 2)
    return halves[:, 0] + halves[:, 1]


def code_bits(bits):
    """Bits of each of the 256 codes of a tile."""
    low = int(bits)
    return np.array([low, low if bits == low else low + 1] * 128)


def places():
    """Row and column of each code in its tile."""
    code = np.arange(256)
    lane, j = code // 8, code % 8
    return 2 * (lane % 4) + j % 2 + 8 * (j // 2 % 2), lane // 4 + 8 * (j // 4)


def ring_bits(trellis):
    """I16 [..., words] -> bits in the order of the ring: little-endian 32-bit words, highest bit first."""
    words = np.ascontiguousarray(trellis).view(np.uint32)
    return (words[..., None] >> np.arange(31, -1, -1, dtype=np.uint32) & 1).reshape(*trellis.shape[:-1], -1)


def states_of(trellis, bits):
    """States [..., 256] of stored tiles I16 [..., 16 bits]."""
    ring = ring_bits(trellis)
    ends = np.cumsum(code_bits(bits))
    states = np.zeros((*trellis.shape[:-1], 256), np.int64)
    for back in range(16):
        states |= ring[..., (ends - 1 - back) % ring.shape[-1]].astype(np.int64) << back
    return states


def tiles_from(symbols, bits):
    """The stored tiles I16 whose codes end in these bits."""
    widths = code_bits(bits)
    ring = np.zeros((*symbols.shape[:-1], int(widths.sum())), np.uint32)
    ends = np.cumsum(widths)
    for code in range(256):
        for back in range(widths[code]):
            ring[..., ends[code] - 1 - back] = symbols[..., code] >> back & 1
    words = (ring.reshape(*symbols.shape[:-1], -1, 32) << np.arange(31, -1, -1, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    return words.view(np.int16).reshape(*symbols.shape[:-1], -1)


def codes_of(trellis, bits, name):
    """Q [k', n'], binary16."""
    values = codebook(name)[states_of(trellis, bits)]
    tiles = np.zeros((*values.shape[:2], 16, 16), np.float16)
    rows, columns = places()
    tiles[..., rows, columns] = values
    return tiles.transpose(0, 2, 1, 3).reshape(16 * values.shape[0], 16 * values.shape[1])


def hadamard():
    matrix = np.ones((1, 1))
    while len(matrix) < BLOCK:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def rotated(values):
    """H x H of every block, in double; exact for binary16."""
    k, n = values.shape
    blocks = values.astype(np.float64).reshape(k // BLOCK, BLOCK, n // BLOCK, BLOCK).transpose(0, 2, 1, 3)
    return (hadamard() @ blocks @ hadamard()).transpose(0, 2, 1, 3).reshape(k, n)


def signs(words):
    """I16 -> +1 and -1, lowest bit first, set for -1."""
    return 1.0 - 2.0 * (words.view(np.uint16)[:, None] >> np.arange(16) & 1).reshape(-1)


def dequantise(trellis, inputs, outputs, bits, name, shape):
    """W [n, k] in F32."""
    scales = inputs.astype(np.float64)[:, None] * outputs.astype(np.float64)
    values = (scales * (rotated(codes_of(trellis, bits, name)) / BLOCK)).astype(np.float32)
    return np.ascontiguousarray(values.T[:shape[0], :shape[1]])


def encode(weight, bits, name, random):
    """Stored parts of a matrix F32 [n, k]: trellis, input and output scales."""
    n, k = weight.shape
    padded = np.zeros((-(-k // BLOCK) * BLOCK, -(-n // BLOCK) * BLOCK))
    padded[:k, :n] = weight.T
    inputs = np.where(random.integers(0, 2, padded.shape[0]), 1.0, -1.0).astype(np.float16)
    outputs = np.where(random.integers(0, 2, padded.shape[1]), 1.0, -1.0)
    wanted = rotated(inputs.astype(np.float64)[:, None] * padded * outputs) / BLOCK
    table = codebook(name).astype(np.float64)
    scale = max(float(np.sqrt(np.mean(wanted ** 2)) / np.sqrt(np.mean(table ** 2))), 1e-6)
    outputs = (outputs * scale).astype(np.float16)
    tiles = (wanted / scale).reshape(padded.shape[0] // 16, 16, padded.shape[1] // 16, 16).transpose(0, 2, 1, 3)
    rows, columns = places()
    wanted = tiles[..., rows, columns].reshape(-1, 256)
    widths = code_bits(bits)
    symbols = np.zeros((len(wanted), 256), np.int64)
    state = np.zeros(len(wanted), np.int64)
    for code in range(256):
        choices = (state[:, None] << widths[code] & 65535) | np.arange(1 << widths[code])
        best = np.abs(table[choices] - wanted[:, code:code + 1]).argmin(1)
        state = choices[np.arange(len(choices)), best]
        symbols[:, code] = best
    trellis = tiles_from(symbols.reshape(*tiles.shape[:2], 256), bits)
    return trellis, inputs, outputs
