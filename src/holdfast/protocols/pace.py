"""Whether a follower that was late with an epoch takes part in the next one.

Members of a group compute the same epochs, and whoever finishes first commits. A follower that is beaten by part of an
epoch begins the next one as much later, and finishes it late again: when its leader dies, the flow waits for that too.
Letting one epoch pass costs the follower nothing but idle time, and puts it in step for those that follow.
"""

from __future__ import annotations

from holdfast.core import limits


def lets_pass_s(behind_s: float, epoch_s: float) -> float:
    """For how long at most a follower waits for its leader's next commit.

    That is due after the rest of an epoch, and may take as much again. A follower that is hardly behind goes on at once, and so does one that is
    behind by epochs: it begins with the newest anyway.

    >>> lets_pass_s(0.75, 1.0), lets_pass_s(0.0, 1.0), lets_pass_s(1.5, 1.0), lets_pass_s(-3.0, 1.0)
    (1.25, 0.0, 0.0, 0.0)
    """
    if not limits.BEHIND_SHARE_MIN * epoch_s < behind_s < epoch_s:
        return 0.0
    return 2 * epoch_s - behind_s
