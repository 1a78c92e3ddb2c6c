"""How a text may go on, from the automaton of texts that it, or others, went through.

The longest known context speaks first: the ways it went on share its trust by their counts. What is
left goes to the next shorter context that knows more, at a discount. Knows no sequences.
"""

from __future__ import annotations

from foreword.draft._automaton import ROOT, SuffixAutomaton

# Chance that the target goes on as a context of m tokens did before, where it only went one way:
# outputs of SmolLM2-135M-Instruct on 60 Spec-Bench questions and 8 edits, smoothed.
TRUST = (
    *(0.0, 0.36, 0.57, 0.66, 0.72, 0.78, 0.81, 0.85),
    *(0.87, 0.88, 0.89, 0.9, 0.91, 0.92, 0.93, 0.94, 0.95),
)
LONGEST = len(TRUST) - 1
MOST = 31  # longest match told apart as evidence
SHORTER = 0.6  # a shorter context gets that much of what the longer one left
CONTEXTS = 3  # contexts asked
WAYS = 8  # ways looked at per context, the latest first
WORTH = 0.03  # shares below are not looked for

Way = tuple[float, int, int]  # score, the state after it, tokens matched there


def ways_on(automaton: SuffixAutomaton, state: int, matched: int) -> dict[int, Way]:
    """token -> Way, for a text that ends with a context of `matched` tokens in `state`. Where
    nothing followed yet, as at the end of the newest text, shorter contexts answer."""
    found: dict[int, Way] = {}
    following_of, counts, link = automaton.following, automaton.count, automaton.link
    left, contexts = 1.0, CONTEXTS
    while state > ROOT:
        following = following_of[state]
        if following:
            trust = TRUST[matched] if matched < LONGEST else TRUST[LONGEST]
            share = left * trust
            if len(following) > 1:
                total = sum([counts[after] for after in following.values()]) or 1
                looked = WAYS
                for token in reversed(following):
                    after = following[token]
                    score = share * counts[after] / total
                    known = found.get(token)
                    if known is None:
                        found[token] = (score, after, matched + 1)
                    else:
                        found[token] = (known[0] + score, known[1], known[2])
                    looked -= 1
                    if not looked:
                        break
            else:
                [(token, after)] = following.items()
                known = found.get(token)
                if known is None:
                    found[token] = (share, after, matched + 1)
                else:
                    found[token] = (known[0] + share, known[1], known[2])
            left *= SHORTER * (1.0 - trust)
            contexts -= 1
            if not contexts or left < WORTH:
                break
        state = link[state]
        matched = automaton.size[state]
    return found
