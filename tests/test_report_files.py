"""A report goes where its path leads, and replaces nothing but a report."""

import json
import stat
from pathlib import Path

import pytest

from crosscheck.checkpoint import CheckpointError, load_tensor
from crosscheck.report_json import check_writable, write_json


def test_a_link_to_a_report_stays_a_link(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("x")
    link.symlink_to(real)
    write_json(link, {"a": 1})
    assert link.is_symlink()
    assert json.loads(real.read_text()) == {"a": 1}


def test_a_device_is_written_to_and_stays_a_device():
    null = Path("/dev/null")
    check_writable(null)
    write_json(null, {"a": 1})
    assert stat.S_ISCHR(null.stat().st_mode)


def test_checking_a_path_leaves_no_trace(tmp_path):
    check_writable(tmp_path / "report.json")
    assert list(tmp_path.iterdir()) == []


def test_a_deeply_nested_index_is_refused_in_a_sentence(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="is no checkpoint index"):
        load_tensor(index, "w")


@pytest.mark.parametrize("shard", ["/etc/passwd", "../model.safetensors"])
def test_an_index_cannot_lead_out_of_its_folder(shard, tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": shard}}))
    with pytest.raises(CheckpointError, match="expected the name of a file beside it"):
        load_tensor(index, "w")
