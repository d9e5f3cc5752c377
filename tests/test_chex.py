"""Chex tests of the LM head by its bits, on CPU and GPU; docs/chex.md says what each chex assertion lets through."""

import re
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import rlk_jax
from crosscheck import assert_batch_invariant, assert_bits_equal, contract

PAGE = Path(__file__).resolve().parents[1] / "docs" / "chex.md"


class HeadTest(chex.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        self.hidden = rng.standard_normal((3, 64), np.float32)
        self.weight = rng.standard_normal((100, 64), np.float32)
        self.expected = contract.lm_head(self.hidden, self.weight)

    @chex.variants(with_jit=True, without_jit=True, with_device=True, without_device=True)
    def test_head(self):
        logits = self.variant(rlk_jax.lm_head)(self.hidden, self.weight)
        chex.assert_shape(logits, (3, 100))
        chex.assert_type(logits, jnp.float32)
        assert_bits_equal(logits, self.expected)

    @chex.variants(with_jit=True, without_jit=True)
    def test_rows_do_not_depend_on_the_batch(self):
        arrays = jnp.asarray(self.hidden), jnp.asarray(self.weight)
        assert_batch_invariant(self.variant(rlk_jax.lm_head), arrays, ["position", "repeat"])

    def test_one_trace_serves_every_batch_of_a_shape(self):
        chex.clear_trace_counter()

        @jax.jit
        @chex.assert_max_traces(n=1)
        def head(hidden, weight):
            return rlk_jax.lm_head(hidden, weight)

        for rows in ([0, 1, 2], [2, 1, 0]):
            assert_bits_equal(head(self.hidden[rows], self.weight), self.expected[rows])


@pytest.mark.gpu
@pytest.mark.crosscheck_gpu
class HeadOnGpuTest(HeadTest):
    def setUp(self):
        super().setUp()
        self.enter_context(jax.default_device(jax.devices("gpu")[0]))

    @chex.variants(with_jit=True, without_jit=True, with_device=True)
    def test_head_stays_on_the_gpu(self):
        logits = self.variant(rlk_jax.lm_head)(self.hidden, self.weight)
        chex.assert_tree_is_on_device(logits, platform="gpu")
        assert_bits_equal(logits, self.expected)


# The page -------------------------------------------------------------------------------------------------
def float32(bits):
    return np.uint32([bits]).view(np.float32)


ONE, NAN = np.float32([1]), float32(0x7FC00000)
PAIRS = {
    "0.0 and -0.0": (np.float32([0]), -np.float32([0])),
    "NaN and the same NaN": (NAN, NAN.copy()),
    "NaN and one with another payload": (NAN, float32(0x7FC00001)),
    "NaN and one with another sign": (NAN, -NAN),
    "float32 and bfloat16": (ONE, ONE.astype(ml_dtypes.bfloat16)),
    "float32 and float16": (ONE, np.float16([1])),
    "float32 and int32": (ONE, np.int32([1])),
    "() and (1,)": (ONE[0], ONE),
    "() and (3,)": (ONE[0], np.ones(3, np.float32)),
    "(1,) and (3,)": (ONE, np.ones(3, np.float32)),
    "weak and strong float32": (jnp.asarray(1.0), jnp.float32(1)),
    "NumPy and JAX": (ONE, jnp.ones(1)),
    "1.0 and the next float32": (ONE, np.nextafter(ONE, np.float32(2))),
    "1.0 and the next bfloat16": (jnp.bfloat16([1]), jnp.bfloat16([1.0078125])),
    "the largest float32 and infinity": (float32(0x7F7FFFFF), np.float32([np.inf])),
    "the smallest float32 and 0.0": (float32(1), np.float32([0])),
}
ASSERTIONS = {
    "`all_equal`": chex.assert_trees_all_equal,
    "`all_equal`, strict": lambda a, b: chex.assert_trees_all_equal(a, b, strict=True),
    "`all_close`": chex.assert_trees_all_close,
    "`all_close`, strict": lambda a, b: chex.assert_trees_all_close(a, b, strict=True),
    "`all_close_ulp`": chex.assert_trees_all_close_ulp,
    "`shapes_and_dtypes`": chex.assert_trees_all_equal_shapes_and_dtypes,
    "`all_finite`": lambda a, b: chex.assert_tree_all_finite((a, b)),
    "`assert_bits_equal`": assert_bits_equal,
}


def table() -> list[list[str]]:
    """The cells of the page's first table, its head among them."""
    lines = PAGE.read_text().partition("## What each assertion lets through\n")[2].partition("\n## ")[0].splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in row] for row in rows]


def outcome(assertion, pair) -> str:
    try:
        assertion(*pair)
    except AssertionError:
        return "fails"
    except ValueError:
        return "raises"
    return "passes"


def test_the_table_of_the_page_is_whole():
    head, *rows = table()
    assert head[1:] == list(ASSERTIONS)
    assert [row[0] for row in rows] == list(PAIRS)


@pytest.mark.parametrize("pair", PAIRS)
def test_each_cell_of_the_table_is_what_chex_does(pair):
    head, *rows = table()
    (row,) = (row for row in rows if row[0] == pair)
    assert dict(zip(head[1:], row[1:], strict=True)) == {
        name: outcome(assertion, PAIRS[pair]) for name, assertion in ASSERTIONS.items()
    }


def test_the_page_shows_these_tests():
    source = Path(__file__).read_text()
    shown = re.findall(r"^class \w+Test\(.*?(?=^```$)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(shown) == 2
    assert all(text in source for text in shown)
