"""Texts as tokens of SentencePiece models (Kudo and Richardson 2018, arXiv 1808.06226) stored in files of weights.

Files of text encoders hold the serialised model as a tensor of bytes. The library is imported at the first prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # kinds of pieces in the format
FIRST_PIECES = (("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", UNKNOWN), ("<s>", CONTROL), ("\u2581", NORMAL))
SCORE_TAG = b"\x15"  # field 2, four bytes


class SentencePieces:
    """The tokenizer of a serialised SentencePiece model. Raises ValueError for bytes that are none."""

    def __init__(self, model: bytes) -> None:
        from sentencepiece import SentencePieceProcessor  # a prompt for another encoder does without it

        self._processor = SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise ValueError(
                f"tokenizer: invalid SentencePiece model; got {len(model)} bytes, expected a serialised model"
            ) from error

    def encode(self, text: str) -> list[int]:
        return list(self._processor.encode(text, add_bos=False, add_eos=False))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return str(self._processor.decode(list(tokens)))

    def piece(self, token: int) -> str:
        return str(self._processor.id_to_piece(token))

    def tokens_by_piece(self) -> dict[str, int]:
        return {self.piece(token): token for token in range(self._processor.get_piece_size())}


@lru_cache(maxsize=4)
def sentence_pieces(model: bytes) -> SentencePieces:
    """Return the tokenizer of a serialised model, built once for the latest ones. Raises ValueError."""
    return SentencePieces(model)


def byte_vocabulary() -> bytes:
    """Return a serialised model that reads a text byte by byte.

    Its tokens: padding 0, end 1, unknown 2, start 3, space 4, then 256 bytes. It
    stands for the tokenizer of an encoder with random weights.
    """
    pieces = [*FIRST_PIECES, *((f"<0x{number:02X}>", BYTE) for number in range(256))]
    body = b"".join(
        _field(1, _field(1, piece.encode()) + SCORE_TAG + bytes(4) + _number(3, kind)) for piece, kind in pieces
    )
    identities = ((40, 2), (41, 3), (42, 1), (43, 0))  # of unknown, start, end and padding
    trainer = _number(3, 1) + _number(35, 1) + b"".join(_number(tag, identity) for tag, identity in identities)
    return body + _field(2, trainer) + _field(3, _field(1, b"identity"))


def _field(number: int, content: bytes) -> bytes:
    """Return a field of bytes of a protocol buffer (wire type 2)."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _number(number: int, content: int) -> bytes:
    """Return a field of a protocol buffer with a whole number (wire type 0)."""
    return _varint(number << 3) + _varint(content)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
