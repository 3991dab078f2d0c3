"""Type codes of the GGUF format: metadata values, tensor types, file types.

A quantized tensor stores its weights in blocks of fixed length; a row is a whole number of blocks. Sizes
are those of ggml 0.25.3 (ggml/src/ggml.c), file types those of llama.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ValueType(IntEnum):
    """Type code of a metadata value."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


SCALAR_FORMATS: dict[int, str] = {
    ValueType.U8: "B",
    ValueType.I8: "b",
    ValueType.U16: "H",
    ValueType.I16: "h",
    ValueType.U32: "I",
    ValueType.I32: "i",
    ValueType.F32: "f",
    ValueType.BOOL: "?",
    ValueType.U64: "Q",
    ValueType.I64: "q",
    ValueType.F64: "d",
}


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor type: `block` weights take `block_bytes` bytes."""

    name: str
    block: int
    block_bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Mean storage of one weight."""
        return self.block_bytes * 8 / self.block


TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 36),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
    42: TensorType("Q2_0", 64, 18),
}

# Types that old files used and the engine has dropped since.
REMOVED_TENSOR_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}


@dataclass(frozen=True, slots=True)
class FileType:
    """A quantization recipe: its label and the tensor type most weights of the layers get."""

    label: str
    main_type: str


FILE_TYPES: dict[int, FileType] = {
    0: FileType("F32", "F32"),
    1: FileType("F16", "F16"),
    2: FileType("Q4_0", "Q4_0"),
    3: FileType("Q4_1", "Q4_1"),
    7: FileType("Q8_0", "Q8_0"),
    8: FileType("Q5_0", "Q5_0"),
    9: FileType("Q5_1", "Q5_1"),
    10: FileType("Q2_K", "Q2_K"),
    11: FileType("Q3_K_S", "Q3_K"),
    12: FileType("Q3_K_M", "Q3_K"),
    13: FileType("Q3_K_L", "Q3_K"),
    14: FileType("Q4_K_S", "Q4_K"),
    15: FileType("Q4_K_M", "Q4_K"),
    16: FileType("Q5_K_S", "Q5_K"),
    17: FileType("Q5_K_M", "Q5_K"),
    18: FileType("Q6_K", "Q6_K"),
    19: FileType("IQ2_XXS", "IQ2_XXS"),
    20: FileType("IQ2_XS", "IQ2_XS"),
    21: FileType("Q2_K_S", "Q2_K"),
    22: FileType("IQ3_XS", "IQ3_S"),
    23: FileType("IQ3_XXS", "IQ3_XXS"),
    24: FileType("IQ1_S", "IQ1_S"),
    25: FileType("IQ4_NL", "IQ4_NL"),
    26: FileType("IQ3_S", "IQ3_S"),
    27: FileType("IQ3_M", "IQ3_S"),
    28: FileType("IQ2_S", "IQ2_XS"),
    29: FileType("IQ2_M", "IQ2_S"),
    30: FileType("IQ4_XS", "IQ4_XS"),
    31: FileType("IQ1_M", "IQ1_M"),
    32: FileType("BF16", "BF16"),
    36: FileType("TQ1_0", "TQ1_0"),
    37: FileType("TQ2_0", "TQ2_0"),
    38: FileType("MXFP4_MOE", "MXFP4"),
    39: FileType("NVFP4", "NVFP4"),
    40: FileType("Q1_0", "Q1_0"),
    41: FileType("Q2_0", "Q2_0"),
}

# What the engine's quantizer takes instead where a row is no multiple of 256 (tensor_type_fallback).
ROW_FALLBACKS: dict[str, str] = {
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
}
