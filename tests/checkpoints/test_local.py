"""Checkpoints on disk: what a folder may hold, and what is said where it does not add up."""

import json
import os
from pathlib import Path

import pytest
import torch
from families import FAMILIES
from safetensors.torch import save_file
from saving import save_safetensors, save_sharded_safetensors, save_torch_zip
from transformers import BertModel

import headscope
from headscope.core.checkpoints.reading import read_manifest
from headscope.core.checkpoints.reference import HubReference, parse_reference
from headscope.core.facts.stored.location import HubOptions, Location
from headscope.errors import HeadscopeError, Malformed, NotFound, Unsupported, UsageError
from headscope.facts import WeightsFormat

CONFIG = json.dumps({"model_type": "bert", "architectures": ["BertModel"]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a configuration and one small weight file."""
    (tmp_path / "config.json").write_text(CONFIG)
    save_file({"x": torch.zeros(2, 3)}, tmp_path / "model.safetensors")
    return tmp_path


def test_a_folder_is_read_by_its_headers(folder: Path) -> None:
    manifest = read_manifest(Location(str(folder)))
    assert [(item.key, item.dtype, item.shape) for item in manifest.tensors] == [("x", "float32", (2, 3))]
    assert manifest.config["model_type"] == "bert"
    assert (manifest.format, manifest.files[0].name) == (WeightsFormat.SAFETENSORS, "model.safetensors")
    assert manifest.bytes_total == (folder / "model.safetensors").stat().st_size


def test_safetensors_come_before_pytorch_files_and_that_is_told(folder: Path) -> None:
    torch.save({"y": torch.zeros(1)}, folder / "pytorch_model.bin")
    manifest = read_manifest(Location(str(folder)))
    assert ([item.key for item in manifest.tensors], manifest.format) == (["x"], WeightsFormat.SAFETENSORS)
    assert any("pytorch_model.bin" in notice for notice in manifest.notices)


def test_shards_beside_an_older_single_file_are_not_read_and_are_reported(tmp_path: Path) -> None:
    old, new = (FAMILIES["bert"].build("BertForSequenceClassification") for _ in range(2))
    old.save_pretrained(tmp_path)
    torch.nn.init.ones_(new.classifier.weight)
    new.save_pretrained(tmp_path, max_shard_size="20KB")
    loaded = type(new).from_pretrained(tmp_path)
    assert torch.equal(loaded.classifier.weight, old.classifier.weight)
    found = headscope.check(str(tmp_path), "inference", run=False, cache=False)
    (finding,) = [item for item in found.findings if item.id == "HS106"]
    shards = sorted(path.name for path in tmp_path.glob("model-*"))
    assert len(shards) > 1 and list(finding.parameters) == shards and "delete model.safetensors" in finding.remedy
    new.save_pretrained(tmp_path)  # removes the shards and leaves their index, which nothing reads
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert read_manifest(Location(str(tmp_path))).unread == ()
    (tmp_path / "model.safetensors").unlink()
    new.save_pretrained(tmp_path, max_shard_size="20KB")
    assert read_manifest(Location(str(tmp_path))).unread == ()


def test_a_single_weight_file_is_read_with_the_configuration_beside_it(folder: Path) -> None:
    torch.save({"y": torch.zeros(1)}, folder / "epoch3.bin")
    assert [item.key for item in read_manifest(Location(str(folder / "epoch3.bin"))).tensors] == ["y"]


def test_a_subfolder_can_be_named(folder: Path) -> None:
    assert read_manifest(Location(str(folder.parent), subfolder=folder.name)).tensors


def test_a_missing_shard_leaves_a_gap(tmp_path: Path) -> None:
    save_sharded_safetensors(FAMILIES["bert"].build("BertModel"), tmp_path)
    lost = sorted(tmp_path.glob("*.safetensors"))[0]
    lost.unlink()
    manifest = read_manifest(Location(str(tmp_path)))
    assert manifest.tensors
    assert [gap.topic for gap in manifest.gaps] == [lost.name]


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "a\\b", "C:x", "", "..", 7, None, "a/b"])
def test_an_index_that_leads_elsewhere_is_refused(shard: object, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"x": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Malformed, match="file name"):
        read_manifest(Location(str(folder)))


Index = dict[str, dict[str, str]]


def loads(folder: Path) -> tuple[set[str], set[str]]:
    """The keys that Transformers' loader misses, and those that our manifest leaves to be missed."""
    model, info = BertModel.from_pretrained(folder, output_loading_info=True)
    manifest = read_manifest(Location(str(folder)))
    assert not manifest.gaps
    return set(info["missing_keys"]), set(model.state_dict()) - {item.key for item in manifest.tensors}


@pytest.mark.parametrize("dropped", ["shard", "index"])
def test_where_index_and_shards_differ_the_shards_count_as_in_transformers(dropped: str, tmp_path: Path) -> None:
    model = FAMILIES["bert"].build("BertModel")
    model.config.save_pretrained(tmp_path)
    state = dict(model.state_dict())
    index: Index = {"metadata": {}, "weight_map": dict.fromkeys(state, "part.safetensors")}
    state.pop("pooler.dense.bias") if dropped == "shard" else index["weight_map"].pop("pooler.dense.bias")
    save_file(state, tmp_path / "part.safetensors", {"format": "pt"})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    theirs, ours = loads(tmp_path)
    assert theirs == ours == ({"pooler.dense.bias"} if dropped == "shard" else set())
    notices = [notice for notice in read_manifest(Location(str(tmp_path))).notices if "lists 1 tensor " in notice]
    assert bool(notices) is (dropped == "shard")


def test_the_file_that_the_configuration_names_is_read_as_in_transformers(tmp_path: Path) -> None:
    model = FAMILIES["bert"].build("BertModel")
    config = model.config.to_dict() | {"transformers_weights": "other.safetensors"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors", {"format": "pt"})
    save_file(dict(model.state_dict()), tmp_path / "other.safetensors", {"format": "pt"})
    assert loads(tmp_path) == (set(), set())


@pytest.mark.parametrize("name", ["../x.safetensors", "/x.safetensors", "a\\x.safetensors", 7, "x.bin"])
def test_a_configuration_that_names_another_place_is_refused(name: object, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"transformers_weights": name}))
    with pytest.raises(HeadscopeError, match="transformers_weights"):
        read_manifest(Location(str(folder)))


def test_a_folder_under_a_weight_files_name_is_passed_over_as_in_transformers(tmp_path: Path) -> None:
    save_torch_zip(FAMILIES["bert"].build("BertModel"), tmp_path)
    (tmp_path / "model.safetensors").mkdir()
    assert loads(tmp_path) == (set(), set())


def test_the_only_shard_missing_is_a_gap_too(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "lost.safetensors"}}))
    assert [gap.topic for gap in read_manifest(Location(str(folder))).gaps] == ["lost.safetensors"]


@pytest.mark.parametrize("kept", [0, 2])
def test_many_missing_shards_are_one_gap_with_their_count(kept: int, tmp_path: Path) -> None:
    stored = FAMILIES["bert"].build("BertModel").state_dict()
    index = {key: f"model-{number:05}.safetensors" for number, key in enumerate(sorted(stored))}
    for key in sorted(stored)[:kept]:
        save_file({key: stored[key]}, tmp_path / index[key])
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    manifest = read_manifest(Location(str(tmp_path)))
    [gap] = manifest.gaps
    assert gap.topic == f"{len(index) - kept} of {len(index)} shards"
    first, lost = sorted(index.values())[kept : kept + 3], sorted(index.values())[kept + 3 :]
    assert gap.reason.endswith(f"missing: {', '.join(first)} and {len(lost)} more")
    assert not any("shard" in notice for notice in manifest.notices)
    assert {item.key for item in manifest.tensors} == set(sorted(stored)[:kept])


def test_a_configuration_alone_is_a_gap(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    manifest = read_manifest(Location(str(tmp_path)))
    assert manifest.format is WeightsFormat.NONE
    assert manifest.gaps


CONFIGS = {
    "not valid JSON": (b"{", "line 1, column"),
    "list": (b"[]", "list"),
    "null": (b"null", "null"),
    "text": (b'"x"', "text"),
    "doubled key": (b'{"a": 1, "a": 2}', "twice"),
    "not UTF-8": (b'{"a": "\xff"}', "UTF-8"),
    "deep": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "JSON"),
    "empty": (b"", "line 1"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_broken_configuration_is_named_with_its_fault(name: str, folder: Path) -> None:
    content, part = CONFIGS[name]
    (folder / "config.json").write_bytes(content)
    with pytest.raises(Malformed) as caught:
        read_manifest(Location(str(folder)))
    assert "config.json" in caught.value.message
    assert part in caught.value.message


def test_a_byte_order_mark_and_infinity_are_read(folder: Path) -> None:
    (folder / "config.json").write_bytes(b'\xef\xbb\xbf{"model_type": "bert", "x": Infinity}')
    assert read_manifest(Location(str(folder))).config["x"] == float("inf")


STAND_INS = {
    b"": "empty",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n": "Git LFS pointer",
    b"<!DOCTYPE html><html></html>": "HTML page",
    b"\n\n  <html></html>": "an HTML page",
    b"\x05\0\0": "fewer than",
}


@pytest.mark.parametrize("content", STAND_INS, ids=STAND_INS.values())
def test_what_is_no_weight_file_is_called_by_its_name(content: bytes, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(Malformed, match=STAND_INS[content]):
        read_manifest(Location(str(folder)))


def test_a_pipe_does_not_hang_the_reader(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(Malformed, match="not a regular file"):
        read_manifest(Location(str(folder)))


def test_a_link_as_the_cache_makes_them_is_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    blob = tmp_path_factory.mktemp("blobs") / "abc"
    (folder / "model.safetensors").rename(blob)
    (folder / "model.safetensors").symlink_to(blob)
    assert read_manifest(Location(str(folder))).tensors


FOLDERS: list[tuple[dict[str, str], type[HeadscopeError], str]] = [
    ({}, NotFound, "holds no config.json"),
    ({"adapter_config.json": "{}"}, Malformed, "doesn't name its base model"),
    ({"config.json": CONFIG, "tf_model.h5": "0"}, Unsupported, "TensorFlow"),
    ({"config.json": CONFIG, "model-q4.gguf": "0"}, Malformed, "not a whole GGUF file"),
]


@pytest.mark.parametrize(("files", "error", "part"), FOLDERS, ids=[row[2] for row in FOLDERS])
def test_a_folder_that_is_no_checkpoint_is_said_with_a_next_step(
    files: dict[str, str], error: type[HeadscopeError], part: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(error) as caught:
        read_manifest(Location(str(tmp_path)))
    assert part in caught.value.message
    assert caught.value.hint


def test_a_table_of_word_vectors_needs_no_config(tmp_path: Path) -> None:
    kind = "sentence_transformers.sentence_transformer.modules.static_embedding.StaticEmbedding"
    save_file({"embedding.weight": torch.zeros(50, 16)}, tmp_path / "model.safetensors")
    (tmp_path / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": kind}]))
    with pytest.raises(Unsupported, match=r"\(StaticEmbedding\).*config\.json"):
        read_manifest(Location(str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "has_config"), [("model.pt", False), ("pytorch_model.bin", False), ("pytorch_model.bin", True)]
)
def test_torchscript_is_named(name: str, has_config: bool, tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(4, 3)), str(tmp_path / name))
    if has_config:
        (tmp_path / "config.json").write_text(CONFIG)
    for place in (tmp_path, tmp_path / name):
        with pytest.raises(Unsupported, match=f"{name} is TorchScript"):
            read_manifest(Location(str(place)))


def test_the_folder_of_an_export_is_named_where_there_are_no_other_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"")
    with pytest.raises(HeadscopeError, match=r"onnx/model\.onnx"):
        read_manifest(Location(str(tmp_path)))
    save_file({"classifier.weight": torch.zeros(2, 4)}, tmp_path / "model.safetensors")
    assert read_manifest(Location(str(tmp_path))).tensors


REFERENCES: list[tuple[str, type[HeadscopeError]]] = [
    ("", UsageError),
    ("no/such/folder", NotFound),
    ("./nothing", NotFound),
    ("model.safetensors", NotFound),
    ("a b", NotFound),
    ("x@", NotFound),
    ("https://example.org/a/b", UsageError),
    ("hf://datasets/a/b", Unsupported),
    ("nul\0", UsageError),
    ("../../etc", NotFound),
    ("http://[::1/a", UsageError),
    ("~no-such-user/x", NotFound),
]


@pytest.mark.parametrize(("reference", "error"), REFERENCES, ids=[repr(row[0]) for row in REFERENCES])
def test_a_reference_that_means_nothing_is_said(reference: str, error: type[HeadscopeError]) -> None:
    with pytest.raises(error) as caught:
        read_manifest(Location(reference, hub=HubOptions(offline=True)))
    assert caught.value.hint


HUB_NAMES = [
    ("owner/_name_", HubReference("owner/_name_")),
    ("hf://a/b@refs%2Fpr%2F1", HubReference("a/b", "refs/pr/1")),
    ("hf://models/a/b@v1", HubReference("a/b", "v1")),
    ("https://huggingface.co/a/b/tree/refs%2Fpr%2F1", HubReference("a/b", "refs/pr/1")),
]


@pytest.mark.parametrize(("text", "meant"), HUB_NAMES, ids=[row[0] for row in HUB_NAMES])
def test_a_hub_name_is_understood(text: str, meant: HubReference) -> None:
    assert parse_reference(text) == meant


def test_the_shared_real_checkpoints_are_read() -> None:
    shared = Path(__file__).resolve().parents[3] / "shared" / "real" / "checkpoints"
    if not shared.is_dir():
        pytest.skip("the real checkpoints are not beside this checkout")
    manifests = [read_manifest(Location(str(folder))) for folder in sorted(shared.iterdir())]
    assert [len(manifest.tensors) for manifest in manifests] == [21, 13, 134]


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("shards", ["5GB", "8kB"])
def test_a_variant_is_read_as_transformers_loads_it(tmp_path: Path, safe: bool, shards: str) -> None:
    model = FAMILIES["bert"].build("BertForSequenceClassification")
    model.save_pretrained(tmp_path)
    if safe:
        model.half().save_pretrained(tmp_path, variant="fp16", max_shard_size=shards)
    else:
        torch.save(model.half().state_dict(), tmp_path / "pytorch_model.fp16.bin")
    manifest = read_manifest(Location(str(tmp_path), variant="fp16"))
    loaded = type(model).from_pretrained(tmp_path, variant="fp16")
    assert {tensor.key for tensor in manifest.tensors} >= set(dict(loaded.named_parameters()))
    assert {tensor.dtype for tensor in manifest.tensors if tensor.key.endswith("weight")} == {"float16"}
    assert all(".fp16" in file.name for file in manifest.files)
    assert {tensor.dtype for tensor in read_manifest(Location(str(tmp_path))).tensors} == {"float32"}


@pytest.mark.parametrize(
    ("variant", "error", "said"),
    [
        ("bf16", NotFound, r"variant bf16 \(model\.bf16\.safetensors, model\.safetensors\.index\.bf16\.json"),
        ("../fp16", UsageError, "is not the name of a variant"),
        ("", UsageError, "is not the name of a variant"),
    ],
)
def test_a_variant_that_is_not_there_is_an_error(
    tmp_path: Path, variant: str, error: type[HeadscopeError], said: str
) -> None:
    FAMILIES["bert"].build("BertForSequenceClassification").half().save_pretrained(
        tmp_path, variant="fp16", max_shard_size="8kB"
    )
    with pytest.raises(error, match=said) as caught:
        read_manifest(Location(str(tmp_path), variant=variant))
    assert "fp16" in caught.value.hint


def test_an_adapter_has_no_variants(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/base"}')
    save_file({"base_model.model.classifier.weight": torch.zeros(3, 4)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(UsageError, match=r"fp16.* adapter"):
        read_manifest(Location(str(tmp_path), variant="fp16"))


def test_a_file_has_no_variants(tmp_path: Path) -> None:
    FAMILIES["bert"].build("BertForSequenceClassification").save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"fp16.* file"):
        read_manifest(Location(str(tmp_path / "model.safetensors"), variant="fp16"))


def test_a_variant_is_named_with_what_to_do(tmp_path: Path) -> None:
    save_safetensors(FAMILIES["bert"].build("BertModel"), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model.fp16.safetensors")
    with pytest.raises(Unsupported, match=r"only as a variant: model\.fp16\.safetensors"):
        read_manifest(Location(str(tmp_path)))
    assert read_manifest(Location(str(tmp_path / "model.fp16.safetensors"))).tensors


def test_what_a_module_of_headscope_code_saved_is_said_to_be_that_and_not_repaired(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "classifier.json").write_text('{"vector": "mean"}')
    save_file({"base.pooler.dense.weight": torch.zeros(2, 2)}, tmp_path / "classifier.safetensors")
    for use in (headscope.inspect, lambda path: headscope.repair(path, tmp_path.parent / "other")):
        with pytest.raises(HeadscopeError, match="`headscope code` saved") as caught:
            use(tmp_path)
        assert "Classifier.load" in caught.value.hint


@pytest.mark.parametrize(
    ("names", "is_told"),
    [(["neg", "neu", "pos"], True), (["LABEL_0", "LABEL_1"], False), (["a,b", "$(touch x)"], True), ([], False)],
)
def test_names_of_classes_in_a_file_of_simpletransformers(tmp_path: Path, names: list[str], *, is_told: bool) -> None:
    FAMILIES["bert"].build("BertForSequenceClassification").save_pretrained(tmp_path)
    (tmp_path / "model_args.json").write_text(json.dumps({"labels_list": names, "model_type": "bert"}))
    own = headscope.inspect(tmp_path).model.labels
    told = [item for item in headscope.inspect(tmp_path).checkpoint.notices if "model_args.json" in item]
    assert bool(told) is is_told, own
    shown = "NAMES" if "a,b" in names else ",".join(names)
    assert not told or told[0].endswith(f"--labels {shown}`"), told
