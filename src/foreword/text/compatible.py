"""Whether a draft model speaks the target's vocabulary: equal ids must mean equal tokens."""

from __future__ import annotations

from foreword.text.tokenizer import Tokenizer


def compatible(target: Tokenizer, draft: Tokenizer) -> str | None:
    """None, or one line naming the first id that differs.

    Rows without a meaning, and added tokens that only one side has, do no harm: the draft never
    guesses them right, nothing else changes. A token that moved to another id does.
    """
    places = _places(target), _places(draft)
    for token in range(max(target.vocab_size, draft.vocab_size)):
        mine, theirs = target.token_text(token), draft.token_text(token)
        if mine and theirs and target.token_bytes(token) == draft.token_bytes(token):
            continue
        moved = mine and _elsewhere(target, token, draft, places[1])
        arrived = theirs and _elsewhere(draft, token, target, places[0])
        both_normal = (
            mine and theirs and not (token in target.added_ids and token in draft.added_ids)
        )
        if both_normal or moved or arrived:
            return (
                f"the draft model's vocabulary differs from the target's at id {token}: "
                f"{mine or 'nothing'!r} in the target, {theirs or 'nothing'!r} in the draft"
            )
    return None


def _meaning(tokenizer: Tokenizer, token: int) -> tuple[bytes, bool]:
    return tokenizer.token_bytes(token), token in tokenizer.added_ids


def _elsewhere(
    one: Tokenizer, token: int, other: Tokenizer, places: dict[tuple[bytes, bool], int]
) -> bool:
    """Whether `other` keeps the meaning of `token` at an id where `one` does not have it too."""
    place = places.get(_meaning(one, token))
    return place is not None and _meaning(one, place) != _meaning(other, place)


def _places(tokenizer: Tokenizer) -> dict[tuple[bytes, bool], int]:
    """Where each meaning is; the lowest id of equal ones."""
    ids = range(tokenizer.vocab_size - 1, -1, -1)
    return {_meaning(tokenizer, token): token for token in ids if tokenizer.token_text(token)}
