"""What Trainers leave: folders of checkpoints, checkpoints with the optimizer beside, adapters of PEFT."""

from functools import partial
from pathlib import Path
from typing import Any

import transformers
from states.table.entry import Made, entry
from states.table.peft_saves import peft_model
from states.table.small import classifier, texts

_entry = partial(entry, needs=("torch", "transformers", "accelerate"))


def _trained(model: Any, folder: Path, steps: int = 2, **options: Any) -> Any:
    settings = {
        "output_dir": str(folder),
        "max_steps": steps,
        "save_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "per_device_train_batch_size": 2,
        "dataloader_pin_memory": False,
        "logging_steps": 1000,
    }
    trainer = transformers.Trainer(
        model, transformers.TrainingArguments(**(settings | options)), train_dataset=texts(4), eval_dataset=texts(4)
    )
    trainer.train()
    return trainer


@_entry(
    "output of a Trainer, bert",
    "HS808",
    "Trainer(model, TrainingArguments(save_steps=1, max_steps=3)).train()",
    said=("the newest is checkpoint-3",),
)
def _output(folder: Path) -> Made:
    made = _trained(classifier("bert"), folder, 3).model
    return Made(made, after="model", given=("--take", "checkpoint-3"), takes="checkpoint-3")


@_entry(
    "output of a Trainer that kept the best, distilbert",
    "HS808",
    "TrainingArguments(load_best_model_at_end=True, save_only_model=True, metric_for_best_model='loss')",
    said=("the best",),
)
def _best(folder: Path) -> Made:
    trainer = _trained(
        classifier("distilbert"),
        folder,
        3,
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        save_only_model=True,
        learning_rate=1e-2,
    )
    return Made(trainer.model, after="model")


@_entry(
    "output of a Trainer with PEFT, roberta",
    "HS808",
    "Trainer(get_peft_model(model, LoraConfig(...)), ...).train()",
    needs=("torch", "transformers", "accelerate", "peft"),
)
def _adapters(folder: Path) -> Made:
    base = folder.parent / "base"
    classifier("roberta").save_pretrained(base)
    model = peft_model("roberta", ["query", "value"])
    model.peft_config["default"].base_model_name_or_path = str(base)
    trainer = _trained(model, folder)
    last = "checkpoint-2"
    return Made(trainer.model.merge_and_unload(), cls=_Merged, after="model", given=("--take", last), takes=last)


class _Merged:
    """PEFT's own load of an adapter on its base, merged, as `from_pretrained` would give it."""

    @staticmethod
    def from_pretrained(place: Path, *, output_loading_info: bool) -> tuple[Any, dict[str, Any]]:
        """The merged model; what Transformers says of the base model."""
        import peft

        config = peft.PeftConfig.from_pretrained(str(place))
        base, info = transformers.AutoModelForSequenceClassification.from_pretrained(
            config.base_model_name_or_path, output_loading_info=output_loading_info
        )
        return peft.PeftModel.from_pretrained(base, str(place)).merge_and_unload(), info


def _checkpoint(family: str, **options: Any) -> None:
    shown = "".join(f", {name}={value!r}" for name, value in options.items())

    @_entry(
        f"checkpoint of a Trainer with optimizer.pt, {family}{shown}",
        "clean",
        f"Trainer(...).train(), checkpoint-2 with optimizer.pt, scheduler.pt, rng_state.pth{shown}",
    )
    def make(folder: Path) -> Made:
        trainer = _trained(classifier(family), folder, **options)
        assert (folder / "checkpoint-2" / "optimizer.pt").is_file()
        return Made(trainer.model, at="checkpoint-2")


_checkpoint("bert")
_checkpoint("gpt2", optim="sgd")
_checkpoint("electra", torch_compile=False, save_total_limit=1)
