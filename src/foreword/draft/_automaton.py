"""An online suffix automaton of token ids: which contexts occurred, what followed them how often.

A state stands for a set of contexts that ended at the same places; `link` leads to the longest
shorter context that occurred elsewhere, too (Blumer et al., "The smallest automaton recognizing the
subwords of a text", 1985; as a drafter: SAM-Decoding, arXiv 2411.10666). So the suffix link of the
state of a whole text is the longest suffix that was seen before: no search, whatever its length.
Several texts may grow in one automaton, each from a state of its own (a generalised automaton): a
prefix they share is there once.

Cost: a few dictionary entries per token, amortised; about 1.3 states and 400 bytes per token.
Knows no sequences and no probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

ROOT = 0
COUNTED = 24  # links walked per token: contexts beyond it, in texts that loop, are not counted


class SuffixAutomaton:
    """Columns by state: `following` token -> state, in order of the last time, latest last; `link`
    (-1 for the root); `size`, the longest context of the state; `count`, how often it ended."""

    __slots__ = ("count", "following", "link", "num_tokens", "size")

    def __init__(self) -> None:
        self.following: list[dict[int, int]] = [{}]
        self.link: list[int] = [-1]
        self.size: list[int] = [0]
        self.count: list[int] = [0]
        self.num_tokens = 0

    def extend(self, last: int, token: int) -> int:
        """The state of the text of state `last` and `token`."""
        following, link, size = self.following, self.link, self.size
        known = following[last].get(token)
        if known is None:
            current = self._add(size[last] + 1, {}, ROOT)
            state = last
            while state >= 0 and token not in following[state]:
                following[state][token] = current
                state = link[state]
            if state >= 0:
                link[current] = self._exact(state, token)
        else:
            current = self._exact(last, token)
        self.num_tokens += 1
        self._count(last, current, token)
        return current

    def grow(self, state: int, tokens: SequenceOf[int], start: int = 0) -> int:
        """The state after `tokens[start:]`, appended to the text of `state`."""
        for place in range(start, len(tokens)):
            state = self.extend(state, tokens[place])
        return state

    def step(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """From a context of `matched` tokens in `state` to the longest known one that ends with
        `token`: its state and length."""
        following, link = self.following, self.link
        while state > ROOT and token not in following[state]:
            state = link[state]
            matched = self.size[state]
        after = following[state].get(token)
        return (ROOT, 0) if after is None else (after, matched + 1)

    def _add(self, size: int, following: dict[int, int], link: int) -> int:
        self.following.append(following)
        self.link.append(link)
        self.size.append(size)
        self.count.append(0)
        return len(self.link) - 1

    def _exact(self, state: int, token: int) -> int:
        """The state that holds exactly the longest context of `state` and `token`, split off where
        the state that `token` leads to holds longer ones as well."""
        following, link = self.following, self.link
        after, size = following[state][token], self.size[state] + 1
        if self.size[after] == size:
            return after
        split = self._add(size, dict(following[after]), link[after])
        self.count[split] = self.count[after]
        link[after] = split
        while state >= 0 and following[state].get(token) == after:
            following[state][token] = split
            state = link[state]
        return split

    def _count(self, last: int, current: int, token: int) -> None:
        """One more end of every context of the text; `token` becomes the latest that followed."""
        left = COUNTED
        while current > ROOT and left:
            self.count[current] += 1
            current, left = self.link[current], left - 1
        left = COUNTED
        while last >= ROOT and left:
            following = self.following[last]
            if len(following) > 1:
                following[token] = following.pop(token)
            last, left = self.link[last], left - 1
