"""Files are whole or not there; texts are UTF-8 or refused."""

import pytest

from miras.files import check_target, replacing, size, text_of


def test_a_file_takes_its_name_when_it_is_whole(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("before")
    with replacing(path) as fresh:
        fresh.write_text("after")
        assert path.read_text() == "before" and fresh.parent == tmp_path
    assert path.read_text() == "after" and list(tmp_path.iterdir()) == [path]


def test_a_file_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("before")
    with pytest.raises(OSError, match="no space left"), replacing(path) as fresh:
        fresh.write_text("aft")
        raise OSError("no space left")
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_file_that_was_never_begun_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "a.txt"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written_to(tmp_path):
    check_target(tmp_path / "a.txt", "--out")
    with pytest.raises(ValueError, match=r"--out .*none/a.txt: there is no folder .*none"):
        check_target(tmp_path / "none" / "a.txt", "--out")
    with pytest.raises(ValueError, match="is a folder: name a file"):
        check_target(tmp_path, "--out")


def test_texts_are_read_as_they_are_or_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("é\r\n\n".encode())
    assert text_of(path) == "é\r\n\n"
    path.write_bytes(b"n\xe9 ")
    with pytest.raises(ValueError, match=r"a.txt is not UTF-8 text: byte 1 cannot be read"):
        text_of(path)
    with pytest.raises(ValueError, match="there is no file"):
        text_of(tmp_path / "none")


def test_sizes_for_people():
    assert [size(number) for number in (0, 999, 99_999, 100_000, 12_345_678_901)] == [
        "0.0 kB",
        "1.0 kB",
        "100.0 kB",
        "0.1 MB",
        "12,345.7 MB",
    ]
