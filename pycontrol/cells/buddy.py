"""Buddy allocation of physical cells to virtual clusters' trees, preferring healthy cells without borrowers."""

from __future__ import annotations

from pycontrol.cells.geometry import Cell, Chain

BAD = -1
"""The bucket of free cells with bad GPUs."""


class Buddy:
    """Buddy cell allocation (HiveD, Algorithm 1) for the physical cells to which virtual clusters' cells are bound.

    `need[k]` is r_k - a_k: level-k cells that virtual clusters own and that are not bound. `guests[k][p]` counts the
    GPUs of a cell that borrowers use (dirty, section 3.2); `bad[k]` counts its bad GPUs.
    """

    __slots__ = ("bad", "buckets", "chain", "fans", "free", "guests", "need", "sizes")

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.sizes, self.fans = chain.sizes, chain.fans
        levels = len(self.sizes)
        self.need = [0] * levels
        self.guests = [[0] * chain.count(k) for k in range(levels)]
        self.bad: list[dict[int, int]] = [{} for _ in range(levels)]
        self.free: list[dict[int, int]] = [{} for _ in range(levels)]
        """Maximal free cells by level, with the bucket of each."""
        self.buckets: list[dict[int, dict[int, None]]] = [{} for _ in range(levels)]
        for number in range(chain.count(chain.top) - 1, -1, -1):
            self._push(chain.top, number)

    def slack(self) -> list[int]:
        """f_k + F_k - (r_k - a_k) by level (equations 1 and 2); by the invariant none is negative."""
        spare, result = 0, [0] * len(self.sizes)
        for k in range(len(self.sizes) - 1, -1, -1):
            spare = len(self.free[k]) + spare - self.need[k]
            result[k] = spare
            spare *= self.fans[k]
        return result

    def check(self) -> None:
        """Asserts the invariant of Theorem 1 (equation 2)."""
        assert min(self.slack()) >= 0, f"{self.chain.name}: virtual clusters own more cells than can be bound"

    def acquire(self, level: int) -> int:
        """Binds and returns the free cell with the fewest bad GPUs, then the fewest borrowed GPUs.

        A higher cell is split only while equation (2) keeps holding there, so that spare cells are used before any
        group is preempted. By Theorem 1 a legal request (need[level] > 0) always finds a cell.
        """
        best: tuple[int, int] | None = None
        choice = -1
        slack: list[int] = []
        for k in range(level, len(self.sizes)):
            if k > level:
                slack = slack or self.slack()
                if slack[k] < 1:
                    break
            for number in self._candidates(k):
                found = self._least(k, number, level)
                score = (self.bad[level].get(found, 0), self.guests[level][found])
                if best is None or score < best:
                    best, choice = score, found
            if best == (0, 0):
                break
        assert best is not None, f"{self.chain.name}: no free cell of level {level}; equation (2) is broken"
        self.bind((level, choice))
        return choice

    def has_better(self, cell: Cell) -> bool:
        """Whether a bound cell would be bound to one with fewer bad GPUs if it were released now."""
        level, number = cell
        self.release(cell)
        other = self.acquire(level)
        self.release((level, other))
        self.bind(cell)
        bad = self.bad[level]
        return bad.get(other, 0) < bad.get(number, 0)

    def _candidates(self, level: int) -> list[int]:
        """The best healthy free cell of a level, and all free cells with bad GPUs, which may have healthy parts.

        What was released last comes first, so that cells that are bound for now and unbound are bound alike again.
        """
        buckets = self.buckets[level]
        bad = list(reversed(buckets.get(BAD, {})))
        healthy = min([key for key in buckets if key != BAD], default=None)
        if healthy is None:
            return bad
        number, _ = buckets[healthy].popitem()
        buckets[healthy][number] = None
        return [number, *bad]

    def _least(self, level: int, number: int, down_to: int) -> int:
        """The part of a free cell at level `down_to` with the fewest bad, then the fewest borrowed GPUs."""
        while level > down_to:
            fan = self.fans[level]
            first = number * fan
            level -= 1
            guests = self.guests[level][first : first + fan]
            bad = self.bad[level]
            if bad:
                number = min(range(first, first + fan), key=lambda c: (bad.get(c, 0), guests[c - first]))
            else:
                number = first + guests.index(min(guests))
        return number

    def holder(self, cell: Cell) -> Cell | None:
        """The maximal free cell that contains a cell; None if the cell is not free."""
        level, number = cell
        for k in range(level, len(self.sizes)):
            at = number * self.sizes[level] // self.sizes[k]
            if at in self.free[k]:
                return k, at
        return None

    def may_bind(self, cell: Cell) -> bool:
        """Whether exactly this cell is free and can be bound without breaking equation (2) for others."""
        holder = self.holder(cell)
        if holder is None or self.need[cell[0]] < 1:
            return False
        slack = self.slack()
        return all(slack[k] >= 1 for k in range(cell[0] + 1, holder[0] + 1))

    def bind(self, cell: Cell, counted: bool = True) -> None:
        """Binds exactly this free cell; `counted`: whether `need` counts it."""
        holder = self.holder(cell)
        assert holder is not None, f"{self.chain.label(cell)} is not free"
        (level, number), (k, at) = cell, holder
        self._pop(k, at)
        while k > level:
            first = at * self.fans[k]
            fan = self.fans[k]
            k -= 1
            at = number * self.sizes[level] // self.sizes[k]
            for child in range(first + fan - 1, first - 1, -1):
                if child != at:
                    self._push(k, child)
        if counted:
            self.need[level] -= 1

    def release(self, cell: Cell) -> None:
        """Unbinds a cell and merges it with its buddies if they are all free, level by level."""
        k, at = cell
        self.need[k] += 1
        while k < len(self.sizes) - 1:
            fan = self.fans[k + 1]
            first = at // fan * fan
            if any(child != at and child not in self.free[k] for child in range(first, first + fan)):
                break
            for child in range(first, first + fan):
                if child != at:
                    self._pop(k, child)
            k, at = k + 1, at // fan
        self._push(k, at)

    def count_guests(self, cell: Cell, sign: int) -> None:
        """Counts a borrower that came to (1) or left (-1) all GPUs of a cell of at most node level."""
        level, number = cell
        sizes, guests = self.sizes, self.guests
        leaf, amount = number * sizes[level], sizes[level]
        for k in range(level):
            first, count = leaf // sizes[k], amount // sizes[k]
            inside = [n for n in range(first, first + count) if n in self.free[k]] if self.free[k] else []
            for number in inside:
                self._pop(k, number)
            guests[k][first : first + count] = [sizes[k] if sign > 0 else 0] * count
            for number in inside:
                self._push(k, number)
        self._change(level, leaf, guests, amount * sign)

    def _change(self, level: int, leaf: int, counts: list[list[int]], amount: int) -> None:
        sizes, free = self.sizes, self.free
        for k in range(level, len(sizes)):
            at = leaf // sizes[k]
            if at in free[k]:
                self._pop(k, at)
                counts[k][at] += amount
                self._push(k, at)
            else:
                counts[k][at] += amount

    def count_bad(self, leaf: int, sign: int) -> None:
        """Counts a GPU that went bad (1) or is healthy again (-1)."""
        for k, size in enumerate(self.sizes):
            at = leaf // size
            inside = at in self.free[k]
            if inside:
                self._pop(k, at)
            now = self.bad[k].pop(at, 0) + sign
            if now:
                self.bad[k][at] = now
            if inside:
                self._push(k, at)

    def healthy(self, level: int) -> int:
        """The number of free cells of a level without bad GPUs, including those inside larger free cells."""
        total = sum(len(self.free[k]) * self.sizes[k] // self.sizes[level] for k in range(level, len(self.sizes)))
        return total - sum(self.holder((level, number)) is not None for number in self.bad[level])

    def _push(self, level: int, number: int) -> None:
        key = BAD if number in self.bad[level] else self.guests[level][number]
        self.free[level][number] = key
        self.buckets[level].setdefault(key, {})[number] = None

    def _pop(self, level: int, number: int) -> None:
        key = self.free[level].pop(number)
        bucket = self.buckets[level][key]
        del bucket[number]
        if not bucket:
            del self.buckets[level][key]
