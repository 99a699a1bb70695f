"""The data sets: every format, every place, the download from a server of the test's own, and every way a file can be wrong."""

import gzip
import hashlib
import http.server
import io
import struct
import tarfile
import threading
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from langevin_paper import data
from langevin_paper.data import KEYS, KNOWN, cache_folder, load

ROWS = {"mnist": (20, 10), "cifar10": (20, 10), "cifar100": (100, 10), "cifar10-12k": (20, 10), "cifar100-12k": (100, 10)}
MEMBERS = {
    "cifar10": ([f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)], "cifar-10-batches-bin/test_batch.bin", 1),
    "cifar100": (["cifar-100-binary/train.bin"], "cifar-100-binary/test.bin", 2),
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Give each test an empty cache, no data folder, no way to the network."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LANGEVIN_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    for name, known in KNOWN.items():
        monkeypatch.setitem(KNOWN, name, replace(known, url="http://127.0.0.1:9/"))


@pytest.fixture
def small(monkeypatch):
    """Make every set but landsat small."""
    for name, rows in ROWS.items():
        monkeypatch.setitem(KNOWN, name, replace(KNOWN[name], rows=rows))


def content(name, shift=0):
    known = KNOWN[name]
    arrays = {}
    for split, rows in zip(("train", "test"), ROWS[name], strict=True):
        pixels = np.arange(rows * np.prod(known.shape)).reshape(rows, *known.shape)
        arrays[f"x_{split}"] = ((pixels * 7 + pixels // 251 + shift) % 256).astype(np.uint8)
        arrays[f"y_{split}"] = ((np.arange(rows) + 3) % len(known.labels)).astype(np.uint8)
    return arrays


def idx(array):
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def tar(members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, raw in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return stream.getvalue()


def cifar_members(name, arrays):
    train, test, num_labels = MEMBERS[name]
    coarse = [np.full((len(arrays["y_train"]), 1), 99, np.uint8), np.full((len(arrays["y_test"]), 1), 99, np.uint8)]
    records = [
        np.concatenate([*[c] * (num_labels - 1), arrays[f"y_{s}"][:, None], arrays[f"x_{s}"].reshape(len(c), -1)], 1)
        for s, c in zip(("train", "test"), coarse, strict=True)
    ]
    parts = np.split(records[0], len(train))
    return {"readme.html": b"<html>", **{n: p.tobytes() for n, p in zip(train, parts, strict=True)}, test: records[1].tobytes()}


def official(name, arrays):
    """Return the official files of a set, by name."""
    if name == "mnist":
        return {file: gzip.compress(idx(arrays[key])) for file, key in zip(KNOWN[name].files, KEYS, strict=True)}
    return {next(iter(KNOWN[name].files)): tar(cifar_members(name, arrays))}


def put(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for file, raw in files.items():
        (folder / file).write_bytes(raw)
    return folder


def npz(arrays, save=np.savez_compressed):
    stream = io.BytesIO()
    save(stream, **arrays)
    return stream.getvalue()


def assert_same(found, arrays):
    for key in KEYS:
        tensor = getattr(found, key)
        assert tensor.dtype == (torch.uint8 if key[0] == "x" else torch.int64)
        assert tensor.is_contiguous()
        assert np.array_equal(tensor.numpy(), arrays[key])


@pytest.fixture
def server(monkeypatch):
    """Serve a dict of files, or a status code, on 127.0.0.1; it counts what it was asked for."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path.lstrip("/"))
            raw = files.get(asked[-1], 404)
            self.send_response(raw if isinstance(raw, int) else 200)
            if not isinstance(raw, int):
                self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(b"an error page" if isinstance(raw, int) else raw)

        def log_message(self, *args):
            pass

    files, asked = {}, []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        def serve(name, raws):
            files.update(raws)
            sums = {file: hashlib.md5(raw).hexdigest() for file, raw in raws.items()}
            monkeypatch.setitem(KNOWN, name, replace(KNOWN[name], url=f"http://127.0.0.1:{httpd.server_port}/", files=sums))
            return files, asked

        yield serve
        httpd.shutdown()
        thread.join()


# what is promised of the real sets


def test_landsat_ships_with_the_package(monkeypatch, tmp_path):
    monkeypatch.setenv("LANGEVIN_DATA", str(tmp_path / "nowhere"))
    landsat = load("landsat")
    assert (landsat.x_train.shape, landsat.x_test.shape) == ((4435, 36), (2000, 36))
    assert (landsat.y_train.shape, landsat.y_test.shape) == ((4435,), (2000,))
    assert landsat.x_train.dtype == torch.uint8
    assert landsat.y_train.dtype == torch.int64
    # The counts that UCI publishes for classes 1, 2, 3, 4, 5 and 7.
    assert landsat.y_train.bincount().tolist() == [1072, 479, 961, 415, 470, 1038]
    assert landsat.y_test.bincount().tolist() == [461, 224, 397, 211, 237, 470]
    assert (landsat.name, landsat.num_classes, landsat.source) == ("landsat", 6, "package")
    assert "CC BY 4.0" in landsat.attribution
    assert landsat.sha256 == "60beb7e17fa210ba599325d6c82d016d54ec8afbb5206b1cccc23cceaa7f7572"


def test_the_real_names_demand_the_real_sizes():
    assert {name: (known.rows, known.shape, len(known.labels)) for name, known in KNOWN.items()} == {
        "landsat": ((4435, 2000), (36,), 6),
        "mnist": ((60_000, 10_000), (28, 28), 10),
        "cifar10": ((50_000, 10_000), (3, 32, 32), 10),
        "cifar100": ((50_000, 10_000), (3, 32, 32), 100),
        "cifar10-12k": ((10_000, 2000), (3, 32, 32), 10),
        "cifar100-12k": ((10_000, 2000), (3, 32, 32), 100),
    }


@pytest.mark.parametrize("name", ROWS)
def test_a_reduced_set_does_not_pass_for_the_real_one(name, tmp_path):
    put(tmp_path, {f"{name}.npz": npz(content(name))})
    with pytest.raises(
        ValueError, match=rf"{name}.npz needs x_train of shape \({KNOWN[name].rows[0]}, .*, got \({ROWS[name][0]}, "
    ):
        load(name, folder=tmp_path)


# formats


@pytest.mark.parametrize("name", ROWS)
def test_an_npz_is_read_as_it_is(name, tmp_path, small):
    arrays = content(name)
    put(tmp_path, {f"{name}.npz": npz(arrays)})
    found = load(name, folder=tmp_path)
    assert_same(found, arrays)
    assert (found.name, found.num_classes, found.source) == (name, len(KNOWN[name].labels), str(tmp_path / f"{name}.npz"))


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100"])
def test_the_official_files_give_what_the_npz_gives(name, tmp_path, small):
    arrays = content(name)
    a = load(name, folder=put(tmp_path / "official", official(name, arrays)))
    b = load(name, folder=put(tmp_path / "npz", {f"{name}.npz": npz(arrays, np.savez)}))
    assert_same(a, arrays)
    assert a.sha256 == b.sha256
    assert a.source == str(tmp_path / "official" / (next(iter(KNOWN[name].files)) if name != "mnist" else ""))


def test_colour_last_and_wide_labels_are_brought_to_the_one_layout(tmp_path, small):
    arrays = content("cifar10")
    stored = {key: np.moveaxis(value, 1, -1) if key[0] == "x" else value.astype(np.int64) for key, value in arrays.items()}
    found = load("cifar10", folder=put(tmp_path / "last", {"cifar10.npz": npz(stored)}))
    assert_same(found, arrays)
    assert found.sha256 == load("cifar10", folder=put(tmp_path / "first", {"cifar10.npz": npz(arrays)})).sha256


@pytest.mark.parametrize("key", KEYS)
def test_the_sum_sees_each_array(key, tmp_path, small):
    arrays = content("mnist")
    before = load("mnist", folder=put(tmp_path, {"mnist.npz": npz(arrays)})).sha256
    arrays[key][0] = 9 - arrays[key][0]
    assert load("mnist", folder=put(tmp_path, {"mnist.npz": npz(arrays)})).sha256 != before


# places


def test_the_order_of_places(tmp_path, small, monkeypatch, server):
    folder, environment = tmp_path / "folder", tmp_path / "environment"
    sets = [content("mnist", shift) for shift in range(5)]
    for place in (folder, environment):
        place.mkdir()
    monkeypatch.setenv("LANGEVIN_DATA", str(environment))
    _, asked = server("mnist", official("mnist", sets[4]))

    def first():
        return int(load("mnist", folder=folder).x_train[0, 0, 0])

    assert first() == 4  # the download, which is now in the cache
    assert asked == list(KNOWN["mnist"].files)
    assert first() == 4
    put(cache_folder(), {"mnist.npz": npz(sets[3])})
    assert first() == 3
    put(environment, {"mnist.npz": npz(sets[2])})
    assert first() == 3  # the folder given stands in for the environment's
    assert int(load("mnist").x_train[0, 0, 0]) == 2
    put(folder, official("mnist", sets[1]))
    assert first() == 1
    put(folder, {"mnist.npz": npz(sets[0])})
    assert first() == 0
    assert len(asked) == 4


def test_the_cache_is_where_xdg_says(tmp_path, monkeypatch):
    assert cache_folder() == tmp_path / "home" / "langevin" / "data"
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == tmp_path / ".cache" / "langevin" / "data"


def test_a_reduced_set_is_used_only_when_asked_for(tmp_path, small):
    put(tmp_path, {"cifar10-12k.npz": npz(content("cifar10-12k"))})
    assert load("cifar10-12k", folder=tmp_path).name == "cifar10-12k"
    with pytest.raises(FileNotFoundError):
        load("cifar10", folder=tmp_path)


# the download


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100"])
def test_a_download_lands_in_the_cache_and_is_not_repeated(name, small, server):
    arrays = content(name)
    raws = official(name, arrays)
    _, asked = server(name, raws)
    for _ in range(2):
        assert_same(load(name), arrays)
    assert asked == list(raws)
    assert {path.name: path.read_bytes() for path in cache_folder().iterdir()} == raws


def test_only_the_missing_files_are_downloaded(small, server):
    arrays = content("mnist")
    raws = official("mnist", arrays)
    _, asked = server("mnist", raws)
    put(cache_folder(), dict(list(raws.items())[:3]))
    assert_same(load("mnist"), arrays)
    assert asked == list(raws)[3:]


@pytest.mark.parametrize("change", [lambda raw: raw[:-1], lambda raw: raw + b"x", lambda raw: b""], ids=["short", "long", "empty"])
def test_a_wrong_checksum_leaves_no_file(change, small, server):
    raws = official("cifar10", content("cifar10"))
    files, _ = server("cifar10", raws)
    (file,) = raws
    files[file] = change(raws[file])
    expected, got = KNOWN["cifar10"].files[file], hashlib.md5(files[file]).hexdigest()
    with pytest.raises(
        ValueError, match=f"^{file} from http://127.0.0.1:.*/{file} needs md5 {expected}, got {got}; it was removed$"
    ):
        load("cifar10")
    assert list(cache_folder().iterdir()) == []
    files[file] = raws[file]
    assert load("cifar10").source == str(cache_folder() / file)


@pytest.mark.parametrize(("status", "text"), [(404, "HTTP Error 404"), (503, "HTTP Error 503")])
def test_a_server_error_says_what_to_put_where(status, text, small, server, tmp_path):
    raws = official("mnist", content("mnist"))
    files, _ = server("mnist", raws)
    files[list(raws)[1]] = status
    with pytest.raises(FileNotFoundError, match=text):
        load("mnist", folder=tmp_path)
    assert [path.name for path in cache_folder().iterdir()] == list(raws)[:1]  # what came whole is kept


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100"])
def test_offline_says_what_to_put_where(name, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        load(name, folder=tmp_path)
    known = KNOWN[name]
    parts = [str(tmp_path), str(cache_folder()), f"{name}.npz", *KEYS, *known.files, known.url, "LANGEVIN_DATA", "refused"]
    assert [part for part in parts if part not in str(caught.value)] == []
    assert list(cache_folder().iterdir()) == []


def test_a_cache_that_cannot_be_made_is_told(tmp_path, small, server):
    server("mnist", official("mnist", content("mnist")))
    (tmp_path / "home").write_text("in the way")
    with pytest.raises(FileNotFoundError, match=r"download failed \(.*Not a directory"):
        load("mnist")


def test_a_reduced_set_has_no_download(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"'cifar100-12k'\) found no data in .*, and it has no download.*cifar100-12k.npz"):
        load("cifar100-12k")


# bad arguments


@pytest.mark.parametrize("name", ["MNIST", "", "cifar-10", None])
def test_an_unknown_name_lists_the_known_ones(name):
    known = "landsat, mnist, cifar10, cifar100, cifar10-12k, cifar100-12k"
    with pytest.raises(ValueError, match=rf"^load\(name=...\) needs one of {known}, got {name!r}$"):
        load(name)


def test_a_folder_that_is_not_there_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"^load\(folder=...\) needs a folder that exists, got '.*/typo'$"):
        load("mnist", folder=tmp_path / "typo")
    monkeypatch.setenv("LANGEVIN_DATA", str(tmp_path / "typo"))
    with pytest.raises(FileNotFoundError, match=r"^LANGEVIN_DATA needs a folder that exists, got '.*/typo'$"):
        load("mnist")


# bad files


def changed(name, **arrays):
    return npz({**content(name), **arrays})


def plain():
    return npz(content("mnist"), np.savez)


def npy_changed(old, new):
    """Return an npz, sums right, whose y_test has other bytes in its header."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(plain())) as source, zipfile.ZipFile(stream, "w") as target:
        for name in source.namelist():
            raw = source.read(name)
            target.writestr(name, raw.replace(old, new) if name == "y_test.npy" else raw)
    return stream.getvalue()


BAD_NPZ = {
    "not a zip": (lambda: b"no zip at all", "a readable npz file, got BadZipFile"),
    "empty": (lambda: b"", "a readable npz file, got BadZipFile"),
    "a pickle": (lambda: b"\x80\x04K\x01.", "a readable npz file, got BadZipFile"),
    "cut short": (lambda: npz(content("mnist"))[:-100], "a readable npz file, got BadZipFile"),
    "missing key": (
        lambda: npz({k: v for k, v in content("mnist").items() if k != "y_test"}),
        "the arrays x_train, y_train, x_test, y_test, got no y_test",
    ),
    "objects": (
        lambda: changed("mnist", y_test=np.array([None] * 10)),
        "a plain array y_test, got ValueError: Object arrays cannot",
    ),
    "huge": (lambda: npy_changed(b"(10,), }", b"(9000,)}"), "a plain array y_test, got ValueError"),
    "open bracket": (lambda: npy_changed(b"(10,), }", b"(10,(, }"), "a plain array y_test, got "),
    "bad zip sum": (
        lambda: plain().replace(content("mnist")["x_test"][5].tobytes(), bytes(784)),
        "a readable npz file, got BadZipFile",
    ),
    "flat": (lambda: changed("mnist", x_train=np.zeros((20, 784), np.uint8)), r"x_train of shape \(20, 28, 28\), got \(20, 784\)"),
    "few rows": (lambda: changed("mnist", x_test=np.zeros((9, 28, 28), np.uint8)), r"x_test of shape \(10, 28, 28\), got \(9, 28"),
    "column": (lambda: changed("mnist", y_test=np.zeros((10, 1), np.uint8)), r"y_test of shape \(10,\), got \(10, 1\)"),
    "floats": (lambda: changed("mnist", x_train=np.zeros((20, 28, 28), np.float32)), "x_train to be uint8, got float32"),
    "float labels": (lambda: changed("mnist", y_train=np.arange(20.0) % 10), "y_train to be integers, got float64"),
    "label 10": (lambda: changed("mnist", y_test=np.arange(10) + 1), r"y_test in 0..9 \(10 labels\), got \[10\]"),
    "label -1": (lambda: changed("mnist", y_test=np.arange(10) - 1), r"y_test in 0..9 \(10 labels\), got \[-1\]"),
    "a gap": (lambda: changed("mnist", y_train=np.arange(20) % 8), r"y_train to have every label, got none of \[8, 9\]"),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_a_bad_npz_is_named(case, tmp_path, small):
    make, message = BAD_NPZ[case]
    put(tmp_path, {"mnist.npz": make()})
    with pytest.raises(ValueError, match=rf"^{tmp_path}/mnist.npz needs (to be )?{message}"):
        load("mnist", folder=tmp_path)


def images():
    return idx(content("mnist")["x_train"])


def with_bad_sum(raw):
    return raw[:-8] + bytes([raw[-8] ^ 1]) + raw[-7:]


BAD_IDX = {
    "not gzip": (images, "to be a readable gzip file, got BadGzipFile"),
    "cut short": (lambda: gzip.compress(images())[:-20], "to be a readable gzip file, got EOFError"),
    "garbled": (lambda: gzip.compress(images())[:20] + b"\xff" * 400, "to be a readable gzip file, got error"),
    "bad sum": (lambda: with_bad_sum(gzip.compress(images())), "to be a readable gzip file, got BadGzipFile: CRC check failed"),
    "empty": (lambda: gzip.compress(b""), "the magic number 00000803, got nothing"),
    "labels": (lambda: gzip.compress(idx(content("mnist")["y_train"])), "the magic number 00000803, got 00000801"),
    "half a header": (lambda: gzip.compress(images()[:9]), r"the header of shape \(20, 28, 28\), got 0000001400"),
    "other size": (lambda: gzip.compress(idx(content("mnist")["x_test"])), r"the header of shape \(20, 28, 28\), got 0000000a"),
    "too few": (lambda: gzip.compress(images()[:-1]), "15696 bytes, got 15695"),
    "too many": (lambda: gzip.compress(images() + b"x"), "15696 bytes, got more"),
}


@pytest.mark.parametrize("case", BAD_IDX)
def test_a_bad_idx_file_is_named(case, tmp_path, small):
    make, message = BAD_IDX[case]
    put(tmp_path, {**official("mnist", content("mnist")), "train-images-idx3-ubyte.gz": make()})
    with pytest.raises(ValueError, match=rf"^{tmp_path}/train-images-idx3-ubyte.gz needs {message}"):
        load("mnist", folder=tmp_path)


def test_a_bad_label_in_an_idx_file_is_named(tmp_path, small):
    arrays = {**content("mnist"), "y_test": np.full(10, 11, np.uint8)}
    with pytest.raises(ValueError, match=rf"^{tmp_path} needs y_test in 0..9 \(10 labels\), got \[11\]$"):
        load("mnist", folder=put(tmp_path, official("mnist", arrays)))


def members(**changes):
    """Return CIFAR-10's members with some replaced, or left out when None."""
    prefix = "cifar-10-batches-bin/"
    found = {**cifar_members("cifar10", content("cifar10")), **{f"{prefix}{k}.bin": v for k, v in changes.items()}}
    return tar({name: raw for name, raw in found.items() if raw is not None})


def linked():
    """Return an archive whose test batch is a link to a file outside."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        info = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc/passwd", 30730
        archive.addfile(info)
    return stream.getvalue()


def bad_label():
    return {**content("cifar10"), "y_train": np.full(20, 77, np.uint8)}


BAD_TAR = {
    "not gzip": (lambda: b"no archive", "to be a readable tar.gz file, got BadGzipFile"),
    "not tar": (lambda: gzip.compress(b"no archive" * 100), "to be a readable tar.gz file, got ReadError"),
    "cut short": (lambda: members()[:-200], "to be a readable tar.gz file, got"),
    "bad sum": (lambda: with_bad_sum(members()), "to be a readable tar.gz file, got BadGzipFile: CRC check failed"),
    "missing member": (lambda: members(data_batch_3=None), "the members .*, got no cifar-10-batches-bin/data_batch_3.bin"),
    "short member": (
        lambda: members(test_batch=b"123"),
        "a file cifar-10-batches-bin/test_batch.bin of 30730 bytes, got type b'0' of 3",
    ),
    "a link": (linked, "a file cifar-10-batches-bin/test_batch.bin of 30730 bytes, got type b'2' of 30730"),
    "bad label": (lambda: tar(cifar_members("cifar10", bad_label())), r"y_train in 0..9 \(10 labels\), got \[77\]"),
}


@pytest.mark.parametrize("case", BAD_TAR)
def test_a_bad_archive_is_named(case, tmp_path, small):
    make, message = BAD_TAR[case]
    put(tmp_path, {"cifar-10-binary.tar.gz": make()})
    with pytest.raises(ValueError, match=rf"^{tmp_path}/cifar-10-binary.tar.gz needs {message}"):
        load("cifar10", folder=tmp_path)


def test_the_python_archive_with_its_pickles_is_not_read(tmp_path, small):
    put(tmp_path, {"cifar-10-python.tar.gz": members()})
    with pytest.raises(FileNotFoundError, match=r"cifar-10-binary.tar.gz"):
        load("cifar10", folder=tmp_path)
    assert "pickle" not in vars(data)
