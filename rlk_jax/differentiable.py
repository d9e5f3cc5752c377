"""What makes an operator differentiable in reverse mode: a gradient is one exact sum and one rounding.

Section 6 of docs/contract.md. `jax.custom_vjp` would add up the gradients of an argument that a batch shares in
floating point, one rounding a member. So an operator's tangent is made of linear terms that are only ever
transposed, and `jax.vmap` turns a batch of terms into one term of more tokens.
The twin is rlk_torch/differentiable.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from rlk_jax.devices import varying, varying_axes
from rlk_jax.refusal import without_gradient

# The kinds of operands of a term: tokens lie along the first axis, or all tokens share it; the arguments that a
# term does not need are cut to nothing, and are there to show that they have a batch.
TOKENS, SHARED, CUT = "tokens", "shared", "cut"


@dataclass(frozen=True)
class Term:
    """One argument's share in the tangent of an operator, linear in the argument's own.

    Arguments:
        operator: its name, for sentences.
        dtype: of the operator's output.
        of_tokens: the argument has a row for each token and the other operands are shared by all, or the
            other way round; None where all of them have.
        needs: the other operands, from the operator's arguments.
        shape: of the output, tokens first, from all operands.
        transpose: (cotangent, the argument's shape and dtype, *operands) -> the argument's gradient.
        kinds: of the argument and of the other operands, from the operator's arguments, where of_tokens cannot say.
        shards: mesh axes along which `transpose` itself agrees and sums, so that operands are left as they are there;
            none where nothing is sharded. Such a term is never batched. None for all others.
        apart: the output varies along these axes; else all their devices share it.
    """

    operator: str
    dtype: Any
    of_tokens: bool | None
    needs: Callable[..., Sequence[Array]] = field(repr=False)
    shape: Callable[..., tuple[int, ...]] = field(repr=False)
    transpose: Callable[..., Array] = field(repr=False)
    kinds: Callable[..., Sequence[str]] | None = field(default=None, repr=False)
    shards: frozenset[str] | None = None
    apart: bool = False


@dataclass(frozen=True)
class Mapped:
    """A term taken one by one along the first axis of some operands, where more tokens cannot say the same."""

    one: "Term | Mapped"
    batched: tuple[bool, ...]
    size: int

    @property
    def operator(self) -> str:
        return self.one.operator

    @property
    def dtype(self) -> Any:
        return self.one.dtype

    @property
    def shards(self) -> frozenset[str] | None:
        return self.one.shards

    @property
    def apart(self) -> bool:
        return self.one.apart

    def shape(self, *operands: Any) -> tuple[int, ...]:
        return (self.size, *self.one.shape(*_of_one(operands, self.batched)))

    def transpose(self, cotangent: Array, tangent: Any, *operands: Array) -> Array:
        """Gradients side by side, or, of an argument that all share, their sum in its dtype."""
        own, *flags = self.batched
        (single,) = _of_one([tangent], [own])

        def transposed(cotangent: Array, *operands: Array) -> Array:
            return self.one.transpose(cotangent, single, *operands)

        gradient, parts = _members(transposed, [cotangent, *operands], [True, *flags])
        if own:
            return lax.map(gradient, parts)
        zero = varying(jnp.zeros(tangent.shape, tangent.dtype), varying_axes(cotangent))
        # Last to first, as torch adds them.
        return lax.scan(lambda total, part: (total + gradient(part), None), zero, parts, reverse=True)[0]


def _of_one(operands: Sequence[Any], batched: Sequence[bool]) -> list[Any]:
    """Shapes of one member: the batch is the first axis of some operands."""
    return [
        jax.ShapeDtypeStruct(x.shape[1:], x.dtype) if moving else x for x, moving in zip(operands, batched, strict=True)
    ]


def _members(
    function: Callable[..., Any], arguments: Sequence[Any], batched: Sequence[bool]
) -> tuple[Callable[[list[Any]], Any], list[Any]]:
    """The function of the batched arguments alone, for loops over their first axis, and those arguments."""

    def one(parts: list[Any]) -> Any:
        rest = iter(parts)
        return function(*(next(rest) if moving else x for x, moving in zip(arguments, batched, strict=True)))

    return one, [x for x, moving in zip(arguments, batched, strict=True) if moving]


def differentiable(operator: Any, terms: Sequence[Term | None]) -> Callable[..., Array]:
    """The operator with a term for each argument that has a gradient; nothing is done for those not asked for."""

    def primal(*arguments: Any) -> Array:
        out = operator(*arguments)
        # Without elements it is zeros, which no device has of its own.
        return varying(out, _axes(next(filter(None, terms)), jax.tree.leaves(arguments))) if out.size == 0 else out

    function = jax.custom_jvp(primal)

    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Any]:
        out = function(*primals)
        shares = [
            _bind(term, tangent, primals, position)
            for position, (term, tangent) in enumerate(zip(terms, tangents, strict=True))
            if term is not None and isinstance(tangent, Array)
        ]
        return out, sum(shares[1:], shares[0]) if shares else jnp.zeros_like(out)

    function.defjvp(rule, symbolic_zeros=True)
    return function


def _bind(term: Term, tangent: Array, primals: tuple[Any, ...], position: int) -> Array:
    needed = list(term.needs(*primals))
    others = jax.tree.leaves([x for i, x in enumerate(primals) if i != position])
    cut = [] if term.shards is not None else [x for x in others if all(x is not y for y in needed)]
    cut = [lax.slice(x, (0,) * x.ndim, (0,) * x.ndim) for x in cut]
    if term.kinds is None:
        own, other = {True: (TOKENS, SHARED), False: (SHARED, TOKENS), None: (TOKENS, TOKENS)}[term.of_tokens]
        kinds = (own, *[other] * len(needed), *[CUT] * len(cut))
    else:
        kinds = (*term.kinds(*primals), *[CUT] * len(cut))
    operands = [tangent, *needed, *cut]
    axes = frozenset[str]().union(*map(varying_axes, [*operands, *others])) - (term.shards or frozenset())
    return _linear.bind(*(varying(x, axes) for x in operands), term=term, kinds=kinds)


_linear = Primitive("rlk_linear_term")


def _needed(kinds: tuple[str, ...], operands: Sequence[Any]) -> list[Any]:
    return [x for x, kind in zip(operands, kinds, strict=True) if kind != CUT]


@_linear.def_abstract_eval
def _(*operands: Any, term: Term | Mapped, kinds: tuple[str, ...]) -> Any:
    """Varying along the mesh axes that the term says; nothing else is said of sharding."""
    shape = term.shape(*_needed(kinds, operands))
    sharding = NamedSharding(operands[0].sharding.mesh, PartitionSpec(*[None] * len(shape)))
    out = operands[0].update(shape=shape, dtype=jnp.dtype(term.dtype), weak_type=False, sharding=sharding)
    axes = _axes(term, operands)
    return out if axes == varying_axes(out) else out.update(manual_axis_type=out.manual_axis_type.update(varying=axes))


def _axes(term: Term | Mapped, operands: Sequence[Any]) -> frozenset[str]:
    """Mesh axes along which the output varies: those of the operands, but for the term's shards."""
    shards = term.shards or frozenset()
    axes = frozenset[str]().union(*map(varying_axes, operands)) - shards
    return axes | shards if term.apart else axes


def _forward_mode(*_: Any, term: Term | Mapped, **__: Any) -> Any:
    raise NotImplementedError(
        f"forward mode (jax.jvp, jax.linearize) of {term.operator} is not offered: use jax.grad or jax.vjp"
    )


def _second_derivative(*_: Any, term: Term | Mapped, **__: Any) -> Any:
    raise NotImplementedError(no_second_derivative(term.operator))


_linear.def_impl(_forward_mode)
mlir.register_lowering(_linear, _forward_mode)
ad.primitive_jvps[_linear] = _second_derivative


def _transpose(cotangent: Any, tangent: Any, *operands: Any, term: Term | Mapped, kinds: tuple[str, ...]) -> list[Any]:
    if isinstance(cotangent, ad.Zero):
        return [ad.Zero(tangent.aval), *[None] * len(operands)]
    _, *needed = _needed(kinds, (tangent, *operands))
    gradient = term.transpose(cotangent, tangent.aval, *needed)
    # Of no rows it is zeros, which no device has of its own.
    return [varying(gradient, varying_axes(tangent.aval)), *[None] * len(operands)]


ad.primitive_transposes[_linear] = _transpose


def _batch(
    operands: Sequence[Any], dims: Sequence[int | None], *, term: Term | Mapped, kinds: tuple[str, ...]
) -> tuple[Array, int]:
    """A batch of tokens is more tokens. The rest is taken one by one: what tokens share has a gradient for each."""
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    operands = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True)]
    moving = [d is not None for d in dims]
    shared = any(moves and kind == SHARED for moves, kind in zip(moving, kinds, strict=True))
    if shared or (kinds[0] == TOKENS and not moving[0]):
        mapped = Mapped(term, tuple(_needed(kinds, moving)), size)
        return _linear.bind(*operands, term=mapped, kinds=kinds), 0
    depths, levels = _depths(term, kinds)
    shape = term.shape(*_needed(kinds, _of_one(operands, moving)))
    more = [
        _more_tokens(x, moves, size, depth) if kind == TOKENS else x
        for x, moves, kind, depth in zip(operands, moving, kinds, depths, strict=True)
    ]
    out = _linear.bind(*more, term=term, kinds=kinds)
    return out.reshape(*shape[:levels], size, *shape[levels:]), levels


def _depths(term: Term | Mapped, kinds: tuple[str, ...]) -> tuple[list[int], int]:
    """How many axes lie before the tokens of each operand, and of the output, since the term is taken one by one."""
    needed = [0] * sum(kind != CUT for kind in kinds)
    levels = 0
    while isinstance(term, Mapped):
        needed = [depth + flag for depth, flag in zip(needed, term.batched, strict=True)]
        term, levels = term.one, levels + 1
    rest = iter(needed)
    return [0 if kind == CUT else next(rest) for kind in kinds], levels


def _more_tokens(x: Array, moves: bool, size: int, depth: int) -> Array:
    """The batch, in front or to be made, becomes more tokens, which lie behind `depth` axes."""
    x = (
        jnp.moveaxis(x, 0, depth)
        if moves
        else jnp.broadcast_to(jnp.expand_dims(x, depth), (*x.shape[:depth], size, *x.shape[depth:]))
    )
    before, (count, tokens, *rest) = x.shape[:depth], x.shape[depth:]
    return x.reshape(*before, count * tokens, *rest)


batching.primitive_batchers[_linear] = _batch


def more_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """function(rows [N, ...], *others) under `jax.vmap`: a batch of rows is more rows, others go one by one.

    Rows may be several arrays, and so may what the function gives, each with a row for each of theirs.
    """
    batched = jax.custom_batching.custom_vmap(function)

    @batched.def_vmap
    def rule(size: int, in_batched: Any, rows: Any, *others: Any) -> tuple[Any, Any]:
        if not any(jax.tree.leaves(in_batched[1:])):

            def together(x: Array, moving: bool) -> Array:
                x = x if moving else jnp.broadcast_to(x, (size, *x.shape))
                return x.reshape(size * x.shape[1], *x.shape[2:])

            first, moving = jax.tree.leaves(rows)[0], jax.tree.leaves(in_batched[0])[0]
            out = batched(jax.tree.map(together, rows, in_batched[0]), *others)
            out = jax.tree.map(lambda x: x.reshape(size, first.shape[int(moving)], *x.shape[1:]), out)
        else:
            leaves, tree = jax.tree.flatten((rows, *others))

            def of_leaves(*leaves: Array) -> Any:
                return batched(*jax.tree.unflatten(tree, leaves))

            out = lax.map(*_members(of_leaves, leaves, jax.tree.leaves(in_batched)))
        return out, jax.tree.map(lambda _: True, out)

    return batched


def one_by_one(gradient: Callable[..., Array]) -> Callable[..., Array]:
    """A gradient under `jax.vmap`: each member of a batch has its own."""
    return jax.custom_batching.sequential_vmap(gradient)


def gradient_only(gradient: Callable[..., Array], operator: str) -> Callable[..., Array]:
    """A gradient whose own gradient is refused."""
    return without_gradient(gradient, no_second_derivative(operator))


def no_second_derivative(operator: str) -> str:
    return f"second derivatives of {operator} are not offered: use jax.lax.stop_gradient on its gradient"
