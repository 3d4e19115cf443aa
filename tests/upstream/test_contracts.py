"""What headscope relies on in other projects without a promise: each surface fails here by its name when it moves."""

import ast
import logging
import re
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist
from hub import COMMIT, Hub, serve
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, BertForMaskedLM, BertForSequenceClassification

from headscope.core.model.classes import catalog, pretraining_siblings
from headscope.core.upstream import (
    accelerate as accelerate_surface,
    hub as hub_surface,
    sharded as sharded_surface,
    torch as torch_surface,
    transformers as surface,
)
from headscope.core.upstream.optional import (
    deepspeed as deepspeed_surface,
    lightning as lightning_surface,
    ray as ray_surface,
    sentence_transformers as sentence_surface,
    setfit as setfit_surface,
    trl as trl_surface,
)
from headscope.errors import HeadscopeError, Unsupported, UsageError
from tests.scorers import save_tokenizer

ROOT = Path(__file__).parents[2]
SMALL = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 20,
}  # fmt: skip


def bert(**more: object) -> BertForSequenceClassification:
    return BertForSequenceClassification(BertConfig(**SMALL, **more))


def test_transformers_loads_a_state_dict_on_meta_and_lists_what_it_did_not_load() -> None:
    stored = dict(bert().state_dict())
    del stored["classifier.bias"]
    stored["classifier.weight"] = torch.zeros(5, 8)
    stored["spare"] = torch.zeros(1)
    model, info = surface.load_on_meta(BertForSequenceClassification, BertConfig(**SMALL), stored)
    assert next(model.parameters()).is_meta
    assert info.missing == {"classifier.bias"}
    assert info.unexpected == ("spare",)
    assert info.mismatched == (("classifier.weight", (5, 8), (2, 8)),)


def test_transformers_marks_what_its_loader_filled(tmp_path: Path) -> None:
    made = bert()
    made.bert.save_pretrained(tmp_path)
    loaded = BertForSequenceClassification.from_pretrained(tmp_path)
    assert surface.is_filled(loaded.bert.pooler.dense.weight)
    assert surface.was_loaded(loaded)
    assert not surface.was_loaded(made)
    assert surface.name_and_commit(loaded.config) == (str(tmp_path), None)


def test_transformers_initializes_a_module_as_its_constructor_does() -> None:
    model = BertForSequenceClassification(BertConfig(**SMALL, initializer_range=0.5))
    layer = torch.nn.Linear(400, 50)
    surface.initialize(model, layer)
    assert float(layer.weight.std()) == pytest.approx(0.5, rel=0.03)
    assert not layer.bias.any()


def test_transformers_declares_tied_weights() -> None:
    tied = surface.tied_names(BertForMaskedLM(BertConfig(**SMALL)))
    assert tied["cls.predictions.decoder.weight"] == "bert.embeddings.word_embeddings.weight"


AUTO_CLASSES = sorted(
    {*catalog.AUTO_CLASS_OF_TASK.values(), *catalog._HEAD_OF_PRETRAINING, *pretraining_siblings._PRETRAINING}
)


@pytest.mark.parametrize("name", AUTO_CLASSES)
def test_transformers_has_the_table_of_an_auto_class(name: str) -> None:
    found = surface.classes_by_type(name)
    assert found
    assert all(names and all(isinstance(name, str) for name in names) for names in found.values())


def test_transformers_names_tokenizers_folders_and_configurations() -> None:
    assert surface.tokenizer_of_type()["bert"][0].startswith("BertTokenizer")
    assert surface.folder_of_type("xlm-roberta") == "xlm_roberta"
    assert surface.config_classes()["bert"] is BertConfig


def test_transformers_imports_a_class_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "configuration_own.py").write_text(
        "from transformers import PreTrainedConfig\nclass Own(PreTrainedConfig):\n    model_type = 'own'\n"
    )
    assert surface.class_of_repository("configuration_own.Own", str(tmp_path)).model_type == "own"


def test_a_table_that_is_gone_is_an_error_and_not_an_empty_table() -> None:
    with pytest.raises(Unsupported, match=r" transformers .*: .* AutoModelForNothing"):
        surface.classes_by_type("AutoModelForNothing")


def test_another_form_of_the_loading_info_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BertForSequenceClassification, "from_pretrained", lambda *_, **__: (bert(), {"missing": []}))
    with pytest.raises(Unsupported, match="output_loading_info gives"):
        surface.load_on_meta(BertForSequenceClassification, BertConfig(**SMALL), {})


def test_pytorch_counts_writes_and_names_memory() -> None:
    tensor = torch.zeros(4)
    before = torch_surface.version_of(tensor)
    tensor[:2].add_(1)
    assert torch_surface.version_of(tensor) == before + 1
    assert torch_surface.storage_id(tensor) == torch_surface.storage_id(tensor[1:])
    assert torch_surface.storage_id(tensor) != torch_surface.storage_id(tensor.clone())
    with torch.inference_mode():
        assert torch_surface.version_of(torch.zeros(1)) == -1


def test_pytorch_describes_its_operators() -> None:
    add = torch.ops.aten.add.Tensor
    assert torch_surface.name_of_overload(add) == "add"
    assert torch_surface.name_of_overload(torch.add) is None
    assert torch_surface.argument_names(add) == {"self": None, "other": None, "alpha": 1}


def test_functions_take_the_arguments_that_pytorchs_own_stand_ins_take_at_these_places() -> None:
    of_pytorch = torch.overrides.get_testing_overrides()
    for name in ("select", "narrow", "gather", "matmul", "add", "masked_fill", "index_select", "stack", "pow", "bmm"):
        func = getattr(torch, name)
        taken = signature(of_pytorch[func]).parameters.values()
        needed = [item.name for item in taken if item.default is item.empty]
        places = torch_surface.places_of_arguments(func)
        assert needed and [places[item] for item in needed] == list(range(len(needed)))
    assert "alpha" not in torch_surface.places_of_arguments(torch.sub)  # by name alone, but for numbers
    assert [torch_surface.places_of_arguments(torch.polygamma)[name] for name in ("n", "input", "out")] == [0, 1, -1]
    of_operator = dict.fromkeys(("self", "input", "x", "a", "x1"), 0) | {"mat2": 1}
    assert torch_surface.places_of_arguments(torch.ops.aten.mm.default) == of_operator
    assert torch_surface.places_of_arguments(nn.functional.normalize)["dim"] == 2
    assert torch_surface.places_of_arguments(torch.Tensor.__getitem__) == {}


def test_a_copy_of_a_module_takes_another_child() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    kept, other = module[1], nn.Linear(3, 5)
    copied = torch_surface.with_child(module, "1", other)
    assert copied(torch.zeros(1, 2)).shape == (1, 5)
    assert list(copied.children()) == [module[0], other]
    assert module[1] is kept


def test_pytorch_knows_which_buffers_are_stored() -> None:
    module = nn.Module()
    module.register_buffer("kept", torch.zeros(1))
    module.register_buffer("left", torch.zeros(1), persistent=False)
    held = torch_surface.buffers_of(module)
    assert {name for name in held if torch_surface.is_persistent(module, name)} == set(module.state_dict()) == {"kept"}


def test_pytorch_keeps_the_module_inside_a_compiled_one() -> None:
    module = nn.Linear(2, 2)
    assert torch_surface.inside_compiled(torch.compile(module)) is module
    assert torch_surface.inside_compiled(module) is None
    module.compile()
    compiled = module._compiled_call_impl
    assert compiled is not None
    with torch_surface.uncompiled(module):
        assert module._compiled_call_impl is None
    assert module._compiled_call_impl is compiled


def test_a_dispatch_mode_sees_every_operator() -> None:
    class Seen(torch_surface.TorchDispatchMode):  # type: ignore[misc,no-untyped-call]
        names: ClassVar[list[str | None]] = []

        def __torch_dispatch__(
            self, func: object, types: object, args: tuple = (), kwargs: dict | None = None
        ) -> object:  # type: ignore[type-arg]
            self.names.append(torch_surface.name_of_overload(func))
            return func(*args, **kwargs or {})  # type: ignore[operator]

    with Seen():
        torch.zeros(2) + 1
    assert Seen.names == ["zeros", "add"]


HUB = """
import json, sys
from pathlib import Path
from huggingface_hub import hf_hub_download
from headscope.core.upstream import hub
path = Path(hf_hub_download("org/model", "config.json"))
request = hub.session().build_request("GET", sys.argv[1])
answer = hub.session().send(request, stream=True, follow_redirects=False)
redirected = answer.next_request.url.path
answer.close()
try:
    hub.session().get("http://127.0.0.1:9/")
except hub.transport_error() as err:
    refused = type(err).__name__
cached = hub.cached_file("org/model", "config.json", None, None)
missing = hub.cached_file("org/model", "other.json", None, None)
print(json.dumps([redirected, refused, cached == path, missing, hub.commit_in_cache(path)]))
"""


def test_the_hubs_client_has_requests_an_error_and_a_cache_of_commits(tmp_path: Path) -> None:
    with serve(Hub({"org/model": {"config.json": b"{}"}}, renamed={"org/old": "org/model"})) as hub:
        done = subprocess.run(
            [sys.executable, "-c", HUB, f"{hub.endpoint}/org/old/resolve/main/config.json"],
            capture_output=True, text=True, check=False,
            env={"PATH": "", "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    redirected = "/org/model/resolve/main/config.json"
    assert done.stdout.strip() == f'["{redirected}", "ConnectError", true, null, "{COMMIT}"]'


def test_another_client_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_surface, "session", object)
    with pytest.raises(Unsupported, match="HTTPError"):
        hub_surface.transport_error()


def test_the_http_library_of_the_hub_has_what_asking_a_server_uses() -> None:
    library = hub_surface.http_library()
    assert issubclass(library.TimeoutException, library.HTTPError)
    assert not issubclass(library.InvalidURL, library.HTTPError)
    with library.Client(follow_redirects=False) as client:
        assert callable(client.stream)
    assert library.Timeout(5.0, connect=1.0).connect == 1.0


def test_peft_names_what_it_wraps_and_saves(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from safetensors.torch import load_file

    from headscope.core.upstream.peft import ADAPTER_NAME, PREFIXES_OF_TUNERS, SAVED_FOR_TASK, SUFFIXES, WRAPPED

    wrapped = peft.get_peft_model(bert(), peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], r=2))
    held = dict(wrapped.named_parameters())
    assert any(ADAPTER_NAME.search(name) for name in held)
    assert {name for name in WRAPPED if any(f".{name}." in key for key in held)} == set(WRAPPED)
    assert set(SAVED_FOR_TASK["SEQ_CLS"]) <= set(wrapped.modules_to_save)
    wrapped.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert all(key.startswith(PREFIXES_OF_TUNERS) for key in saved)
    assert {key for key in saved if re.search(rf"\.({SUFFIXES['LORA']})$", key)} == {
        key for key in saved if "lora" in key
    }


UNSTABLE = re.compile(r"transformers\.models\.auto|transformers\.dynamic_module|get_session$")
OWN = {"self", "cls", "os", "sys"}  # os._exit and sys._getframe are documented
PROMISED = {"_replace", "_repr_mimebundle_"}  # of a NamedTuple, and of IPython


def reached_by(node: ast.AST) -> list[str]:
    """The names of other projects that a piece of code uses."""
    match node:
        case ast.ImportFrom(module=str(module), names=names):
            return [f"{module}.{item.name}" for item in names]
        case ast.Import(names=names):
            return [item.name for item in names]
        case ast.Attribute(value=ast.Name(id=owner)) if owner in OWN:
            return []
        case ast.Attribute(attr=attr) if attr not in PROMISED:
            return [attr]
    return []


def is_unstable(name: str) -> bool:
    private = any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
    return bool(UNSTABLE.search(name)) or (private and not name.startswith("headscope."))


def test_no_other_room_reaches_under_an_underscore() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in sorted((ROOT / "headscope").rglob("*.py"))
        if file.parent.name != "upstream"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for name in reached_by(node)
        if is_unstable(name)
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    ["from torch import _C", "import torch._C", "import torch\ntorch._C", "model.config._name_or_path",
     "f(x)._hidden", "from transformers.models.auto import modeling_auto"],
)  # fmt: skip
def test_an_underscore_of_somebody_else_is_seen(code: str) -> None:
    assert any(is_unstable(name) for node in ast.walk(ast.parse(code)) for name in reached_by(node))


def test_the_configuration_of_every_table_is_known() -> None:
    kinds = set(surface.classes_by_type("AutoModelForSequenceClassification"))
    unknown = sorted(kind for kind in kinds if kind not in surface.config_classes())
    assert unknown == []
    assert AutoConfig.for_model("bert").model_type == "bert"


def test_fsdp_flattens_parameters_under_their_names_and_shapes(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for keeps in (True, False):
            inner = bert()
            wanted = {name: item.shape for name, item in inner.named_parameters()}
            made = FullyShardedDataParallel(inner, device_id=torch.device("cpu"), use_orig_params=keeps)
            assert sharded_surface.inside_fsdp(made) is inner
            whole = sharded_surface.whole_copy(inner, made)
            assert {name: item.shape for name, item in whole.module.named_parameters()} == wanted
            assert {id(item) for item in whole.held.values()} <= {id(item) for item in made.parameters()}
        made = fully_shard(bert(), mesh=init_device_mesh("cpu", (1,)))
        assert sharded_surface.is_fully_sharded(made)
        assert sharded_surface.plain_class(made) is BertForSequenceClassification
        copied = sharded_surface.whole_copy(made, made).module
        assert not [hook for part in copied.modules() for hook in part._forward_pre_hooks.values()]
    finally:
        dist.destroy_process_group()


def test_pytorch_wraps_modules_that_save_activations() -> None:
    inner = nn.Linear(2, 2)
    assert torch_surface.inside_checkpointed(checkpoint_wrapper(inner)) is inner
    assert torch_surface.inside_checkpointed(inner) is None


def test_accelerate_keeps_the_forward_that_it_replaces() -> None:
    accelerate = pytest.importorskip("accelerate")
    state = pytest.importorskip("accelerate.state")
    state.AcceleratorState._reset_state(reset_partial_state=True)
    made = accelerate.Accelerator(cpu=True, mixed_precision="bf16").prepare(bert())
    state.AcceleratorState._reset_state(reset_partial_state=True)
    assert accelerate_surface.is_prepared(made)
    assert not accelerate_surface.is_prepared(bert())


def test_sentence_transformers_chains_modules_that_pass_a_dictionary(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    bert().save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    made = library.CrossEncoder(str(tmp_path), device="cpu")
    assert sentence_surface.is_cross_encoder(made)
    assert isinstance(sentence_surface.classifier_inside(made), BertForSequenceClassification)
    assert sentence_surface.activation_of_encoder(made) == "Identity"
    assert sentence_surface.padding_side_of_encoder(made) in {"left", "right"}
    inputs = {"input_ids": torch.ones(1, 3, dtype=torch.long)}
    assert list(sentence_surface.scores_of(made(inputs))) == ["scores"]


def test_setfit_keeps_a_body_and_a_head() -> None:
    library = pytest.importorskip("setfit")
    made = library.SetFitModel(model_body=nn.Linear(1, 1), model_head=library.SetFitHead(4, 2, device="cpu"))
    assert setfit_surface.is_setfit(made)
    module, head = setfit_surface.model_of(made)
    assert (head.module, head.activation) == (made.model_head, "softmax")
    assert module.model_body is made.model_body


def test_lightning_defines_no_forward() -> None:
    lightning = pytest.importorskip("lightning")
    made = lightning.LightningModule()
    assert lightning_surface.is_lightning(made)
    assert not lightning_surface.has_forward(made)


def test_the_value_head_of_trl_comes_third() -> None:
    pytest.importorskip("trl")
    heads = pytest.importorskip("trl.experimental.ppo")
    config = AutoConfig.for_model("gpt2", n_embd=8, n_head=1, n_layer=1, vocab_size=20)
    made = heads.AutoModelForCausalLMWithValueHead.from_pretrained(AutoModelForCausalLM.from_config(config))
    assert trl_surface.has_value_head(made)
    value = trl_surface.value_head_of(made(input_ids=torch.ones(2, 5, dtype=torch.long)))["value"]
    assert value.shape == (2, 5)


def test_deepspeed_calls_its_engine_by_that_name() -> None:
    deepspeed = pytest.importorskip("deepspeed")
    engine = object.__new__(deepspeed.DeepSpeedEngine)
    nn.Module.__init__(engine)
    engine.module = bert()
    assert deepspeed_surface.inside_engine(engine) is engine.module


def test_ray_data_has_our_settings_and_a_handler_for_the_screen() -> None:
    ray = ray_surface.imported() if pytest.importorskip("ray.data") else None
    context = ray.data.DataContext.get_current()
    assert [name for name in ray_surface._SETTINGS if not hasattr(context, name)] == []
    with ray_surface._silenced_ray_data(ray):
        screens = [one for one in logging.getLogger("ray.data").handlers if isinstance(one, logging.StreamHandler)]
        assert screens
        assert all(screen.level > logging.CRITICAL for screen in screens)
        assert context.enable_progress_bars is False
    assert all(screen.level <= logging.INFO for screen in screens)
    assert context.enable_progress_bars is True


@pytest.mark.parametrize(
    ("raised", "kind", "sentence"),
    [
        (ZeroDivisionError("seven\nand a half"), HeadscopeError, "Ray could not finish the scan: seven"),
        (UsageError("a worker can't be started", "make room"), UsageError, "a worker can't be started"),
    ],
)
def test_ray_tells_what_a_task_raised(raised: Exception, kind: type[HeadscopeError], sentence: str) -> None:
    exceptions = pytest.importorskip("ray.exceptions")
    with pytest.raises(HeadscopeError) as caught, ray_surface.failing_as("look at its logs"):
        raise exceptions.RayTaskError("f", "Traceback ...", raised).as_instanceof_cause()
    assert type(caught.value) is kind
    assert caught.value.message == sentence
