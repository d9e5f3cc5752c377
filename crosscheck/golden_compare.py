"""Comparing two goldens, and one with the contract computed here. Neither needs more than NumPy.

The findings are sentences in three lists, which decide the exit code: `different` outputs (1), what is `unusable`
because there was nothing to compare it with (2), and the cases that are `equal`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from crosscheck import contract
from crosscheck.bits import as_numpy
from crosscheck.calls import contract_result
from crosscheck.cases import OPS, Case, Inputs
from crosscheck.checkpoint import CheckpointError
from crosscheck.golden_arrays import Blocks, Whole, difference
from crosscheck.goldens import Golden, GoldenCase, GoldenError
from crosscheck.gradients import contract_gradients, part_of, wanted
from crosscheck.judge_gradient import gradient_call
from crosscheck.real_input import RealCase
from crosscheck.verdict import counted

__all__ = ["Findings", "compare_goldens", "inputs_of", "verify_golden"]

Heard = Callable[[str], None]


@dataclass
class Findings:
    """Sentences, each opened by a case's id; of `equal` the ids alone.

    Arguments:
        without_gradients: the ids of cases that are unusable for their gradients alone: their results are equal.
    """

    equal: list[str] = field(default_factory=list)
    without_gradients: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """1 where an output differs, 2 where something could not be compared, or nothing was, else 0."""
        if self.different:
            return 1
        return 2 if self.unusable or not self.equal else 0

    @property
    def counts(self) -> str:
        """How many outputs and cases are different, unusable and equal; a case may have several findings."""
        found = (self.different, self.unusable)
        different, unusable = (len({sentence.partition(": ")[0] for sentence in some}) for some in found)
        outputs = counted(len(self.different), "output")
        parts = [
            f"{outputs} of {counted(different, 'case')} with other bits" if different else "",
            f"{counted(unusable, 'case')} not comparable" if unusable else "",
            f"{len(self.without_gradients)} of them equal but for gradients" if self.without_gradients else "",
            f"{counted(len(self.equal), 'case')} equal" if self.equal else "",
        ]
        return ", ".join(filter(None, parts))


def _silent(case_id: str) -> None:
    pass


# Two goldens -------------------------------------------------------------------------------------------
def compare_goldens(
    actual: Golden, expected: Golden, chosen: Callable[[str], bool], heard: Heard = _silent
) -> Findings:
    """Compare the outputs of the chosen cases; inputs first, since outputs of other inputs cannot be compared.

    Raises:
        GoldenError: other contracts, nothing to compare, or a damaged file.
    """
    if actual.contract != expected.contract:
        raise GoldenError(
            f"{actual.folder} follows the contract {actual.contract}, {expected.folder} {expected.contract}: their "
            "bits are not meant to be equal; record both again with one version of crosscheck"
        )
    findings = Findings()
    sides = [{name: case for name, case in golden.cases.items() if chosen(name)} for golden in (actual, expected)]
    if not any(sides):
        raise GoldenError(f"nothing compared: neither {actual.folder} nor {expected.folder} has such a case")
    for golden in (actual, expected):
        golden.check_files()
    for here, there, golden in ((sides[0], sides[1], expected), (sides[1], sides[0], actual)):
        findings.unusable += [f"{name}: {_missing(name, golden)}" for name in here if name not in there]
    for name in sides[0]:
        if name in sides[1]:
            heard(name)
            _compare_case(actual, expected, name, findings)
    return findings


def _missing(name: str, golden: Golden) -> str:
    reason = golden.not_offered.get(name)
    return f"it is missing from {golden.folder}" + (f", not offered: {reason}" if reason else "")


def _compare_case(actual: Golden, expected: Golden, name: str, findings: Findings) -> None:
    """Where one side has gradients and the other none, the results are compared all the same."""
    got, want = actual.cases[name], expected.cases[name]
    lacking = None
    if got.has_gradients != want.has_gradients:
        lacking = expected if got.has_gradients else actual
        got, want = got.without_gradients(), want.without_gradients()
    reasons = _incomparable(got, want, actual, expected) or _other_inputs(actual, expected, got)
    if reasons:
        findings.unusable += [f"{name}: {reason}; outputs are not compared" for reason in reasons]
        return
    differences = [
        f"{name}: outputs.{output}: {text}"
        for output in got.named("outputs")
        if (text := _difference(actual, expected, name, f"outputs.{output}"))
    ]
    findings.different += differences
    if lacking is not None:
        reason = lacking.cases[name].gradients
        where = f"{lacking.folder} ({reason})" if reason else lacking.folder
        findings.unusable.append(f"{name}: its gradients are missing from {where} and are not compared")
    if not differences:
        (findings.equal if lacking is None else findings.without_gradients).append(name)


def _incomparable(got: GoldenCase, want: GoldenCase, actual: Golden, expected: Golden) -> list[str]:
    """Why two cases of one id are not the same call."""
    reasons = [
        f"{field} is {getattr(got, field)} in {actual.folder} and {getattr(want, field)} in {expected.folder}"
        for field in ("op", "digits")
        if getattr(got, field) != getattr(want, field)
    ]
    if bool(got.untold) != bool(want.untold):
        case, golden = (got, actual) if got.untold else (want, expected)
        reasons.append(f"the one in {golden.folder} was not told the digits: {case.untold}")
    for one, other, golden in ((got, want, expected), (want, got, actual)):
        reasons += [f"{array} is missing from {golden.folder}" for array in one.arrays if array not in other.arrays]
    if not reasons and not got.named("outputs"):
        reasons.append("it has no outputs")
    return reasons


def _other_inputs(actual: Golden, expected: Golden, case: GoldenCase) -> list[str]:
    name, reasons = case.id, []
    for array in case.named("inputs"):
        if text := _difference(actual, expected, name, f"inputs.{array}"):
            reasons.append(f"the inputs are not the same: inputs.{array}: {text}")
    return reasons


def _difference(actual: Golden, expected: Golden, case_id: str, array: str) -> str | None:
    return difference(actual.load(case_id, array), expected.load(case_id, array))


# One golden and the contract ---------------------------------------------------------------------------
def verify_golden(golden: Golden, chosen: Callable[[str], bool], heard: Heard = _silent) -> Findings:
    """Compare the outputs of the chosen cases with what the contract gives for their inputs here.

    Raises:
        GoldenError: another contract, nothing to compare, or a damaged file.
    """
    if golden.contract != contract.VERSION:
        raise GoldenError(
            f"{golden.folder} follows the contract {golden.contract}, and this crosscheck {contract.VERSION}: write it "
            "again, or verify it with the version of crosscheck that made it"
        )
    names = [name for name in golden.cases if chosen(name)]
    if not names:
        raise GoldenError(f"nothing compared: {golden.folder} has no such case")
    golden.check_files()
    findings = Findings()
    for name in names:
        heard(name)
        case = golden.cases[name]
        inputs = case.untold or inputs_of(golden, case)
        if isinstance(inputs, str):
            findings.unusable.append(f"{name}: {inputs}")
            continue
        differences = _from_contract(golden, case, inputs)
        findings.different += [f"{name}: {text}" for text in differences]
        if not differences:
            findings.equal.append(name)
    return findings


def inputs_of(golden: Golden, case: GoldenCase) -> Inputs | str:
    """The inputs as they are stored, or, where digests stand for them, drawn or read again; else why not."""
    loaded = {name: golden.load(case.id, f"inputs.{name}") for name in case.named("inputs")}
    whole = {name: x.array() for name, x in loaded.items() if isinstance(x, Whole)}
    if len(whole) == len(loaded):
        return whole
    try:
        made_again = RealCase if case.case.get("kind") == "checkpoint" else Case
        drawn = made_again.from_json(dict(case.case))
        inputs = drawn.inputs()
        if case.has_gradients:
            inputs = {**inputs, "grad": gradient_call(case.op, inputs, drawn.seed)["grad"]}
    except CheckpointError as error:
        return f"the inputs are stored as digests, and cannot be read again: {error}"
    except (KeyError, TypeError, ValueError, AssertionError):
        return "the inputs are stored as digests, and the manifest does not say how to make them again"
    return _if_the_same(inputs, loaded)


def _if_the_same(inputs: Inputs, loaded: Mapping[str, Whole | Blocks]) -> Inputs | str:
    for name in {**loaded, **inputs}:
        one, other = inputs.get(name), loaded.get(name)
        if one is None or other is None:
            return f"the inputs are stored as digests, and made again they have no {name}, or one too many"
        if text := difference(Whole.of(one), other):
            return (
                f"the inputs are stored as digests, and are others when made again here: inputs.{name}: {text}; write "
                "the golden with a larger --whole-up-to"
            )
    return inputs


def _from_contract(golden: Golden, case: GoldenCase, inputs: Inputs) -> list[str]:
    """Sentences on what the stored outputs and the contract's differ in."""
    outputs, arguments = case.named("outputs"), {name: x for name, x in inputs.items() if name != "grad"}
    expected = {"result", *(f"grad.{name}" for name in wanted(arguments) if "grad" in inputs)}
    if set(outputs) != expected or case.op not in OPS:
        raise GoldenError(
            f"{case.id} in {golden.folder} is {case.op} with the outputs {', '.join(outputs) or 'none'}; expected an "
            f"operator of the contract with {', '.join(sorted(expected))}"
        )
    try:
        found = {"result": as_numpy(contract_result(case.op, arguments, case.digits))}
        if "grad" in inputs:
            gradients = contract_gradients(part_of(arguments)[0], inputs["grad"], case.digits)
            found |= {f"grad.{name}": array for name, array in gradients.items()}
    except (TypeError, ValueError, IndexError) as error:
        raise GoldenError(f"{case.id} in {golden.folder} cannot be computed: {error}") from error
    differences = {name: difference(golden.load(case.id, f"outputs.{name}"), Whole.of(found[name])) for name in outputs}
    return [f"outputs.{name}: {text}" for name, text in differences.items() if text]
