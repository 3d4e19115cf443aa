"""Files of training runs with the weights inside: Lightning, Fabric, training loops of one's own."""

import argparse
from pathlib import Path
from typing import Any

import torch
from states.table.entry import Made, entry
from states.table.small import classifier, configured, stepped, texts
from states.table.wrapped import BIN

_QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


def _lightning(family: str, *, hyper: bool, weights_only: bool = False) -> None:
    shown = "with save_hyperparameters()" if hyper else "without hyperparameters"
    shown += ", save_weights_only=True" if weights_only else ""

    @entry(
        f"{family} in a LightningModule, {shown}",
        "HS807",
        f"lightning.Trainer(...).fit(module), {shown}",
        needs=("torch", "lightning"),
        rules=("HS807",) if weights_only else ("HS807", "HS802"),
        tool="" if weights_only else "Lightning 2",
    )
    def make(folder: Path) -> Made:
        import lightning
        from lightning.pytorch.callbacks import ModelCheckpoint

        model = classifier(family)

        class Module(lightning.LightningModule):
            def __init__(self, lr: float, options: Any) -> None:
                super().__init__()
                if hyper:
                    self.save_hyperparameters()
                self.model = model

            def training_step(self, batch: Any, index: int) -> Any:
                return self.model(**batch).loss

            def configure_optimizers(self) -> Any:
                return torch.optim.AdamW(self.parameters(), lr=1e-3)

        configured(model, folder)
        keeper = ModelCheckpoint(dirpath=folder, save_weights_only=weights_only, save_last=True)
        trainer = lightning.Trainer(max_steps=1, accelerator="cpu", devices=1, callbacks=[keeper], **_QUIET)
        trainer.fit(Module(1e-3, argparse.Namespace(depth=2)), torch.utils.data.DataLoader(texts(2), batch_size=2))
        # Without the callbacks, nothing in the files says that they were saved at the same time by one run.
        takes = "last.ckpt" if weights_only else ""
        return Made(model, given=("--take", takes) if takes else (), takes=takes)


_lightning("bert", hyper=True)
_lightning("gpt2", hyper=False)
_lightning("distilbert", hyper=False, weights_only=True)


@entry(
    "roberta saved by Fabric",
    "HS807",
    "fabric.save(..., {'model': model, 'optimizer': optimizer, 'step': 1})",
    needs=("torch", "lightning"),
)
def _fabric(folder: Path) -> Made:
    import lightning

    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    model = classifier("roberta")
    wrapped, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
    fabric.save(configured(model, folder) / "state.ckpt", {"model": wrapped, "optimizer": optimizer, "step": 1})
    return Made(model)


@entry(
    "vit of a training loop, model_state_dict",
    "HS807",
    "torch.save({'epoch': 3, 'model_state_dict': ..., 'optimizer_state_dict': ..., 'loss': 0.3}, 'model.pt')",
)
def _loop(folder: Path) -> Made:
    model = classifier("vit")
    optimizer = torch.optim.AdamW(model.parameters())
    model(pixel_values=torch.ones(1, 3, 30, 30), labels=torch.tensor([1])).loss.backward()
    optimizer.step()
    held = {"epoch": 3, "model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    torch.save(held | {"loss": 0.3}, configured(model, folder) / "model.pt")
    return Made(model)


@entry(
    "bert of a training loop, wrapped and with its options",
    "HS807",
    "torch.save({'args': Namespace, 'state_dict': DataParallel(model).state_dict(), 'optimizer': ...}, ...)",
    rules=("HS807", "HS802"),
    said=("argparse.Namespace",),
)
def _wrapped_loop(folder: Path) -> Made:
    model = classifier("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    stepped(model, optimizer)
    state = torch.nn.DataParallel(model).state_dict()
    held = {"args": argparse.Namespace(lr=0.1), "state_dict": state, "optimizer": optimizer.state_dict()}
    torch.save(held, configured(model, folder) / BIN)
    return Made(model)


@entry(
    "wav2vec2 of a training loop, with an average of its weights",
    "HS807",
    "torch.save({'model': ..., 'model_ema': ..., 'scaler': ..., 'step': 9}, 'best.pth')",
)
def _averaged(folder: Path) -> Made:
    model = classifier("wav2vec2")
    average = {key: value * 0.5 for key, value in model.state_dict().items()}
    held = {"model": model.state_dict(), "model_ema": average, "scaler": torch.amp.GradScaler("cpu").state_dict()}
    torch.save(held | {"step": 9}, configured(model, folder) / "best.pth")
    return Made(model, given=("--take", "model"), takes="model")


def _pickled(family: str, file: str, **rest: Any) -> None:
    @entry(
        f"{family} pickled whole, {file}",
        "HS807",
        f"torch.save(model, '{file}')",
        tool="torch.save of a whole model",
        said=("loading it imports",),
        **rest,
    )
    def make(folder: Path) -> Made:
        model = classifier(family)
        torch.save(model, configured(model, folder) / file)
        return Made(model)


_pickled("bert", BIN, exits=(3, 3))
_pickled("gpt2", "model.pt")


@entry("distilbert under another file name", "HS807", "torch.save(model.state_dict(), 'best_model.pt')")
def _other_name(folder: Path) -> Made:
    model = classifier("distilbert")
    torch.save(model.state_dict(), configured(model, folder) / "best_model.pt")
    return Made(model)
