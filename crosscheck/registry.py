"""The backends that users can name, and how the process of each is set up."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

__all__ = ["BACKENDS", "FEW", "Backend"]

FEW = 12  # cases: of so few, every mode takes all gradients, and tries all transforms


@dataclass(frozen=True)
class Backend:
    """A name that users type, and how its process is set up.

    Arguments:
        factory: "module:class" of the adapter.
        device: for the adapter.
        modes: the ways to run an operator.
        compiling: those of them in which each new shape costs a compilation.
        settings: environment variables of the backend's process.
        target: of a candidate, "module:function" of what it calls; else empty.
    """

    name: str
    factory: str
    device: str
    modes: tuple[str, ...]
    compiling: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    target: str = ""

    def takes_gradients(self, mode: str, seed: int, cases: int) -> bool:
        """Whether a mode takes the gradients of a case, by the case's seed and by how many cases there are in all.

        A gradient costs a compilation of a second and more. Where all modes compile, and there are more than a FEW
        cases, they share a quarter of the cases out, by bits that fall evenly on operators and dtypes of the default
        suite, and leave the others; but a candidate has each of its cases taken in one mode.
        """
        if cases <= FEW or len(self.compiling) < len(self.modes):
            return True
        turns, first = (len(self.modes), 0) if self.target else (4 * len(self.modes), 2)
        turn = (seed >> 30) % turns - first
        return 0 <= turn < len(self.modes) and self.modes[turn] == mode

    def is_thorough(self, mode: str, seed: int) -> bool:
        """Whether a mode tries all transforms of a thorough case: where all modes compile, they take turns."""
        return len(self.compiling) < len(self.modes) or self.modes[(seed >> 29) % len(self.modes)] == mode

    def only(self, which: str) -> "Backend":
        """With its eager mode alone, or with those alone that compile: "eager" or "compiled"."""
        modes = tuple(mode for mode in self.modes if (mode == "eager") == (which == "eager"))
        return replace(self, modes=modes, compiling=tuple(mode for mode in self.compiling if mode in modes))

    def environment(self, threads: int) -> dict[str, str]:
        """Variables that libraries read when they start; NPROC is XLA's."""
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")
        return {**{name: str(threads) for name in names}, **dict(self.settings)}


def _torch(name: str, device: str) -> Backend:
    settings = (("TORCHINDUCTOR_COMPILE_THREADS", "1"),)
    return Backend(name, "crosscheck.torch_adapter:TorchAdapter", device, ("eager", "compile"), ("compile",), settings)


def _jax(name: str, device: str, platforms: str) -> Backend:
    """JAX compiles eager calls, too. On a GPU it takes memory as it needs it, since others need some."""
    settings = (("JAX_PLATFORMS", platforms), ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"))
    modes = ("eager", "jit")
    return Backend(name, "crosscheck.jax_adapter:JaxAdapter", device, modes, modes, settings)


BACKENDS: Mapping[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("numpy", "crosscheck.backends:NumpyAdapter", "cpu", ("eager",)),
        _torch("torch-cpu", "cpu"),
        _torch("torch-cuda", "cuda"),
        _jax("jax-cpu", "cpu", "cpu"),
        _jax("jax-gpu", "cuda", "cuda,cpu"),
    )
}
