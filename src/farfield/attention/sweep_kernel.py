"""The compiled kernel of a sweep: 64 queries pass once over their list of key tiles, the nearest first.

    logits (4 x 64)  ->  exponentials  ->  what they weigh  ->  added to the output, or to what is left out

It takes four queries and a tile of 64 keys at a time, so that all it touches stays in the first cache, and so that
these four alone decide whether the tile matters to them. A fused kernel for all pairs cannot skip the product with the
values when the weights turn out small, is slow for few queries, and wants the keys gathered; this one reads them where
they lie. On CPUs with 512-bit vectors a pair costs it half of what it costs torch's fused kernel.

numba compiles it when it is first called, and keeps the result. Everything is float32 but the sums over keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

# Numbers from other modules would stay as they were in what numba keeps: it watches this file alone.
ROWS = KEYS = 64  # of a subtile, and of a key tile
_TOGETHER = 4  # rows that share a decision
# A sum of weights above this asks for a new reference: float32 ends at exp(88), and values may be large, too.
_TOO_LARGE = math.exp(20.0)
_WIDE = llvmlite.binding.get_host_cpu_features().get("avx512f", False)
# No NaN or infinity is assumed away: one diverged query must not change the others.
_options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "reassoc"}}


def _compiled(function: Callable) -> Callable:
    """By numba at the first call; kept for the next process where there is a folder to write to."""
    try:
        return numba.njit(cache=True, **_options)(function)
    except RuntimeError:
        return numba.njit(**_options)(function)


def _block_product(columns: int) -> Callable[..., None]:
    """out (4, columns) += a (4, m) @ b (m, columns), with the sums in vector registers.

    Written as LLVM code, since a loop that numba vectorises by itself stores every sum after each few terms, which
    takes twice as long. Each matrix is given by an array, where in it the matrix begins, and its strides; the columns
    of b and out lie side by side.
    """
    lanes = 16 if _WIDE else 8
    vectors, number = columns // lanes, ir.IntType(64)
    vector = ir.VectorType(ir.FloatType(), lanes)

    @intrinsic
    def product(context, a, a_begin, a_row, a_column, b, b_begin, b_row, out, out_begin, out_row, m):  # type: ignore[no-untyped-def]
        def generate(target, builder, signature, given):  # type: ignore[no-untyped-def]
            def data(i):  # type: ignore[no-untyped-def]
                array = cgutils.create_struct_proxy(signature.args[i])(target, builder, value=given[i])
                return builder.gep(array.data, [given[i + 1]])

            a, b, out = (data(i) for i in (0, 4, 7))
            a_row, a_column, b_row, out_row, m = (given[i] for i in (2, 3, 6, 9, 10))

            def at(pointer, *offsets):  # type: ignore[no-untyped-def]
                place = ir.Constant(number, 0)
                for offset in offsets:
                    place = builder.add(place, offset)
                return builder.gep(pointer, [place])

            def times(stride, count):  # type: ignore[no-untyped-def]
                return builder.mul(stride, count if isinstance(count, ir.Value) else ir.Constant(number, count))

            def as_vector(pointer):  # type: ignore[no-untyped-def]
                return builder.bitcast(pointer, vector.as_pointer())

            places = [
                at(out, times(out_row, r), ir.Constant(number, lanes * c))
                for r in range(_TOGETHER)
                for c in range(vectors)
            ]
            begin = [builder.load(as_vector(place), align=4) for place in places]
            before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
            builder.branch(loop)
            builder.position_at_end(loop)
            k, sums = builder.phi(number), [builder.phi(vector) for _ in begin]
            k.add_incoming(ir.Constant(number, 0), before)
            row = [
                builder.load(as_vector(at(b, times(b_row, k), ir.Constant(number, lanes * c))), align=4)
                for c in range(vectors)
            ]
            none, first = ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), lanes), None)
            ends = []
            for r in range(_TOGETHER):
                factor = builder.load(at(a, times(a_row, r), times(a_column, k)))
                factor = builder.insert_element(none, factor, ir.Constant(ir.IntType(32), 0))
                factor = builder.shuffle_vector(factor, none, first)
                for c in range(vectors):
                    term = builder.fmul(factor, row[c], flags=("contract",))
                    ends.append(builder.fadd(term, sums[r * vectors + c], flags=("contract",)))
            more = builder.add(k, ir.Constant(number, 1))
            k.add_incoming(more, loop)
            for value, start, end in zip(sums, begin, ends, strict=True):
                value.add_incoming(start, before)
                value.add_incoming(end, loop)
            builder.cbranch(builder.icmp_signed("<", more, m), loop, after)
            builder.position_at_end(after)
            for place, end in zip(places, ends, strict=True):
                builder.store(end, as_vector(place), align=4)
            return target.get_dummy_value()

        i = types.int64
        return types.void(a, i, i, i, b, i, i, out, i, i, i), generate

    return product


_by_64, _by_32, _by_16 = (_block_product(columns) for columns in (64, 32, 16))


@_compiled
def _add_product(a, a_begin, a_row, a_column, b, b_begin, out, out_begin, n, m):  # type: ignore[no-untyped-def]
    """out (4, n) += a (4, m) @ b (m, n), n a multiple of 16; rows of b and out follow one another."""
    done = 0
    while done < n:
        if _WIDE and n - done >= 64:
            _by_64(a, a_begin, a_row, a_column, b, b_begin + done, n, out, out_begin + done, n, m)
            done += 64
        elif _WIDE and n - done >= 32:
            _by_32(a, a_begin, a_row, a_column, b, b_begin + done, n, out, out_begin + done, n, m)
            done += 32
        else:
            _by_16(a, a_begin, a_row, a_column, b, b_begin + done, n, out, out_begin + done, n, m)
            done += 16


@intrinsic
def _from_bits(context: Any, bits: Any = None) -> Any:
    """The float32 with the bits of an int32."""

    def generate(target, builder, signature, given):  # type: ignore[no-untyped-def]
        return builder.bitcast(given[0], ir.FloatType())

    return types.float32(types.int32), generate


@_compiled
def _exponentials(logits, a, reference, sizes, block, weights):  # type: ignore[no-untyped-def]
    """weights[a] = exp(logits[a] - reference), to 2e-7; returns their sum, and that of weights times sizes.

    exp(x) = 2^n 2^f: the first factor is written as bits, the second is a series.
    """
    total = sized = np.float32(0.0)
    for j in range(KEYS):
        x = (logits[a, j] - reference) * np.float32(1 / math.log(2))
        x = np.float32(-126.0) if x < np.float32(-126.0) else x  # NaN stays what it is
        x = np.float32(126.0) if x > np.float32(126.0) else x
        n = np.floor(x + np.float32(0.5))
        f = x - n
        p = np.float32(1.5403530e-4) * f + np.float32(1.3333558e-3)
        p = p * f + np.float32(9.6181291e-3)
        p = p * f + np.float32(5.5504109e-2)
        p = p * f + np.float32(0.24022651)
        p = p * f + np.float32(0.69314718)
        p = p * f + np.float32(1.0)
        weight = p * _from_bits(np.int32((n + np.float32(127.0)) * np.float32(8388608.0)))
        weights[a, j] = weight
        total += weight
        sized += weight * sizes[block, j]
    return total, sized


@_compiled
def _largest(logits, a):  # type: ignore[no-untyped-def]
    best = np.float32(-np.inf)
    for j in range(KEYS):
        if logits[a, j] > best:
            best = logits[a, j]
    return best


@_compiled
def _shift(own, shift, seen):  # type: ignore[no-untyped-def]
    """seen (C + 1, 64): query channels ``own`` (C, 64) as a key tile's own channels want them, by ``shift`` (C, C)."""
    for c in range(len(own)):
        for r in range(ROWS):
            seen[c, r] = 0.0
        for b in range(len(own)):
            factor = shift[b, c]
            if factor != 0.0:
                for r in range(ROWS):
                    seen[c, r] += factor * own[b, r]


@_compiled
def _length(o, row):  # type: ignore[no-untyped-def]
    square = 0.0
    for d in range(o.shape[1]):
        square += np.float64(o[row, d]) ** 2
    return math.sqrt(square)


@_compiled
def sweep(  # type: ignore[no-untyped-def]
    first, last, start, owner, listed, order, number, near, tail, shift, log_bound, outside,
    q, q_channels, keys, values, sizes, points, heaviest, largest, least, allowed, far, growth, out, found,
):  # fmt: skip
    """Attention of the queries in some subtiles; what is left out is at most ``allowed``, see the certificate.

    Args:
        first, last: the subtiles, of a table of S.
        start (S + 1,), owner (S,): the rows of each subtile, and to which query tile of I it belongs.
        listed (I, T): the key tiles that query tiles list; order (S, T): places in that list as a subtile wants them,
            the nearest first; number and near (S,): how many there are, and how many matter anyhow.
        tail (S, T): what this and all later places weigh together, over what this one does, if logits are alike.
        shift (I, T, G or 1, C, C): what turns channels that count from the key tile into ones from the query tile.
        log_bound (S, T, G), outside (S, G): what key tiles weigh at most, and all that is not listed.
        q (N, G, D), q_channels (N, G or 1, C): times the scale of the logits.
        keys (Tk G (D + C + 1) 64): with their bias channels, and one more, hugely negative, where there is no key.
        values (Tk G 64 W), sizes (Tk G, 64): v and |v|; points (Tk,): how many keys there are.
        heaviest (Tk, G), largest (G,): the largest |v| of a tile, and of all; least (G,): what V is taken as at least.
        far, growth: the certificate's FAR and GROWTH.
        out (N, G, W): the result. found (S, G, 3): pairs read, pairs only weighed, and by how much the lists are short.
    """
    (heads, dim), extra, width = q.shape[1:], q_channels.shape[2], out.shape[2]
    rows_q = np.zeros((ROWS, dim), np.float32)
    own, seen = np.zeros((extra, ROWS), np.float32), np.zeros((extra + 1, ROWS), np.float32)
    logits, weights = np.zeros((_TOGETHER, KEYS), np.float32), np.zeros((_TOGETHER, KEYS), np.float32)
    o, part = np.zeros((ROWS, width), np.float32), np.zeros((_TOGETHER, width), np.float32)
    reference = np.zeros(ROWS, np.float32)
    # by row: Z and Z V of what was read (V at least ``least``), the same of what was left out, and |o| / V
    mass, sized, output = np.zeros(ROWS), np.zeros(ROWS), np.zeros(ROWS)
    left_mass, left_sized = np.zeros(ROWS), np.zeros(ROWS)
    x, y = np.zeros(_TOGETHER), np.zeros(_TOGETHER)
    seen[extra] = 1.0
    for s in range(first, last):
        begin, rows, tile = start[s], start[s + 1] - start[s], owner[s]
        for g in range(heads):
            g_channels, g_shift = min(g, q_channels.shape[1] - 1), min(g, shift.shape[2] - 1)
            rows_q[:], own[:] = 0.0, 0.0
            for r in range(rows):
                for d in range(dim):
                    rows_q[r, d] = q[begin + r, g, d]
                for c in range(extra):
                    own[c, r] = q_channels[begin + r, g_channels, c]
            as_long_as_can_be = False  # whether |o| is taken as V, the most that it can be
            while True:
                o[:], mass[:], sized[:], left_mass[:], left_sized[:] = 0.0, 0.0, 0.0, 0.0, 0.0
                read = weighed = 0
                place, end = 0, near[s]
                while place < end:
                    here = order[s, place]
                    key = listed[tile, here]
                    block = key * heads + g
                    at_keys, at_values = block * (dim + extra + 1) * KEYS, block * KEYS * width
                    _shift(own, shift[tile, here, g_shift], seen)
                    for r in range(0, rows, _TOGETHER):
                        for a in range(_TOGETHER):
                            for j in range(KEYS):
                                logits[a, j] = 0.0
                        _add_product(rows_q, r * dim, dim, 1, keys, at_keys, logits, 0, KEYS, dim)
                        _add_product(seen, r, 1, ROWS, keys, at_keys + dim * KEYS, logits, 0, KEYS, extra + 1)
                        light = place >= near[s]
                        for a in range(min(_TOGETHER, rows - r)):
                            i = r + a
                            if place == 0:
                                reference[i] = _largest(logits, a)
                            x[a], y[a] = _exponentials(logits, a, reference[i], sizes, block, weights)
                            if x[a] > _TOO_LARGE:
                                best = _largest(logits, a)
                                factor = np.float32(math.exp(reference[i] - best))
                                reference[i] = best
                                mass[i] *= factor
                                sized[i] *= factor
                                left_mass[i] *= factor
                                left_sized[i] *= factor
                                for d in range(width):
                                    o[i, d] *= factor
                                x[a], y[a] = _exponentials(logits, a, best, sizes, block, weights)
                            if light:
                                of_sizes = left_sized[i] + y[a] * tail[s, place]
                                of_mass = left_mass[i] + x[a] * tail[s, place]
                                left = of_sizes / max(sized[i], least[g] * mass[i]) + output[i] * of_mass / mass[i]
                                light = left <= (1 - far) * allowed
                        pairs = min(_TOGETHER, rows - r) * points[key]
                        if light:
                            for a in range(_TOGETHER):
                                left_mass[r + a] += x[a]
                                left_sized[r + a] += y[a]
                            weighed += pairs
                        else:
                            part[:] = 0.0  # added to o as a whole: one by one, late weights would be rounded away
                            _add_product(weights, 0, KEYS, 1, values, at_values, part, 0, width, KEYS)
                            for a in range(_TOGETHER):
                                for d in range(width):
                                    o[r + a, d] += part[a, d]
                                mass[r + a] += x[a]
                                sized[r + a] += y[a]
                            read += pairs
                    place += 1
                    if place == near[s]:  # the mass found so far tells which of the others cannot matter
                        least_mass, least_sized, most_output = np.inf, np.inf, 0.0
                        for i in range(rows):
                            total = max(sized[i], least[g] * mass[i])
                            output[i] = 1.0 if as_long_as_can_be else min(1.0, _length(o, i) / total + growth)
                            log_mass, log_sized = reference[i] + math.log(mass[i]), reference[i] + math.log(total)
                            least_mass = log_mass if log_mass < least_mass else least_mass
                            least_sized = log_sized if log_sized < least_sized else least_sized
                            most_output = output[i] if output[i] > most_output else most_output
                        log_unseen = outside[s, g] - least_mass + math.log(most_output)
                        log_unseen = max(log_unseen, outside[s, g] - least_sized + math.log(largest[g])) + math.log(2)
                        found[s, g, 2] = log_unseen - math.log(far / 2 * allowed)
                        unseen = math.exp(log_unseen)
                        end = number[s]
                        while end > place:
                            bound = log_bound[s, end - 1, g]
                            unseen += math.exp(bound - least_mass) * most_output
                            unseen += math.exp(bound - least_sized) * heaviest[listed[tile, order[s, end - 1]], g]
                            if not unseen <= far * allowed:
                                break
                            end -= 1
                longer = False
                for i in range(rows):
                    longer |= output[i] < 1.0 and _length(o, i) > output[i] * max(sized[i], least[g] * mass[i])
                if not longer:
                    break
                as_long_as_can_be = True
            for i in range(rows):
                for d in range(width):
                    out[begin + i, g, d] = o[i, d] / mass[i]
            found[s, g, 0], found[s, g, 1] = read, weighed
