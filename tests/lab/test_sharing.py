"""MPS around processes that share a GPU; a script stands in for NVIDIA's."""

import os

import pytest

from miras.lab.sharing import CONTROL, FOLDERS, shared_gpu


@pytest.fixture
def control(tmp_path, monkeypatch):
    """Writes a stand-in that notes how it is called, and gives the file of its notes."""

    def made(status):
        notes, script = tmp_path / "notes", tmp_path / CONTROL
        script.write_text(
            f'#!/bin/sh\necho "$@ $(cat) in $CUDA_MPS_PIPE_DIRECTORY" >> {notes}\necho no server >&2\nexit {status}\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return notes

    for name in FOLDERS:
        monkeypatch.delenv(name, raising=False)
    return made


def test_a_server_lives_as_long_as_the_processes(control):
    notes = control(0)
    with pytest.raises(KeyError), shared_gpu(2):
        folder = os.environ[FOLDERS[0]]
        assert os.path.isdir(folder) and notes.read_text().split() == ["-d", "in", folder]
        raise KeyError
    assert notes.read_text().splitlines()[1].split() == ["quit", "in", folder]
    assert not os.path.exists(folder) and not set(FOLDERS) & set(os.environ)


def test_one_process_needs_none_and_one_that_is_there_is_left_alone(control, monkeypatch):
    notes = control(0)
    with shared_gpu(1):
        assert FOLDERS[0] not in os.environ
    monkeypatch.setenv(FOLDERS[0], "theirs")
    with shared_gpu(3):
        assert os.environ[FOLDERS[0]] == "theirs"
    assert os.environ[FOLDERS[0]] == "theirs" and not notes.exists()


def test_a_server_that_does_not_start_is_said(control, capsys):
    notes = control(1)
    with shared_gpu(2):
        assert FOLDERS[0] not in os.environ
    assert capsys.readouterr().out == "MPS does not start, so processes take turns: no server\n"
    assert len(notes.read_text().splitlines()) == 1
