"""Philox4x32-10 against the vectors of its authors and a reference in Python, on every level."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fusec.codegen.c_random import MULTIPLIERS, ROUNDS, WEYL
from tests.codegen.native import Functions, runnable

_WORD = 0xFFFFFFFF

# Random123's kat_vectors: counter, key, result.
_KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((_WORD,) * 4, (_WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """One block of four words."""
    c, k = list(counter), list(key)
    for _ in range(ROUNDS):
        p, q = MULTIPLIERS[0] * c[0], MULTIPLIERS[1] * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & _WORD, (p >> 32) ^ c[3] ^ k[1], p & _WORD]
        k = [(k[0] + WEYL[0]) & _WORD, (k[1] + WEYL[1]) & _WORD]
    return tuple(c)


def uniform(key: int, place: int) -> float:
    """What ``philox_uniform`` gives: exact in float32."""
    block = place // 4
    word = philox((block & _WORD, block >> 32, 0, 0), (key & _WORD, key >> 32 & _WORD))[place % 4]
    return (word >> 8) / (1 << 24)


@pytest.mark.parametrize("case", range(len(_KNOWN)))
def test_the_reference_gives_the_known_answers(case: int) -> None:
    counter, key, result = _KNOWN[case]
    assert philox(counter, key) == result


@pytest.mark.parametrize(("isa", "lanes"), [("x86-64-v3", 4), ("x86-64-v3", 1), ("x86-64-v4", 8)])
def test_numbers_are_the_reference_s(isa: str, lanes: int, tmp_path: Path) -> None:
    if not runnable(isa):
        pytest.skip(f"this machine does not run {isa}")
    functions = Functions(lanes, isa, ["philox_uniform_f32"], tmp_path)
    rng = np.random.default_rng(7)
    place = np.concatenate([np.arange(9), rng.integers(0, 1 << 62, 60)])
    key = np.concatenate(
        [np.full(9, -(1 << 63) + 5), rng.integers(-(1 << 63), 1 << 63, 60, dtype=np.int64)]
    )
    got = functions("philox_uniform_f32", key, place)
    want = [uniform(int(k) % (1 << 64), int(p)) for k, p in zip(key, place)]
    np.testing.assert_array_equal(got, np.array(want, np.float32))
