"""Named tensors into one .safetensors file, in a single pass over the memory.

The library's own writer is not used for three reasons: it refuses tensors that are views of one block, which is what an
arena and a flat policy are; it needs a second pass for the hash; and it reads memory that workers may be changing, so a
hash taken from memory would differ from the file. Here each chunk is copied once, and the copy is both hashed and
written. Reading is left to the library, which is also the oracle of the tests.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from passel.run.files import write_all

CHUNK = 4 << 20  # bytes copied at a time: large enough for the disk, small beside any memory

DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


@dataclass(frozen=True)
class Written:
    """What is known of a file that was just written."""

    size: int
    sha256: str


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> Written:
    """Write `tensors` to the new file `path`, fsync it, and return its size and hash."""
    digest, size = hashlib.sha256(), 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for chunk in _chunks(tensors):
            digest.update(chunk)
            write_all(fd, chunk)
            size += len(chunk)
        os.fsync(fd)
    finally:
        os.close(fd)
    return Written(size, digest.hexdigest())


def _chunks(tensors: Mapping[str, Tensor]) -> Iterator[bytes]:
    """The file, piece by piece: the header's length, the header, then the bytes of each tensor."""
    # Widest elements first, so that every tensor is aligned to its own element size in a memory-mapped file.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    yield _header([(name, tensors[name]) for name in names])
    for name in names:
        if tensors[name].numel() == 0:
            continue
        flat = tensors[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        for start in range(0, len(flat), CHUNK):
            yield flat[start : start + CHUNK].tobytes()


def _header(tensors: list[tuple[str, Tensor]]) -> bytes:
    entries: dict[str, object] = {}
    offset = 0
    for name, tensor in tensors:
        if tensor.dtype not in DTYPES or name == "__metadata__":
            raise TypeError(f"a .safetensors file cannot hold {name} of type {tensor.dtype}")
        end = offset + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
