"""A damaged golden is refused in a plain sentence; nothing is unpickled or guessed, and no half golden verifies."""

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from golden_files import CASE, MAKER, answered, changed_manifest, crosscheck, write
from safetensors.numpy import load_file, save_file

from crosscheck import digest
from crosscheck.golden_write import write_golden
from crosscheck.goldens import MANIFEST, GoldenError, open_golden

FILE = f"{CASE}.safetensors"


@pytest.fixture
def golden(tmp_path) -> Path:
    assert crosscheck("golden", "write", tmp_path / "g", "--filter", CASE).exit_code == 0
    return tmp_path / "g"


def refused(golden: Path, *said: str) -> None:
    """By verify, and by compare on either side, with exit code 2 and one sentence."""
    for arguments in (("golden", "verify", golden), ("compare", golden, golden)):
        result = crosscheck(*arguments)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1
        assert all(part in result.stderr for part in said), result.stderr


# Files -------------------------------------------------------------------------------------------------
class Unpickled:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return (Path.touch, (self.trace,))


@pytest.mark.parametrize("name", [FILE, MANIFEST])
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_is_never_loaded(golden, tmp_path, name, protocol):
    (golden / name).write_bytes(pickle.dumps(Unpickled(tmp_path / "trace"), protocol))
    refused(golden, name)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("name", [FILE, MANIFEST])
@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 100, 0.5, 0.999])
def test_a_truncated_file_is_named(golden, name, kept):
    content = (golden / name).read_bytes()
    size = kept if isinstance(kept, int) else int(len(content) * kept)
    (golden / name).write_bytes(content[:size])
    refused(golden, name, "truncated")


def test_a_flipped_bit_of_the_data_names_the_array(golden):
    content = (golden / FILE).read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for place, (name, spec) in enumerate(json.loads(content[8:header]).items()):
        changed = bytearray(content)
        changed[header + spec["data_offsets"][0] + place] ^= 1 << place
        (golden / FILE).write_bytes(changed)
        refused(golden, f"{FILE}: {name} has other bits than the manifest's digest says")


@pytest.mark.parametrize("name", [FILE, MANIFEST])
def test_no_flipped_bit_ends_in_a_traceback_and_none_in_the_file_is_equal(golden, name):
    content = (golden / name).read_bytes()
    for place in range(0, min(len(content), 4000), 23):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 7
        (golden / name).write_bytes(changed)
        assert crosscheck("golden", "verify", golden).exit_code in ((1, 2) if name == FILE else (0, 1, 2))


def test_a_missing_file_and_one_too_many_are_named(golden):
    (golden / FILE).rename(golden / "other.safetensors")
    refused(golden, "other.safetensors, which its manifest does not name")
    (golden / "other.safetensors").unlink()
    refused(golden, f"{FILE} is missing")


@pytest.mark.parametrize("path", ["no-such-folder", "file"])
def test_no_golden_at_all(tmp_path, path):
    (tmp_path / "file").write_text("")
    refused(tmp_path / path, "is no golden")


# Arrays ------------------------------------------------------------------------------------------------
def changed_file(golden: Path, change) -> None:
    tensors = load_file(golden / FILE)
    change(tensors)
    save_file(tensors, golden / FILE)


def test_a_missing_array_is_named(golden):
    changed_file(golden, lambda tensors: tensors.pop("inputs.bias"))
    refused(golden, "inputs.bias is missing from")


def test_an_extra_array_is_named(golden):
    changed_file(golden, lambda tensors: tensors.update({"outputs.more": np.zeros(3)}))
    refused(golden, "outputs.more is in no manifest")


def test_an_array_that_one_manifest_has_not_is_named(golden, tmp_path):
    other = tmp_path / "other"
    crosscheck("golden", "write", other, "--filter", CASE)
    changed_file(other, lambda tensors: tensors.pop("inputs.bias"))
    changed_manifest(other, lambda manifest: manifest["cases"][CASE]["arrays"].pop("inputs.bias"))
    result = crosscheck("compare", golden, other)
    assert (result.exit_code, f"inputs.bias is missing from {other}" in result.stdout) == (2, True)


@pytest.mark.parametrize(
    ("replacement", "said"),
    [(np.zeros((3, 33), np.float32), "F32 (3, 33); expected BF16 (3, 33)"),
     (np.zeros((3, 33), np.uint16), "U16 (3, 33); expected BF16 (3, 33)"),
     (np.zeros((3, 33), ml_dtypes.float8_e4m3fn), "F8_E4M3 (3, 33); expected BF16"),
     (np.zeros((33, 3), ml_dtypes.bfloat16), "BF16 (33, 3); expected BF16 (3, 33)")],
)  # fmt: skip
def test_an_array_of_another_kind_than_the_manifest_says(golden, replacement, said):
    changed_file(golden, lambda tensors: tensors.update({"outputs.result": replacement}))
    refused(golden, "outputs.result is " + said)


@pytest.mark.parametrize("array", [np.zeros(3, "V2"), np.zeros(3, ml_dtypes.float8_e5m2), np.zeros(3, complex)])
def test_no_dtype_is_guessed_when_writing(tmp_path, array):
    with pytest.raises(GoldenError, match=r"^outputs\.result of planted has dtype "):
        write(tmp_path / "g", array)
    assert list(tmp_path.iterdir()) == []


def array_said(field, value):
    return lambda manifest: manifest["cases"][CASE]["arrays"]["outputs.result"].update({field: value})


def case_said(field, value):
    return lambda manifest: manifest["cases"][CASE].update({field: value})


@pytest.mark.parametrize(
    "change",
    [
        array_said("dtype", "|V2"), array_said("dtype", "float8_e4m3fn"), array_said("dtype", None),
        array_said("shape", [-3, 33]), array_said("shape", [3.0, 33]), array_said("shape", "3"),
        array_said("shape", [10**30]), array_said("shape", [2**40, 2**40]), array_said("sha256", 5),
        array_said("stored", "blocks"), case_said("file", "../x.safetensors"), case_said("file", "x.pickle"),
        case_said("arrays", []), case_said("op", "selected"), case_said("op", "align"), case_said("digits", "3"),
        case_said("digits", 7), lambda manifest: manifest.update(cases=[1]), lambda manifest: manifest.clear(),
    ],
)  # fmt: skip
def test_a_manifest_that_says_nonsense_is_refused(golden, change):
    changed_manifest(golden, change)
    result = crosscheck("golden", "verify", golden)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("field", ["op", "digits", "file", "implementation", "case", "arrays"])
def test_a_case_without_a_field_is_refused(golden, field):
    changed_manifest(golden, lambda manifest: manifest["cases"][CASE].pop(field))
    refused(golden, f"is damaged: case {CASE}: {field} is missing, or of another type than it should be")


def test_a_manifest_of_any_depth_is_refused(golden):
    (golden / MANIFEST).write_text("[" * 100_000)
    refused(golden, "is no JSON")


def test_a_sampled_row_that_contradicts_its_digest_is_named(tmp_path):
    golden = write(tmp_path / "g", np.arange(12, dtype=np.float32).reshape(4, 3), whole_up_to=40)
    tensors = load_file(golden / "planted.safetensors")
    tensors["outputs.result.sampled"][1, 2] += 1
    save_file(tensors, golden / "planted.safetensors")
    said = digest(tensors["outputs.result.sampled"])
    changed_manifest(
        golden, lambda m: m["cases"]["planted"]["arrays"]["outputs.result"].update(sampled_sha256=said)
    )  # fmt: skip
    with pytest.raises(GoldenError, match=r"row 2 of outputs\.result has another digest"):
        open_golden(golden).load("planted", "outputs.result")


# Writing -----------------------------------------------------------------------------------------------
def interrupted():
    yield answered(np.float32([1]), id="first")
    raise KeyboardInterrupt


@pytest.mark.parametrize("before", [False, True], ids=["new", "forced"])
def test_an_interrupted_write_leaves_what_was_there(tmp_path, before):
    if before:
        write(tmp_path / "g", np.float32([7]))
    with pytest.raises(KeyboardInterrupt):
        write_golden(tmp_path / "g", interrupted(), MAKER, force=True)
    assert [path.name for path in tmp_path.iterdir()] == (["g"] if before else [])
    assert not before or open_golden(tmp_path / "g").array("planted", "outputs.result") == 7


def test_a_killed_write_leaves_nothing_that_verifies(tmp_path):
    program = "\n".join([
        "import time, numpy as np, sys; from pathlib import Path; from golden_files import *",
        "def slow():",
        "    yield answered(np.float32([1]), id='first')",
        "    yield answered(np.float32([1]), id='second')",
        "    print(flush=True); time.sleep(60)",
        "write_golden(Path(sys.argv[1]), slow(), MAKER)",
    ])  # fmt: skip
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "g")], env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "g").exists()
    (left,) = tmp_path.iterdir()
    refused(left, "is no golden")


def test_a_golden_is_replaced_with_force_only(golden):
    before = (golden / MANIFEST).stat().st_ino
    result = crosscheck("golden", "write", golden, "--filter", CASE)
    assert (result.exit_code, "--force" in result.stderr) == (2, True)
    assert (golden / MANIFEST).stat().st_ino == before
    assert crosscheck("golden", "write", golden, "--filter", CASE, "--force").exit_code == 0
    assert crosscheck("golden", "verify", golden).exit_code == 0
    assert [path.name for path in golden.parent.iterdir()] == ["g"]


@pytest.mark.parametrize("target", ["other", "file", "missing/g"])
def test_what_is_no_golden_is_never_replaced(tmp_path, target):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_text("kept")
    (tmp_path / "file").write_text("kept")
    result = crosscheck("golden", "write", tmp_path / target, "--filter", CASE, "--force")
    assert result.exit_code == 2
    assert (tmp_path / "other" / "precious").read_text() == (tmp_path / "file").read_text() == "kept"
