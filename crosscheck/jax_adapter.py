"""The adapter of rlk_jax. jax is imported by its methods, never with this module."""

import importlib.util
from collections.abc import Callable
from typing import Any, cast

from numpy.typing import NDArray

from crosscheck.backends import Call, NumpyAdapter, implementing, unchecked
from crosscheck.bits import as_numpy
from crosscheck.calls import named_digits
from crosscheck.operators import wanted
from crosscheck.parts import of_parts
from crosscheck.trial import Parts

__all__ = ["JaxAdapter"]

Array = NDArray[Any]


class JaxAdapter:
    """rlk_jax on one platform, which the process's JAX_PLATFORMS fixes."""

    layouts = "NumPy views with these strides handed over: JAX arrays have no strides"

    def __init__(self, device: str, threads: int) -> None:
        self.device = device
        self.jitted: dict[tuple[str, str, int | None], Callable[..., Any]] = {}

    def available(self) -> str | None:
        if importlib.util.find_spec("jax") is None:
            return "jax is not installed"
        import jax

        try:
            jax.devices(self.device)
        except RuntimeError as error:
            return f"jax {jax.__version__} has no {self.device} device: {str(error).splitlines()[0]}"
        return None

    def from_numpy(self, array: Array) -> Any:
        if array.dtype.kind in "iu" and array.itemsize == 8:
            return array.copy()  # JAX without 64-bit mode would narrow the ids before the operator reads them
        return self._put(array.copy())

    def _put(self, array: Array) -> Any:
        import jax

        return jax.device_put(array, jax.devices(self.device)[0])

    def to_numpy(self, array: Any) -> Array:
        return as_numpy(array, "the result")

    def operator(self, op: str) -> Callable[..., Any]:
        import rlk_jax

        return cast(Callable[..., Any], getattr(rlk_jax, op))

    def run(self, op: str, inputs: Call, digits: int | None, mode: str) -> Any:
        import jax

        operator = self.operator(op)
        if mode == "jit":
            compiled = jax.jit(lambda inputs: operator(**inputs, **named_digits(digits)))
            return self.jitted.setdefault(("result", op, digits), compiled)(inputs)
        return operator(**inputs, **named_digits(digits))

    def run_parts(self, op: str, inputs: Call, digits: int | None, mode: str, parts: Parts) -> Any:
        import jax

        import rlk_jax

        def run(inputs: Call) -> Any:
            return of_parts(rlk_jax, op, inputs, named_digits(digits), parts)

        return jax.jit(run)(inputs) if mode == "jit" else run(inputs)

    def gradients(self, op: str, inputs: Call, grad: Any, digits: int | None, mode: str) -> Call:
        import jax

        operator, options = self.operator(op), unchecked(op, digits)

        def of(inputs: Call, grad: Any) -> Call:
            some = {name: inputs[name] for name in wanted(inputs)}
            others = {name: x for name, x in inputs.items() if name not in some}
            _, pullback = jax.vjp(lambda some: operator(**others, **some, **options), some)
            found: Call = pullback(grad)[0]
            return found

        if mode == "jit":
            of = self.jitted.setdefault(("gradients", op, digits), jax.jit(of))
        return of(inputs, grad)

    def place(self, array: Array, layout: str) -> Any:
        view = NumpyAdapter("cpu", 1).place(array, layout)
        return view if array.dtype.kind in "iu" else self._put(view)

    def versions(self) -> dict[str, str]:
        import jax
        import jaxlib

        return {"jax": jax.__version__, "jaxlib": jaxlib.__version__}

    def device_name(self) -> str:
        import jax

        return str(jax.devices(self.device)[0].device_kind)

    def implementation(self, op: str, inputs: Call | None = None, digits: int | None = None) -> str:
        import rlk_jax

        return implementing(rlk_jax, self.device, op, inputs, digits, "xla")
