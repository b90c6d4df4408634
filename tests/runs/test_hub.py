"""Runs on a hub: loaded through the library's own client from a server on loopback, published with a card."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from unittest.mock import create_autospec

import huggingface_hub
import numpy as np
import pytest
import yaml

import farfield as ff
from farfield.runs.hub import PARTS, fetch
from farfield.runs.run import SHIPPED, Run

COMMIT = "0" * 39 + "1"


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as a download needs; ``files`` are those of somebody/waves."""

    files: ClassVar[dict[str, bytes]] = {}

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        if self.path.startswith("/api/models/somebody/waves/revision/main"):
            self.answer(json.dumps({"id": "somebody/waves", "sha": COMMIT, "siblings": [
                {"rfilename": name} for name in self.files]}).encode())  # fmt: skip
        elif self.path.startswith("/api/models/somebody/waves/tree/"):
            entries = [{"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                       for name, content in self.files.items()]  # fmt: skip
            self.answer(json.dumps(entries).encode())
        elif self.path.startswith("/somebody/waves/resolve/") and self.path.split("/")[-1] in self.files:
            self.answer(self.files[self.path.split("/")[-1]])
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def answer(self, content: bytes):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A server that the client takes for the hub."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    client = huggingface_hub.snapshot_download
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda *names, **options: client(*names, **options, endpoint=address, cache_dir=tmp_path / "cache"),
    )
    yield Hub
    server.shutdown()
    server.server_close()


def test_a_run_on_the_hub_predicts_like_the_same_run_on_disk(hub):
    folder = SHIPPED / "swe-laape"
    hub.files = {name: (folder / name).read_bytes() for name in PARTS} | {"state.pt": b"not to be downloaded"}
    loaded, shipped = ff.load("hf://somebody/waves", device="cpu"), ff.load("swe-laape", device="cpu")
    x = np.linspace(0.4, 99.6, 128)
    state = {"v": 0 * x, "h": 1 + 0.05 * np.exp(-(((x - 50) / 5) ** 2))}
    assert np.array_equal(loaded.step(state, x)["h"], shipped.step(state, x)["h"])
    assert not (fetch("hf://somebody/waves") / "state.pt").exists()


def test_what_is_no_run_or_not_there_is_said(hub):
    hub.files = {"weights.bin": b"something else"}
    with pytest.raises(ValueError, match=r"hf://somebody/waves is no run of farfield: it has no config.yaml"):
        ff.load("hf://somebody/waves")
    with pytest.raises(OSError, match="could not load hf://somebody/nothing: "):
        ff.load("hf://somebody/nothing")
    with pytest.raises(ValueError, match=r"expected hf://owner/name or .*, got 'hf://waves'"):
        ff.load("hf://waves")


def test_publishing_uploads_what_a_prediction_needs_and_a_card(monkeypatch, tmp_path):
    client = create_autospec(huggingface_hub.HfApi, instance=True)
    uploaded = {}
    client.upload_folder.side_effect = lambda **given: uploaded.update(
        {path.name: path.read_text(errors="replace") for path in Path(given["folder_path"]).iterdir()}
    )
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda **options: client)
    assert ff.push("swe-laape", "hf://somebody/waves") == "hf://somebody/waves"
    client.create_repo.assert_called_once_with("somebody/waves", private=False, exist_ok=True)
    assert set(uploaded) == {*PARTS, "README.md"}
    _, about, text = uploaded["README.md"].split("---\n", 2)
    assert yaml.safe_load(about) == {"library_name": "farfield", "tags": ["neural-operator", "swe", "laape"]}
    for told in (*Run(SHIPPED / "swe-laape").provenance()["commands"], "v [m/s], h [m]", "100 m", "torch 2.", "Seed 0"):
        assert told in text
    with pytest.raises(ValueError, match=r"cannot be published: it has no config.yaml"):
        ff.push(tmp_path, "hf://somebody/waves")


def test_a_card_tells_the_errors_that_were_measured(tmp_path):
    from farfield.report.model_card import model_card

    for name in PARTS[:3]:
        (tmp_path / name).write_bytes((SHIPPED / "swe-laape" / name).read_bytes())
    columns = "problem,encoding,seed,scale,field,metric,horizon,value,samples\n"
    (tmp_path / "evaluation.csv").write_text(
        columns
        + "swe,laape,0,10,h,l1_step,1,0.0031,9\nswe,laape,0,1,h,l1_step,1,0.0029,9\nswe,laape,0,1,h,l2_step,1,2,9\n"
    )
    card = model_card(Run(tmp_path), "hf://somebody/waves")
    assert "| 1 | h (step) 0.29 % |\n| 10 | h (step) 0.31 % |\n" in card
    assert "200" not in card
