"""C functions for random numbers that are a pure function of a key and a place.

Philox4x32-10: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2,
3", SC 2011. Number ``i`` under a key is word ``i % 4`` of the block whose counter is ``i // 4``;
its upper 24 bits are a multiple of 2⁻²⁴ in [0, 1). The same on every target.
"""

from __future__ import annotations

from fusec.codegen.c_shape import Shape, function

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # what a round adds to the two words of the key


def functions(shape: Shape) -> dict[str, str]:
    """Name -> C source."""
    word = (
        "const unsigned long block = (unsigned long)place >> 2; "
        "unsigned int k0 = (unsigned int)key, k1 = (unsigned int)((unsigned long)key >> 32); "
        "unsigned int c[4] = {(unsigned int)block, (unsigned int)(block >> 32), 0, 0}; "
        f"for (int r = 0; r < {ROUNDS}; r++) {{ "
        f"const unsigned long p = {MULTIPLIERS[0]:#x}UL * c[0], q = {MULTIPLIERS[1]:#x}UL * c[2]; "
        "c[0] = (unsigned int)(q >> 32) ^ c[1] ^ k0; c[2] = (unsigned int)(p >> 32) ^ c[3] ^ k1; "
        "c[1] = (unsigned int)q; c[3] = (unsigned int)p; "
        f"k0 += {WEYL[0]:#x}U; k1 += {WEYL[1]:#x}U; }} "
        "return c[place & 3];"
    )
    if shape.scalar:
        body = "return (float)(philox_word(key, place) >> 8) * 0x1p-24f;"
    else:
        body = (
            f"vf32 a; for (int l = 0; l < {shape.lanes}; l++) "
            "a[l] = (float)(philox_word(key[l], place[l]) >> 8) * 0x1p-24f; return a;"
        )
    return {
        "philox_word": function("unsigned int", "philox_word", "long key, long place", word),
        "philox_uniform_f32": function("vf32", "philox_uniform_f32", "vi64 key, vi64 place", body),
    }
