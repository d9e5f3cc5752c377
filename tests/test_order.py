"""The order of a sum is revealed from its results: the planted tree comes back, and none where there is none."""

import ml_dtypes
import numpy as np
import pytest
import simulated_sums as sums
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_orders import kahan

from crosscheck.order.bench import Bench
from crosscheck.order.checks import random_rows, swapped, totals
from crosscheck.order.masks import Masks, NoTree, TooMany, calibrated
from crosscheck.order.reveal import reveal, reveal_with
from crosscheck.order.run import OrderRun, Setting
from crosscheck.order.survey import survey
from crosscheck.order.tree import ADD, EXACT, FUSED, Tree

K = 32
PLANTED = {
    "sequential": sums.sequential(K),
    "backwards": sums.backwards(K),
    "pairwise": sums.pairwise(range(K)),
    "halves": sums.halves(range(K)),
    "lanes": sums.pairwise(sums.strided(K, 8)),
    "lanes in turn": sums.in_turn(sums.strided(K, 4)),
    "blocks": sums.in_turn(sums.blocks(K, 8)),
    "lanes and a rest": sums.in_turn([sums.halves(sums.strided(28, 4)), 28, 29, 30, 31]),
    "groups": sums.groups(K, 8),
    "at once": list(range(K)),
}
ACCUMULATED = [  # accumulator, dtype of factors and result
    ("float32", "float32"),
    ("float32", "bfloat16"),
    ("float32", "float16"),
    ("bfloat16", "bfloat16"),
    ("float16", "float16"),
    ("float64", "float32"),
    ("bfloat16", "float32"),
]
BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


def simulated(tree, accumulator="float32", dtype="float32"):
    return sums.simulated(tree, accumulator, dtype, BITS[accumulator])


@st.composite
def trees(draw, kinds=(FUSED, EXACT), most=24):
    """Any tree: terms are drawn until one is left."""
    leaves = draw(st.integers(2, most))
    terms, nodes, named = list(range(leaves)), [], []
    while len(terms) > 1:
        several = draw(st.integers(2, min(5, len(terms)))) if kinds and draw(st.booleans()) else 2
        own = [terms.pop(draw(st.integers(0, len(terms) - 1))) for _ in range(several)]
        nodes.append(own)
        named.append(draw(st.sampled_from(kinds)) if kinds else ADD)
        terms.append(leaves + len(nodes) - 1)
    return Tree.of(leaves, nodes, named)


# Trees that are planted --------------------------------------------------------------------------------
@pytest.mark.parametrize(("accumulator", "dtype"), ACCUMULATED)
@pytest.mark.parametrize("kind", [FUSED, EXACT])
@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_order_is_revealed(name, kind, accumulator, dtype):
    tree = sums.tree_of(PLANTED[name], kind)
    assert reveal(simulated(tree, accumulator, dtype), K, dtype) == tree


@settings(max_examples=40)
@given(trees(), st.sampled_from(ACCUMULATED), st.integers(0, 3))
def test_any_order_is_revealed(tree, accumulated, seed):
    accumulator, dtype = accumulated
    assert reveal(simulated(tree, accumulator, dtype), tree.leaves, dtype, seed=seed) == tree


def test_a_sum_wider_than_its_results_can_count_is_revealed():
    tree = sums.tree_of(sums.in_turn(sums.blocks(600, 60)))  # bfloat16 counts to 256
    assert reveal(simulated(tree, "bfloat16", "bfloat16"), 600, "bfloat16") == tree


def test_two_and_one_products():
    assert reveal(simulated(Tree.of(2, [[0, 1]])), 2).nodes == ((0, 1),)
    assert reveal(simulated(Tree.of(1, [])), 1).nodes == ()


def test_no_more_probes_than_are_allowed():
    tree = sums.tree_of(PLANTED["at once"])
    with pytest.raises(TooMany, match="its order needs more than 100 probes; a smaller width needs fewer"):
        reveal(simulated(tree), K, limit=100)


def test_a_regular_order_needs_few_probes():
    sums_of = simulated(sums.tree_of(sums.sequential(256)))
    masks = Masks(sums_of, 256, calibrated(sums_of, 256, "float32"), 10**6)
    reveal_with(masks)
    assert masks.asked < 256 * 16  # and not some 256 * 255 / 2


# No tree -----------------------------------------------------------------------------------------------
def test_what_is_no_sum_is_said_so():
    with pytest.raises(NoTree, match=r"^it is no plain sum of products: 32768 alone gave 16384$"):
        reveal(lambda rows: rows.sum(axis=1) / 2, 8)
    with pytest.raises(NoTree, match="it is no plain sum of products: 32768 alone gave nan"):
        reveal(lambda rows: rows.sum(axis=1) * np.nan, 8)


# Trees -------------------------------------------------------------------------------------------------
@given(trees(), st.randoms(use_true_random=False))
def test_a_tree_has_one_form(tree, random):
    shuffled = list(range(len(tree.nodes)))
    random.shuffle(shuffled)
    order = sorted(shuffled, key=lambda node: bin(tree.spans[tree.leaves + node]).count("1"))
    place = {tree.leaves + node: tree.leaves + k for k, node in enumerate(order)}
    nodes = [
        random.sample([place.get(term, term) for term in tree.nodes[node]], len(tree.nodes[node])) for node in order
    ]
    assert Tree.of(tree.leaves, nodes, [tree.kinds[node] for node in order]) == tree


@given(trees(), st.data())
def test_the_first_products_keep_their_order(tree, data):
    """As a sum whose other products are zero."""
    width = data.draw(st.integers(1, tree.leaves))
    whole = simulated(tree)

    def padded(rows):
        return whole(np.concatenate([rows, np.zeros((len(rows), tree.leaves - width))], axis=1))

    assert reveal(padded, width) == tree.cut(width)


@given(trees(kinds=()), st.integers(0, 3))
def test_random_values_have_the_predicted_sums(tree, seed):
    """Integers against NumPy's own additions."""
    sums_of, scale = simulated(tree), calibrated(simulated(tree), tree.leaves, "float32")
    rows = random_rows(tree.leaves, scale, np.random.default_rng(seed))
    widths = [24] * len(tree.nodes)
    assert totals(tree, rows, widths, (24, 24), 24) == [int(total) for total in sums_of(np.array(rows, float))]


@given(trees(), st.integers(0, 3))
def test_terms_that_change_places_change_no_bit(tree, seed):
    rng = np.random.default_rng(seed)
    sums_of, scale = simulated(tree), calibrated(simulated(tree), tree.leaves, "float32")
    rows = np.array(random_rows(tree.leaves, scale, rng), float)
    others = np.empty_like(rows)
    others[:, swapped(tree, [24] * len(tree.nodes), rng)] = rows
    np.testing.assert_array_equal(sums_of(rows), sums_of(others))


# Positions ---------------------------------------------------------------------------------------------
def lm_head(order_of, dtype="float32"):
    """A call whose result at [row, column] of a batch is added in the order `order_of(rows, row, column)` says."""

    def call(hidden, weight, rows, vocab):
        factors = [np.broadcast_to(x.astype(np.float64), (len(hidden), size, x.shape[-1]))
                   for x, size in ((hidden, rows), (weight, vocab))]  # fmt: skip
        result = np.empty((len(hidden), rows, vocab))
        for row in range(rows):
            for column in range(vocab):
                result[:, row, column] = order_of(rows, row, column)(factors[0][:, row] * factors[1][:, column])
        return result.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    return call


ONE, OTHER = sums.tree_of(sums.sequential(16)), sums.tree_of(sums.pairwise(range(16)))


def surveyed(order_of, rows=3, vocab=2, dtype="float32", known=(), width=16):
    return survey(Bench(lm_head(order_of, dtype), rows, vocab, width, dtype), known)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (1, 4), (4, 1), (3, 2)])
def test_one_order_everywhere(dtype, rows, vocab):
    """Whether masks are asked for one by one, in rows or in columns."""
    tree = sums.simulated(ONE, "float32", dtype)
    found = surveyed(lambda rows, row, column: tree, rows, vocab, dtype)
    (part,) = found.parts
    assert part.order.tree == ONE and part.cells.all() and found.singly == ""
    assert set(part.order.widths) == {24, None} and part.order.rounding is not None


def test_two_products_have_one_order():
    (part,) = surveyed(lambda rows, row, column: simulated(Tree.of(2, [[0, 1]])), width=2).parts
    assert part.order.tree == Tree.of(2, [[0, 1]])


def test_rows_that_change_each_other_are_asked_with_one_mask_a_call():
    one, other = lm_head(lambda *place: simulated(ONE)), lm_head(lambda *place: simulated(OTHER))

    def call(hidden, weight, rows, vocab):
        alike = hidden.shape[1] == 1 and weight.shape[1] == 1
        return (one if alike else other)(hidden, weight, rows, vocab)

    found = survey(Bench(call, 3, 2, 16, "float32"))
    assert [part.order.tree for part in found.parts] == [ONE]
    assert found.singly == "an order from many masks a call did not explain what one mask in all rows gives"


def test_sums_of_blocks_that_are_rounded_more_are_one_order():
    """Blocks in float32, each added to a sum in bfloat16: the first block is the sum so far."""

    def mixed(rows):
        total = 0.0
        for first in range(0, 16, 4):
            block = sums.simulated(sums.tree_of(sums.sequential(4)))(rows[:, first : first + 4])
            total = (total + block).astype(ml_dtypes.bfloat16).astype(np.float64)
        return total

    (part,) = surveyed(lambda rows, row, column: mixed).parts
    assert part.order.tree == sums.tree_of(sums.in_turn(sums.blocks(16, 4)))
    assert sorted(part.order.widths[:-1]) == [8] * 3 + [24] * 11


def test_an_order_that_depends_on_the_position():
    one, other = simulated(ONE), simulated(OTHER)
    found = surveyed(lambda rows, row, column: other if (row, column) == (2, 1) else one)
    assert [(part.order.tree, int(part.cells.sum())) for part in found.parts] == [(ONE, 5), (OTHER, 1)]
    assert found.parts[1].cells[2, 1] and found.singly == "positions have different sums"


def test_the_accumulator_is_measured_and_tells_orders_apart():
    one, other = simulated(ONE), sums.simulated(ONE, "bfloat16", "float32")
    found = surveyed(lambda rows, row, column: other if row == 1 else one)
    assert [part.order.tree for part in found.parts] == [ONE, ONE]
    assert [part.order.widths[0] for part in found.parts] == [24, 8]


def test_a_known_order_is_recognised():
    one, other = simulated(ONE), simulated(OTHER)
    known = [part.order for part in surveyed(lambda rows, row, column: one).parts]
    again = surveyed(lambda rows, row, column: one, rows=5, known=known)
    assert [part.order for part in again.parts] == known and again.calls < 250
    another = surveyed(lambda rows, row, column: other, rows=5, known=known)
    assert [part.order.tree for part in another.parts] == [OTHER]


@pytest.mark.parametrize("kind", [FUSED, EXACT])
def test_products_that_are_added_at_once_have_no_order(kind):
    tree = sums.tree_of(list(range(16)), kind)
    (part,) = surveyed(lambda rows, row, column: simulated(tree)).parts
    assert part.order.tree == tree and part.order.tree.orderless
    assert part.order.widths == ((24,) if kind == FUSED else (None,))


# No order ----------------------------------------------------------------------------------------------
def neumaier(products):
    total = lost = np.zeros_like(products[..., 0])
    for k in range(products.shape[-1]):
        term = products[..., k]
        larger = total + term
        lost = lost + np.where(np.abs(total) >= np.abs(term), (total - larger) + term, (larger - term) + total)
        total = larger
    return total + lost


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("compensated", [kahan, neumaier])
def test_a_compensated_sum_is_no_tree(compensated, dtype):
    """Its masks look like a sum in sequence, or like an exact one."""
    (part,) = surveyed(lambda rows, row, column: lambda products: compensated(np.float32(products)), dtype=dtype).parts
    assert part.order is None and part.cells.all()
    assert part.reason.startswith("the masks ") and part.reason.endswith("it may be a compensated sum")


def test_a_random_order_is_not_repeatable():
    rng = np.random.default_rng(0)

    def any_order(rows):
        return simulated(sums.tree_of(sums.in_turn([int(k) for k in rng.permutation(16)])))(rows)

    (part,) = surveyed(lambda rows, row, column: any_order).parts
    assert part.order is None
    assert part.reason == "it is not repeatable: the same inputs gave other sums when they were asked again"


def test_an_order_that_depends_on_the_values_is_no_tree():
    """Where the largest are added first, masks lose nothing."""

    def by_size(rows):
        return simulated(ONE)(np.take_along_axis(rows, np.argsort(-np.abs(rows), axis=1), axis=1))

    (part,) = surveyed(lambda rows, row, column: by_size).parts
    assert part.order is None
    assert part.reason.startswith("the masks fit a tree") and part.reason.endswith("it may be a compensated sum")


def test_more_orders_than_are_sought_are_said_so():
    trees = [simulated(sums.tree_of(sums.in_turn([*range(k, 16), *range(k)]))) for k in range(1, 9)]
    found = surveyed(lambda rows, row, column: trees[row], rows=8, vocab=1)
    assert [part.order is None for part in found.parts] == [False] * 6 + [True]
    assert found.parts[-1].reason == "there are more than 6 orders at this setting; no more were sought"
    assert found.parts[-1].cells.sum() == 2
    setting = Setting(16, 8, 1)
    run = OrderRun("lm_head", "float32", "eager", [setting], {}, {"mine": {setting: found}}, {"mine": {}})
    assert run.outcome == "changes"


def test_a_survey_asks_no_more_than_it_may():
    with pytest.raises(TooMany, match="its order needs more than 20 probes"):
        survey(Bench(lm_head(lambda *place: simulated(ONE)), 2, 2, 16, "float32"), limit=20)
