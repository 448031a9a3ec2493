"""What speculation should bring, in formulas.

alpha is the chance that a proposed token is accepted (taken as the same everywhere), gamma the
draft length, c the cost of a draft step and v(k) that of a target pass over k tokens, both in
one-token passes. Leviathan et al. 2023 (arXiv 2211.17192), equation 1 and theorem 3.8, is the case
v = 1.
"""

from __future__ import annotations

from collections.abc import Sequence


def expected_tokens(alpha: float, gamma: int) -> float:
    """Return the tokens a round gives on average: (1 - alpha^(gamma + 1)) / (1 - alpha).

    Raises ValueError for an alpha outside 0..1 or a negative gamma.
    """
    if not 0 <= alpha <= 1 or gamma < 0:
        raise ValueError(f"alpha={alpha} or gamma={gamma} is out of range")
    return sum(alpha**i for i in range(gamma + 1))


def speed_up(alpha: float, gamma: int, *, c: float, v: float = 1.0, overhead: float = 0.0) -> float:
    """Return plain time / speculative time per token.

    v is the verify pass over gamma + 1 tokens, overhead whatever else a round costs.
    """
    return expected_tokens(alpha, gamma) / (gamma * c + v + overhead)


def speed_up_measured(
    conditional: Sequence[float], *, c: float, v: float, overhead: float = 0.0
) -> float:
    """Return the speed-up that measured conditional acceptances a_1 .. a_gamma predict."""
    gamma = len(conditional)
    return tokens_measured(conditional) / needed_tokens(gamma, c=c, v=v, overhead=overhead)


def tokens_measured(conditional: Sequence[float]) -> float:
    """Return the tokens a round gives at conditional acceptances a_1 .. a_gamma, all proposed."""
    tokens, reached = 1.0, 1.0
    for rate in conditional:
        reached *= rate
        tokens += reached
    return tokens


def needed_tokens(gamma: int, *, c: float, v: float, overhead: float = 0.0) -> float:
    """Return how many tokens a round must give to be as fast as plain decoding."""
    return gamma * c + v + overhead
