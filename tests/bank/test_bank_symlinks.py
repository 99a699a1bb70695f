"""Symbolic links inside a bank: nothing outside is read, written, made or deleted; the folder itself may be a link."""

import os
import shutil

import pytest
from bank_models import filled, randn, small, whole

from langevin.nn.bank import CorruptDrawError, SampleBank


@pytest.fixture
def bank(tmp_path):
    """Return the folder of a bank of three draws that nobody writes."""
    filled(tmp_path / "bank")[0].close()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("precious")
    return tmp_path / "bank"


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def move_out(path):
    """Put a link in the place of a file, which goes to the folder outside."""
    place = path.parents[1] / "outside" / path.name
    shutil.move(path, place)
    path.symlink_to(place)


def dangling(path):
    path.unlink(missing_ok=True)
    path.symlink_to(path.parents[1] / "outside" / "made by the library")


def relative(path):
    """Put a link to a file of the same folder."""
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def absolute_loop(path):
    path.unlink()
    path.symlink_to(path)


LINKS = [move_out, dangling, relative, absolute_loop]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("use", [SampleBank, lambda path: SampleBank.open(path), lambda path: SampleBank(path, resume=True)])
def test_a_manifest_that_is_a_link_is_refused_by_name(bank, link, use):
    link(bank / "manifest.jsonl")
    before = contents(bank.parent)
    with pytest.raises(ValueError, match=r"bank/manifest\.jsonl is a symbolic link"):
        use(bank)
    assert contents(bank.parent) == before


@pytest.mark.parametrize("link", LINKS)
def test_a_lock_that_is_a_link_is_refused_by_the_writer_and_readers_do_not_look(bank, link):
    link(bank / "lock")
    before = contents(bank.parent)
    with pytest.raises(ValueError, match="bank/lock is a symbolic link"):
        SampleBank(bank, resume=True).add(small(3), step=3)
    assert contents(bank.parent) == before
    assert [step for step, _ in whole(SampleBank.open(bank))] == [0, 1, 2]


@pytest.mark.parametrize("link", LINKS)
def test_a_draw_that_is_a_link_is_refused_by_name_and_the_others_are_read(bank, link):
    link(bank / "draw-00000001.safetensors")
    reader = SampleBank.open(bank)
    with pytest.raises(CorruptDrawError, match=r"draw-00000001\.safetensors is a symbolic link"):
        reader.state_dict(1)
    with pytest.warns(UserWarning, match=r"skipped .*draw-00000001"):
        assert len(list(reader.models(small(), on_error="skip"))) == 2


@pytest.mark.parametrize("link", [move_out, dangling])
def test_a_link_in_the_place_of_the_next_draw_is_replaced_and_not_followed(bank, link):
    path = bank / "draw-00000003.safetensors"
    path.write_text("precious")
    link(path)
    before = contents(bank.parent / "outside")
    with SampleBank(bank, resume=True) as writer:
        writer.add(small(3), step=3)
    assert not path.is_symlink()
    assert contents(bank.parent / "outside") == before
    assert [step for step, _ in whole(SampleBank.open(bank))] == [0, 1, 2, 3]


def test_a_link_in_the_place_of_a_draw_that_update_bn_writes_is_replaced_and_not_followed(bank):
    path = bank / "draw-00000000.1.safetensors"
    path.symlink_to(bank.parent / "outside" / "precious")
    with SampleBank(bank, resume=True) as writer:
        writer.update_bn(small(), [randn(8, 3)])
    assert not path.is_symlink()
    assert (bank.parent / "outside" / "precious").read_text() == "precious"


def test_a_temporary_file_that_is_a_link_is_removed_and_not_what_it_leads_to(bank):
    for number, target in enumerate(("precious", "", "made by the library")):
        (bank / f".draw-00000009.safetensors.{number}-ab.tmp").symlink_to(bank.parent / "outside" / target)
    with SampleBank(bank, resume=True) as writer:
        writer.add(small(3), step=3)
    assert not list(bank.glob(".*"))
    assert contents(bank.parent / "outside") == {"precious": b"precious"}


@pytest.mark.parametrize("target", ["precious", ""])
def test_a_deleted_draw_that_is_a_link_is_removed_and_not_what_it_leads_to(bank, target):
    path = bank / "draw-00000002.safetensors"
    path.unlink()
    path.symlink_to(bank.parent / "outside" / target)
    with SampleBank(bank, resume=True) as writer:
        writer.rewind(2)
    assert not os.path.lexists(path)
    assert contents(bank.parent / "outside") == {"precious": b"precious"}


@pytest.mark.parametrize("name", ["manifest.jsonl", "lock"])
def test_a_link_that_comes_while_the_bank_is_written_ends_the_writing(bank, name):
    writer = SampleBank(bank, resume=True)
    writer.add(small(3), step=3)
    move_out(bank / name)
    before = contents(bank.parent / "outside")
    with pytest.raises((ValueError, RuntimeError), match=f"bank/{name} (is a symbolic link|was deleted or replaced)"):
        writer.add(small(4), step=4)
    assert contents(bank.parent / "outside") == before
    (bank / name).unlink()
    shutil.copy(bank.parent / "outside" / name, bank / name)
    writer.close()
    assert [step for step, _ in whole(SampleBank.open(bank))] == [0, 1, 2, 3]


def test_the_folder_itself_may_be_a_link_which_is_resolved_once(bank, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(bank)
    with SampleBank(link, resume=True) as writer:
        writer.add(small(3), step=3)
        link.unlink()
        link.symlink_to(tmp_path / "outside")  # the writer goes on where it began
        writer.add(small(4), step=4)
    assert [step for step, _ in whole(SampleBank.open(bank))] == [0, 1, 2, 3, 4]
    assert contents(tmp_path / "outside") == {"precious": b"precious"}


def test_a_link_to_a_folder_that_does_not_exist_yet_gives_a_bank_there(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "bank")
    with SampleBank(tmp_path / "link") as writer:
        writer.add(small())
    assert len(SampleBank.open(tmp_path / "disk" / "bank")) == 1
